//! A request that waits for its answer. Only the code in this file answers callers.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tollgate_limiter::store::{Call, Wake};
use tollgate_limiter::{OnFailure, StoreError};

use super::executor::Timer;
use super::refunds::UnreadUnits;
use super::shared::StoreContext;
use super::wire::{Reply, StoreRequest};

/// The deadline of a refund that no caller waits for. It is longer than that of checks, because under load such a
/// refund may wait longer in the queue.
pub(super) const REFUND_DEADLINE: Duration = Duration::from_secs(5);

/// A request that waits for its answer.
///
/// Only this type holds the sender of the answer, so the caller gets exactly one answer, from whichever of these comes
/// first:
///
/// - [`reply`](Self::reply): a server replied.
/// - [`fail`](Self::fail): no server will decide it.
/// - [`fail_in_place`](Self::fail_in_place): its deadline passed while a server had it. The request is kept, because its
///   reply may still come.
/// - [`withdraw`](Self::withdraw): it was not sent, and its caller no longer waits.
/// - `Drop`, the last resort: the task that held the request has ended. The answer is [`StoreError::Gone`].
///
/// It also handles the consequences of an answer: it counts failures, remembers or forgets refusals, wakes the waiters for
/// units, and refunds a charge whose answer the caller cannot read. A reply that comes after the answer has the same
/// consequences, except that it is not counted again.
pub(super) struct WaitingRequest {
    pub(super) request: StoreRequest,
    /// `None` once it was answered.
    answer: Option<oneshot::Sender<Result<Reply, StoreError>>>,
    shared: Arc<StoreContext>,
    /// When the request was made, by the shared clock.
    since_us: u64,
    /// The whole time for the request, from its creation to its deadline.
    pub(super) within: Duration,
    pub(super) deadline: Instant,
    /// When the request was last put in a queue.
    pub(super) queued: Instant,
    on_failure: OnFailure,
    follow_up: FollowUp,
    pub(super) route: Route,
    /// Whether a call left the request for later: its states are long logs, whatever the limits say.
    pub(super) is_on_long_logs: bool,
    /// Fails the request at its deadline while it is in a queue. Only set if the requests ahead have later deadlines.
    pub(super) timer: Option<Timer>,
}

/// How a request goes through a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) slot: u16,
    /// Whether the request is sent in a call of its own. Its slot is being moved, so keys of the slot may be on two servers.
    pub(super) is_alone: bool,
    /// Whether `ASKING` is sent before the request, because the server does not own the slot yet.
    pub(super) is_asking: bool,
    /// How often the request was redirected.
    pub(super) hops: u8,
}

/// The action that follows the answer to a request.
#[derive(Clone, Default)]
pub(super) enum FollowUp {
    #[default]
    Nothing,
    /// Wakes the waiters for units: they may be back.
    Wake(Wake),
    /// Gives the units back if the caller cannot read the reply.
    GiveBackUnlessRead(UnreadUnits),
}

impl FollowUp {
    /// Returns the follow-up that gives these units back, if there are any, unless the caller reads the reply.
    pub(super) fn giving_back(unread: &Option<UnreadUnits>) -> FollowUp {
        match unread {
            Some(unread) => FollowUp::GiveBackUnlessRead(unread.clone()),
            None => FollowUp::Nothing,
        }
    }
}

/// The caller's end of the answer.
pub(super) type Receiver = oneshot::Receiver<Result<Reply, StoreError>>;

impl WaitingRequest {
    /// Returns a request and the receiver of its answer.
    pub(super) fn new(
        shared: &Arc<StoreContext>,
        request: StoreRequest,
        call: &Call,
    ) -> (WaitingRequest, Receiver) {
        let Call { deadline: within, on_failure, .. } = *call;
        let (answer, receiver) = oneshot::channel();
        let now = Instant::now();
        let waiting = WaitingRequest {
            request,
            answer: Some(answer),
            shared: Arc::clone(shared),
            since_us: shared.clock.now_us(),
            within,
            deadline: now + within,
            queued: now,
            on_failure,
            follow_up: FollowUp::Nothing,
            route: Route::default(),
            is_on_long_logs: false,
            timer: None,
        };
        (waiting, receiver)
    }

    pub(super) fn follow_up(mut self, follow_up: FollowUp) -> WaitingRequest {
        self.follow_up = follow_up;
        self
    }

    /// Sets the deadline to this one, if it is earlier.
    pub(super) fn no_later_than(mut self, deadline: Instant) -> WaitingRequest {
        if deadline < self.deadline {
            self.within = self.within.saturating_sub(self.deadline - deadline);
            self.deadline = deadline;
        }
        self
    }

    /// Returns the server's work in the worst case, in checks of a window or a bucket.
    pub(super) fn weight(&self) -> usize {
        match self.is_on_long_logs {
            true => self.request.weight_on_long_logs(),
            false => self.request.weight(),
        }
    }

    /// Whether the request waits in the lane of slow requests.
    pub(super) fn is_slow(&self) -> bool {
        self.request.is_slow() || (self.is_on_long_logs && self.request.is_slow_on_long_logs())
    }

    /// Whether the caller has its answer.
    pub(super) fn is_answered(&self) -> bool {
        self.answer.is_none()
    }

    /// Whether the caller still waits for the answer.
    pub(super) fn is_awaited(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| !answer.is_closed())
    }

    /// Whether its units are given back unless the caller reads the answer.
    pub(super) fn is_refundable(&self) -> bool {
        matches!(self.follow_up, FollowUp::GiveBackUnlessRead(_))
    }

    /// Whether its units would be given back at once, because the caller no longer waits.
    pub(super) fn is_abandoned(&self) -> bool {
        self.is_refundable() && !self.is_awaited()
    }

    /// Returns the follow-up of a part of this request that is sent by itself: it gives the part's holds back unless its reply
    /// is read.
    pub(super) fn follow_up_of_parts(&self, parts: &[usize]) -> FollowUp {
        match &self.follow_up {
            FollowUp::GiveBackUnlessRead(UnreadUnits::Holds(holds)) => {
                let own = UnreadUnits::Holds(Arc::new(holds.of_parts(parts)));
                FollowUp::GiveBackUnlessRead(own)
            }
            _ => FollowUp::Nothing,
        }
    }

    /// Returns the time, the deadline and the failure policy that it was made with.
    pub(super) fn call(&self) -> Call {
        let (at_us, deadline) = (self.request.at_us(), self.within);
        Call { at_us, deadline, on_failure: self.on_failure }
    }

    /// Answers with a server's reply, unless it is answered already.
    pub(super) fn reply(mut self, reply: Result<Reply, StoreError>) {
        self.update_denials(reply.as_ref().ok());
        match &reply {
            Ok(_) => self.shared.note_answer(),
            // A request that was answered already was counted then.
            Err(error) if !self.is_answered() => self.count_failure(error),
            Err(_) => {}
        }
        let unread = match self.answer.take() {
            Some(answer) => answer.send(reply).err(),
            None => Some(reply),
        };
        match (mem::take(&mut self.follow_up), unread) {
            (FollowUp::Wake(wake), _) => wake(),
            (FollowUp::GiveBackUnlessRead(units), Some(Ok(unread))) => units.give_back(unread),
            _ => {}
        }
    }

    /// Answers with an error, because no server decided the request, unless it is answered already.
    pub(super) fn fail(mut self, error: StoreError) {
        self.fail_in_place(error);
    }

    /// Answers with an error, because no server decided the request in time, unless it is answered already. The request
    /// stays in its call, so that a late reply to it can be [read](Self::reply).
    pub(super) fn fail_in_place(&mut self, error: StoreError) {
        let Some(answer) = self.answer.take() else { return };
        self.update_denials(None);
        self.count_failure(&error);
        // It fails if the caller has dropped the receiver.
        let _ = answer.send(Err(error));
        if let FollowUp::Wake(wake) = &self.follow_up {
            wake();
        }
    }

    /// Ends the request without an answer: it was not sent, and its caller no longer waits.
    pub(super) fn withdraw(mut self) {
        self.answer = None;
    }

    /// Updates the deny cache. Remembers a refusal. Forgets the refusal of a key to which units were given back, also if the
    /// refund or reset failed, because the server may have given the units back all the same.
    fn update_denials(&self, reply: Option<&Reply>) {
        let StoreContext { denials, clock, .. } = &*self.shared;
        match (&self.request, reply) {
            (StoreRequest::Check { charge, at_us: None }, Some(Reply::Decision(decision)))
                if !decision.is_allowed()
                    && !decision.is_beside_holds()
                    && charge.demand().request.max_wait_us.is_none() =>
            {
                denials.remember(charge.denial_query(), self.since_us, *decision.decided());
            }
            (StoreRequest::Refund { charge, .. } | StoreRequest::Reset { charge }, _) => {
                denials.forget(&charge.key, clock.now_us());
            }
            (StoreRequest::Settle { charges, .. }, _) => {
                charges.iter().for_each(|charge| denials.forget(&charge.key, clock.now_us()));
            }
            _ => {}
        }
    }

    /// Counts that no server decided the request.
    fn count_failure(&self, error: &StoreError) {
        let is_degraded = self.request.is_decision() && self.on_failure != OnFailure::Closed;
        self.shared.count_failure(error, is_degraded);
    }
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        self.fail_in_place(StoreError::Gone);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
