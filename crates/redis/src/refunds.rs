//! Refunds of charges, and releases of holds, whose answers were dropped before the caller read them.

use std::sync::{Arc, OnceLock};

use tollgate_core::{ChargePlace, HoldUse, Limit, Mode};

use super::refund_order::RefundOrder;
use super::wire::{Reply, ServerCharge, StoreRequest};
use tollgate_limiter::Decision;
use tollgate_limiter::store::Wake;

/// Sends the refunds of one limiter. The refunds of one bucket are sent in the order of their charges.
pub(super) struct Refunds {
    order: RefundOrder<OwedRefund>,
    /// Sends a refund that no caller waits for. Calls the [`Wake`] when the units are back.
    send: Box<dyn Fn(StoreRequest, Wake) + Send + Sync>,
}

/// A refund, and how to wake the waiters for its units.
type OwedRefund = (StoreRequest, Wake);

impl Refunds {
    pub(super) fn new(send: impl Fn(StoreRequest, Wake) + Send + Sync + 'static) -> Refunds {
        Refunds { order: RefundOrder::new(), send: Box::new(send) }
    }
}

/// Units that are given back unless the caller reads the answer.
#[derive(Clone)]
pub(super) enum UnreadUnits {
    Charge(Arc<UnreadCharge>),
    Holds(Arc<UnreadHolds>),
}

impl UnreadUnits {
    /// Notes that the caller will not read this reply.
    pub(super) fn give_back(&self, unread: Reply) {
        match self {
            UnreadUnits::Charge(charge) => charge.refund(unread),
            UnreadUnits::Holds(holds) => holds.release(&unread),
        }
    }
}

/// The holds of a reservation. Without its answer the caller can neither settle them nor use their units, so they are
/// released instead of being charged at their expiry.
pub(super) struct UnreadHolds {
    refunds: Arc<Refunds>,
    charges: Vec<ServerCharge>,
    at_us: Option<u64>,
}

impl UnreadHolds {
    /// Returns the holds of a reservation that will be sent next.
    pub(super) fn new(
        refunds: &Arc<Refunds>,
        charges: &[ServerCharge],
        at_us: Option<u64>,
    ) -> UnreadHolds {
        UnreadHolds { refunds: Arc::clone(refunds), charges: charges.to_vec(), at_us }
    }

    fn release(&self, unread: &Reply) {
        let Reply::JointDecision(joint) = unread else { return };
        let none = HoldUse { units: 0, is_last: true };
        for (index, charge) in self.charges.iter().enumerate() {
            let is_degraded = joint.each().get(index).is_none_or(Decision::is_degraded);
            if let Some(hold) = joint.hold(index).filter(|_| !is_degraded) {
                let (charges, uses) = (vec![charge.clone()], vec![(hold, none)]);
                let release = StoreRequest::Settle { charges, uses, at_us: self.at_us };
                (self.refunds.send)(release, Arc::new(|| {}));
            }
        }
    }
}

/// A charge that is refunded unless the caller reads its answer. The request and the caller's future share this; when
/// both have dropped it, the answer was read, or the refund is sent.
pub(super) struct UnreadCharge {
    refunds: Arc<Refunds>,
    charge: ServerCharge,
    at_us: Option<u64>,
    wake: Wake,
    /// The place of the charge, once it is known that the caller will not read the answer.
    owed: OnceLock<ChargePlace>,
    /// The number of the check, if the order of refunds matters.
    number: Option<u64>,
}

impl UnreadCharge {
    /// Returns a charge that will be sent next.
    pub(super) fn new(
        refunds: &Arc<Refunds>,
        charge: &ServerCharge,
        at_us: Option<u64>,
        wake: Wake,
    ) -> UnreadCharge {
        let is_ordered = match charge.limit() {
            Limit::TokenBucket(_) => true,
            // A shaping bucket gives back only its last charge, so other charges would gain nothing from an order.
            Limit::LeakyBucket(bucket) => bucket.mode() == Mode::Policing,
            _ => false,
        };
        let number = is_ordered.then(|| refunds.order.begin(&charge.key));
        let (refunds, charge, owed) = (Arc::clone(refunds), charge.clone(), OnceLock::new());
        UnreadCharge { refunds, charge, at_us, wake, owed, number }
    }

    /// Notes that the caller will not read this reply, so that its charge must be refunded.
    pub(super) fn refund(&self, unread: Reply) {
        let Reply::Decision(decision) = unread else { return };
        if let Some(receipt) = decision.into_receipt() {
            // OK because there is one reply.
            let _ = self.owed.set(receipt.place());
        }
    }
}

impl Drop for UnreadCharge {
    fn drop(&mut self) {
        let UnreadCharge { refunds, charge, at_us, wake, owed, number } = self;
        let owed = owed.take().map(|place| {
            let refund = StoreRequest::Refund { charge: charge.clone(), place, at_us: *at_us };
            (place, (refund, Arc::clone(wake)))
        });
        let send = |(refund, wake)| (refunds.send)(refund, wake);
        match (number, owed) {
            (Some(number), owed) => {
                let owed = owed.map(|(place, refund)| (units_up_to(place), refund));
                refunds.order.end(&charge.key, *number, owed, send);
            }
            (None, Some((_, refund))) => send(refund),
            (None, None) => {}
        }
    }
}

/// Returns the units that were charged to a bucket up to a place, modulo 2^53. When the count wraps, the order is wrong
/// once.
fn units_up_to(place: ChargePlace) -> u64 {
    match place {
        ChargePlace::Bucket { charged, .. } => charged,
        // A key that is still under a window or a log, whose refunds have no order.
        ChargePlace::Window { .. } | ChargePlace::Entry { .. } => 0,
    }
}
