//! Refunds of charges, releases of holds, and extensions that are taken back, because the answers were not read: the caller
//! dropped them, or they came too late.

use std::sync::{Arc, OnceLock};

use tollgate_core::{
    ChargePlace, ExtendAnswer, Extension, GrantedExtension, HoldGrowth, HoldReference, Limit, Mode,
};

use super::refund_order::RefundOrder;
use super::wire::{Reply, ServerCharge, StoreRequest};
use tollgate_limiter::Decision;
use tollgate_limiter::store::{Call, Fallback, Wake};

/// Sends the refunds of one limiter. The refunds of one bucket are sent in the order of their charges.
pub(super) struct Refunds {
    order: RefundOrder<OwedRefund>,
    /// Sends a refund that no caller waits for. Calls the [`Wake`] when the units are back.
    send: Box<dyn Fn(StoreRequest, Wake) + Send + Sync>,
    fallback: Arc<Fallback>,
}

/// A refund, and how to wake the waiters for its units.
type OwedRefund = (StoreRequest, Wake);

impl Refunds {
    pub(super) fn new(
        send: impl Fn(StoreRequest, Wake) + Send + Sync + 'static,
        fallback: &Arc<Fallback>,
    ) -> Refunds {
        let fallback = Arc::clone(fallback);
        Refunds { order: RefundOrder::new(), send: Box::new(send), fallback }
    }
}

/// Units that are given back unless the caller reads the answer.
#[derive(Clone)]
pub(super) enum UnreadUnits {
    Charge(Arc<UnreadCharge>),
    Holds(Arc<UnreadHolds>),
    Extensions(Arc<UnreadExtensions>),
}

impl UnreadUnits {
    /// Notes that the caller will not read this reply.
    pub(super) fn give_back(&self, unread: Reply) {
        match self {
            UnreadUnits::Charge(charge) => charge.refund(unread),
            UnreadUnits::Holds(holds) => holds.release(&unread),
            UnreadUnits::Extensions(extensions) => extensions.take_back(&unread),
        }
    }
}

/// The holds of a reservation. Without its answer the caller can neither settle them nor use their units, so they are
/// released instead of being charged at their expiry.
pub(super) struct UnreadHolds {
    refunds: Arc<Refunds>,
    charges: Vec<ServerCharge>,
    call: Call,
}

impl UnreadHolds {
    /// Returns the holds of a reservation that will be sent next.
    pub(super) fn new(refunds: &Arc<Refunds>, charges: &[ServerCharge], call: Call) -> UnreadHolds {
        UnreadHolds { refunds: Arc::clone(refunds), charges: charges.to_vec(), call }
    }

    /// Returns the holds of a part of the reservation, which is sent by itself.
    pub(super) fn of_parts(&self, parts: &[usize]) -> UnreadHolds {
        let charges: Vec<ServerCharge> =
            parts.iter().map(|&part| self.charges[part].clone()).collect();
        UnreadHolds::new(&self.refunds, &charges, self.call)
    }

    fn release(&self, unread: &Reply) {
        let Reply::JointDecision(joint) = unread else { return };
        for (index, charge) in self.charges.iter().enumerate() {
            let Some(hold) = joint.hold(index) else { continue };
            if joint.each().get(index).is_none_or(Decision::is_degraded) {
                // It is on this process's share of the limit.
                self.refunds.fallback.release(&charge.original, hold, &self.call);
                continue;
            }
            let release = StoreRequest::release(charge.clone(), hold, self.call.at_us);
            (self.refunds.send)(release, Arc::new(|| {}));
        }
    }
}

/// Extensions of holds in one of several places. Without the reply it is not known that they were granted, so they are taken
/// back.
pub(super) struct UnreadExtensions {
    send: Box<dyn Fn(StoreRequest) + Send + Sync>,
    parts: Vec<(ServerCharge, (HoldReference, HoldGrowth))>,
    at_us: Option<u64>,
}

impl UnreadExtensions {
    /// Returns the extensions of a request that will be sent next. `send` sends a request that no caller waits for.
    pub(super) fn new(
        send: impl Fn(StoreRequest) + Send + Sync + 'static,
        charges: &[ServerCharge],
        growths: &[(HoldReference, HoldGrowth)],
        at_us: Option<u64>,
    ) -> UnreadExtensions {
        let parts = charges.iter().cloned().zip(growths.iter().copied()).collect();
        UnreadExtensions { send: Box::new(send), parts, at_us }
    }

    fn take_back(&self, unread: &Reply) {
        let Reply::Extended(answers) = unread else { return };
        for ((charge, growth), answer) in self.parts.iter().zip(answers) {
            if let Some(extended) = granted(*growth, answer) {
                let (charge, at_us) = (charge.clone(), self.at_us);
                (self.send)(StoreRequest::TakeBack { charge, extended, at_us });
            }
        }
    }
}

/// Returns what has to be taken back of a part of an extension, if the part was granted.
pub(super) fn granted(
    (hold, HoldGrowth { more, .. }): (HoldReference, HoldGrowth),
    answer: &ExtendAnswer,
) -> Option<GrantedExtension> {
    match answer.extension {
        Extension::Granted { expires_us, .. } => Some(GrantedExtension { hold, more, expires_us }),
        Extension::Refused | Extension::Ended(_) => None,
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
        // A key that is still under a window or a log, or a lease, whose refunds have no order.
        ChargePlace::Window { .. } | ChargePlace::Entry { .. } | ChargePlace::Lease { .. } => 0,
    }
}
