//! A request on its way through the servers, and whom to tell.

use std::mem;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tollgate_core::{Limit, Mode, Place};

use super::executor::Timer;
use super::servers::Servers;
use super::shared::Shared;
use super::wire::{Charge, Reply, Request};
use crate::error::StoreError;
use crate::failure::OnFailure;
use crate::store::{Call, Wake};

/// For units that are given back on behalf of nobody: in a rush they wait their turn.
pub(super) const REFUND_DEADLINE: Duration = Duration::from_secs(5);

/// A request, and whom to tell.
pub(super) struct Waiting {
    pub(super) request: Request,
    /// `None` once it was told.
    answer: Option<oneshot::Sender<Result<Reply, StoreError>>>,
    shared: Arc<Shared>,
    /// When it was put in, as the shared clock has it.
    pub(super) since_us: u64,
    /// How long it may take in all.
    pub(super) within: Duration,
    pub(super) deadline: Instant,
    /// When it was last put in a queue.
    pub(super) queued: Instant,
    on_failure: OnFailure,
    and_then: AndThen,
    pub(super) way: Way,
    /// Whether a call left it for later: its states are long logs, whatever the limits say.
    pub(super) is_on_long_logs: bool,
    /// While it waits in a queue, in a hurry.
    pub(super) timer: Option<Timer>,
}

/// Where a request goes in a cluster, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) slot: u16,
    /// Not with others of its slot, which is being moved: some may be here and some there.
    pub(super) is_alone: bool,
    /// The server does not own the slot yet, and must be told that this is known.
    pub(super) is_asking: bool,
    /// How often it was sent on.
    pub(super) hops: u8,
}

/// What happens when a request has been answered.
#[derive(Clone, Default)]
pub(crate) enum AndThen {
    #[default]
    Nothing,
    /// Those who wait for units to come back are told.
    Wake(Wake),
    /// If nobody is there any more to be told of the charge, it is refunded, and then the same.
    RefundUnlessTold(Arc<Refund>),
}

/// Where an answer will be.
pub(crate) type Receiver = oneshot::Receiver<Result<Reply, StoreError>>;

impl Waiting {
    pub(super) fn new(shared: &Arc<Shared>, request: Request, call: &Call) -> (Waiting, Receiver) {
        let Call { deadline: within, on_failure, .. } = *call;
        let (answer, receiver) = oneshot::channel();
        let now = Instant::now();
        let waiting = Waiting {
            request,
            answer: Some(answer),
            shared: Arc::clone(shared),
            since_us: shared.clock.now_us(),
            within,
            deadline: now + within,
            queued: now,
            on_failure,
            and_then: AndThen::Nothing,
            way: Way::default(),
            is_on_long_logs: false,
            timer: None,
        };
        (waiting, receiver)
    }

    pub(super) fn and_then(mut self, and_then: AndThen) -> Waiting {
        self.and_then = and_then;
        self
    }

    /// No later than this.
    pub(super) fn by(mut self, deadline: Instant) -> Waiting {
        if deadline < self.deadline {
            self.within = self.within.saturating_sub(self.deadline - deadline);
            self.deadline = deadline;
        }
        self
    }

    /// The work of the server in the worst case, in checks of a window or a bucket.
    pub(super) fn weight(&self) -> usize {
        match self.is_on_long_logs {
            true => self.request.weight_on_long_logs(),
            false => self.request.weight(),
        }
    }

    /// Whether it waits in the lane of slow requests.
    pub(super) fn is_slow(&self) -> bool {
        self.request.is_slow() || (self.is_on_long_logs && self.request.is_slow_on_long_logs())
    }

    pub(super) fn is_told(&self) -> bool {
        self.answer.is_none()
    }

    /// Whether somebody is still there to be told.
    pub(super) fn is_awaited(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| !answer.is_closed())
    }

    /// Whether its charge is refunded unless the caller reads the answer.
    pub(super) fn is_refundable(&self) -> bool {
        matches!(self.and_then, AndThen::RefundUnlessTold(_))
    }

    /// Takes back a request that was not sent and whose charge would be refunded at once. Returns whether it did.
    pub(super) fn withdraw_if_dropped(&mut self) -> bool {
        let is_dropped = self.is_refundable() && !self.is_awaited();
        if is_dropped {
            self.answer = None;
        }
        is_dropped
    }

    /// How it is carried out.
    pub(super) fn call(&self) -> Call {
        let (at_us, deadline) = (self.request.at_us(), self.within);
        Call { at_us, deadline, on_failure: self.on_failure }
    }

    /// Counts that no server decided it.
    fn count_failure(&self, error: &StoreError) {
        let is_degraded = self.request.is_decision() && self.on_failure != OnFailure::Closed;
        self.shared.count_failure(error, is_degraded);
    }

    /// Tells that no server decided it.
    pub(super) fn fail(&mut self, error: StoreError) {
        let Some(answer) = self.answer.take() else { return };
        // It may have been done all the same.
        if let Request::Refund { charge, .. } | Request::Reset { charge } = &self.request {
            self.shared.denials.forget(&charge.key, self.shared.clock.now_us());
        }
        // Nobody may be left to tell.
        self.count_failure(&error);
        let _ = answer.send(Err(error));
        if let AndThen::Wake(wake) = &self.and_then {
            wake();
        }
    }

    pub(super) fn deliver(mut self, reply: Result<Reply, StoreError>) {
        match &reply {
            Ok(_) => self.shared.answered(),
            // One that was told already was counted then.
            Err(error) if !self.is_told() => self.count_failure(error),
            Err(_) => {}
        }
        let undelivered = match self.answer.take() {
            Some(answer) => answer.send(reply).err(),
            None => Some(reply),
        };
        match (mem::take(&mut self.and_then), undelivered) {
            (AndThen::Wake(wake), _) => wake(),
            (AndThen::RefundUnlessTold(refund), Some(Ok(undelivered))) => {
                refund.owe(undelivered);
            }
            _ => {}
        }
    }
}

impl Drop for Waiting {
    /// Whoever was to send it, or to read the answer, is gone.
    fn drop(&mut self) {
        self.fail(StoreError::Gone);
    }
}

/// A charge that is refunded if its answer is dropped. The request and its answer share this; when both have dropped it,
/// the charge is known to have been read, or is refunded.
pub(crate) struct Refund {
    servers: Arc<Servers>,
    charge: Charge,
    at_us: Option<u64>,
    wake: Wake,
    /// Where the charge is, once its answer was dropped.
    owed: OnceLock<Place>,
    /// The number of the check, if the order of refunds matters.
    number: Option<u64>,
}

/// A refund, and how to wake the waiters for its units.
pub(super) type OwedRefund = (Request, Wake);

impl Refund {
    pub(super) fn new(
        servers: &Arc<Servers>,
        charge: &Charge,
        at_us: Option<u64>,
        wake: Wake,
    ) -> Refund {
        let is_ordered = match charge.limit() {
            Limit::TokenBucket(_) => true,
            // A place in a shaping bucket comes back only if it is the last.
            Limit::LeakyBucket(bucket) => bucket.mode() == Mode::Policing,
            _ => false,
        };
        let order = &servers.shared().refund_order;
        let number = is_ordered.then(|| order.begin(&charge.key));
        let (servers, charge, owed) = (Arc::clone(servers), charge.clone(), OnceLock::new());
        Refund { servers, charge, at_us, wake, owed, number }
    }

    /// Notes that the charge of an answer must be refunded, because the answer was dropped.
    pub(super) fn owe(&self, dropped: Reply) {
        let Reply::Checked(decision) = dropped else { return };
        if let Some(receipt) = decision.into_receipt() {
            // OK because there is one answer.
            let _ = self.owed.set(receipt.place());
        }
    }
}

impl Drop for Refund {
    fn drop(&mut self) {
        let Refund { servers, charge, at_us, wake, owed, number } = self;
        let owed = owed.take().map(|place| {
            let refund = Request::Refund { charge: charge.clone(), place, at_us: *at_us };
            (place, (refund, Arc::clone(wake)))
        });
        let send = |(refund, wake)| servers.give_back(refund, AndThen::Wake(wake));
        match (number, owed) {
            (Some(number), owed) => {
                let owed = owed.map(|(place, refund)| (units_before(place), refund));
                servers.shared().refund_order.end(&charge.key, *number, owed, send);
            }
            (None, Some((_, refund))) => send(refund),
            (None, None) => {}
        }
    }
}

/// The units that were charged to a bucket up to a place. They are counted round 2^53: there the order is wrong once.
fn units_before(place: Place) -> u64 {
    match place {
        Place::Bucket { charged, .. } => charged,
        // A key that is still under a window or a log, whose refunds have no order.
        Place::Window { .. } | Place::Entry { .. } => 0,
    }
}
