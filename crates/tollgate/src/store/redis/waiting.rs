//! A request on its way through the servers, and whom to tell.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::executor::Timer;
use super::refunds::UnreadCharge;
use super::shared::Shared;
use super::wire::{Reply, Request};
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
    RefundUnlessRead(Arc<UnreadCharge>),
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
        matches!(self.and_then, AndThen::RefundUnlessRead(_))
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
            (AndThen::RefundUnlessRead(charge), Some(Ok(unread))) => {
                charge.refund(unread);
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
