//! One server: its breaker, its connection, and the queue of requests for it.
//!
//! - `flight`: one batch on its way to the server and back; `call`: the requests of it that one run of a script decides
//! - `connection`: opened when needed, given up when it breaks; `sender`: the task that sends batches

mod call;
mod connection;
mod flight;
mod sender;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use redis::RedisError;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tollgate_limiter::{BreakerState, ServerHealth, StoreError};

use super::batcher::{Batcher, Lane, NextAction, QueueBounds, QueueFull};
use super::breaker::Breaker;
use super::fault::Fault;
use super::shared::StoreContext;
use super::slots::Redirect;
use super::target::Target;
use super::waiting::WaitingRequest;
#[cfg(test)]
pub(super) use call::MAX_CARRIED_OVER;
use connection::NodeConnection;
use sender::BatchSender;

/// The largest weight of requests that wait for one server: a third of a second's work at 200,000 checks a second. The
/// room for slow requests holds 2,048 refunds from long logs, a second's work. Refunds of callers that gave up wait here
/// as well; if there is no room for such a refund, its units stay spent.
const MAX_WAITING: QueueBounds = QueueBounds { slow: 65_536, others: 65_536 };

/// A queued request may fail up to this long after its deadline. With this tolerance, most requests need no timer of
/// their own.
const SLACK: Duration = Duration::from_millis(1);

/// How long a sender waits at most for the reply to a batch, if a caller's deadline is longer than the limiter's; at least
/// the limiter's deadline. Meanwhile the sender sends no other batch and reports nothing to the breaker.
const MAX_BATCH_WAIT: Duration = Duration::from_secs(1);

/// The most batches whose late replies are waited for.
const MAX_LINGERING: usize = 1_024;

/// One server.
pub(super) struct Node {
    shared: Arc<StoreContext>,
    target: Target,
    batcher: Mutex<Batcher<RequestGroup>>,
    breaker: Mutex<Breaker>,
    connection: Mutex<NodeConnection>,
    /// Held from taking a batch out of the queue until it is sent, so that batches keep their order.
    turn: tokio::sync::Mutex<()>,
    /// A permit for each batch that was given up, and whose late reply is waited for.
    lingering: Arc<Semaphore>,
    /// The cluster that the server is a part of, if any.
    cluster: Option<Weak<dyn Reroute>>,
}

/// A cluster, as its nodes see it: it handles requests that a server did not decide, because another server may have the
/// keys.
///
/// A node knows its cluster only by this trait, so this module does not depend on the module `cluster`.
pub(super) trait Reroute: Send + Sync {
    /// Sends requests to where a server redirects them. That server charged nothing.
    fn redirect(&self, from: &Arc<Node>, requests: Vec<WaitingRequest>, redirect: Redirect);

    /// Handles requests that were not sent: sends them to the server that has their slot by now. If that is still the same
    /// server, they fail with `error`.
    fn resend(&self, from: &Arc<Node>, requests: Vec<WaitingRequest>, error: &StoreError);

    /// Notes that a server failed: it may have lost its slots.
    fn server_failed(&self);
}

/// Requests that go in one batch.
#[allow(clippy::large_enum_variant, reason = "nearly all groups are `One`")]
pub(super) enum RequestGroup {
    One(WaitingRequest),
    /// In this order.
    Many(Vec<WaitingRequest>),
}

impl Node {
    pub(super) fn new(
        shared: &Arc<StoreContext>,
        target: Target,
        cluster: Option<Weak<dyn Reroute>>,
    ) -> Arc<Node> {
        // The seeds of two nodes differ, so that nodes that fail at the same time do not probe at the same times.
        let (seed, deadline_us) = (shared.clock.now_us(), shared.deadline.as_micros());
        let deadline_us = u64::try_from(deadline_us).unwrap_or(u64::MAX);
        Arc::new(Node {
            shared: Arc::clone(shared),
            target,
            batcher: Mutex::new(Batcher::new(MAX_WAITING)),
            breaker: Mutex::new(Breaker::new(seed, deadline_us)),
            connection: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            lingering: Arc::new(Semaphore::new(MAX_LINGERING)),
            cluster,
        })
    }

    /// Sends requests with the next batch. A request is sent even if its receiver is dropped before, unless its charge
    /// would then be refunded.
    pub(super) fn put(self: &Arc<Self>, mut group: RequestGroup) {
        let wait_us = self.breaker.lock().wait_us(self.shared.clock.now_us());
        if let Some(wait_us) = wait_us {
            return self.not_sent(flat([group]), &self.breaker_open(wait_us));
        }
        let (weight, lane) = (group.weight(), group.lane(self.shared.deadline));
        let next = {
            let mut batcher = self.batcher.lock();
            self.set_timer(&mut group, lane, batcher.newest() + 1);
            batcher.put(group, weight, lane)
        };
        match next {
            Ok(NextAction::Wait) => {}
            Ok(NextAction::Send) => self.shared.executor.spawn(BatchSender::new(self).send_all()),
            Err(QueueFull { request, waiting }) => {
                fail(flat([request]), &StoreError::Overloaded { waiting });
            }
        }
    }

    /// Sets a timer for a request whose deadline is earlier than the deadlines of the requests ahead of it. `number` is the
    /// number that the request will have in the queue.
    fn set_timer(self: &Arc<Self>, group: &mut RequestGroup, lane: Lane, number: u64) {
        let deadline = group.timer_deadline(self.max_queue_time(lane));
        if let (Some(deadline), Some(first)) = (deadline, group.first_mut()) {
            let task = Arc::clone(self).remove_at(number, deadline);
            first.timer = self.shared.executor.timer(task);
        }
    }

    /// Removes a request from the queue at its deadline.
    async fn remove_at(self: Arc<Self>, number: u64, deadline: Instant) {
        tokio::time::sleep_until(deadline).await;
        let over = self.batcher.lock().remove(number);
        self.put_back(flat(over));
    }

    fn time_out(&self, waiting: WaitingRequest) {
        let error = self.timeout(waiting.within);
        waiting.fail(error);
    }

    /// Whether a request has too little time left to be sent.
    fn is_late(&self, waiting: &WaitingRequest, now: Instant) -> bool {
        waiting.deadline <= now + waiting.within.min(self.shared.deadline) / 8
    }

    /// Returns the longest time that a request stays in a queue before it fails or is queued again.
    fn max_queue_time(&self, lane: Lane) -> Duration {
        match lane {
            Lane::Usual => self.shared.deadline,
            Lane::LongDeadline | Lane::Slow => self.shared.deadline.max(MAX_BATCH_WAIT),
        }
    }

    /// Returns the earliest queue deadline among the requests at the front of each lane.
    fn next_queue_deadline(&self) -> Option<Instant> {
        let batcher = self.batcher.lock();
        let due = |lane| batcher.front(lane)?.queue_deadline(self.max_queue_time(lane));
        Lane::ALL.into_iter().filter_map(due).min()
    }

    /// Removes requests whose queue deadline has passed.
    fn remove_overdue(self: &Arc<Self>, now: Instant) {
        for lane in Lane::ALL {
            let longest = self.max_queue_time(lane);
            let is_over =
                |group: &RequestGroup| group.queue_deadline(longest).is_none_or(|due| due <= now);
            let over = self.batcher.lock().take_overdue(lane, is_over);
            self.put_back(flat(over));
        }
    }

    /// Queues requests again that were not sent, or fails them if they have too little time left.
    fn put_back(self: &Arc<Self>, waiting: impl Iterator<Item = WaitingRequest>) {
        let now = Instant::now();
        let (late, in_time): (Vec<_>, Vec<_>) =
            waiting.partition(|waiting| self.is_late(waiting, now));
        self.fail_late(late);
        for mut waiting in in_time {
            (waiting.queued, waiting.timer) = (now, None);
            self.put(RequestGroup::One(waiting));
        }
    }

    /// Fails requests that were not sent in time: as overloaded, or as timed out if the caller gave them less than the
    /// limiter's deadline.
    fn fail_late(&self, late: Vec<WaitingRequest>) {
        let (timed_out, late): (Vec<_>, Vec<_>) =
            late.into_iter().partition(|waiting| waiting.within < self.shared.deadline);
        timed_out.into_iter().for_each(|waiting| self.time_out(waiting));
        if !late.is_empty() {
            let late_weight: usize = late.iter().map(WaitingRequest::weight).sum();
            let waiting = self.batcher.lock().weight() + late_weight;
            fail(late, &StoreError::Overloaded { waiting });
        }
    }

    /// Notes a failure. In a cluster, another server may have the keys by now.
    fn note_failure(&self, error: &StoreError) {
        self.connection.lock().failure = Some(error.clone());
        if let Some(cluster) = self.cluster.as_ref().and_then(Weak::upgrade) {
            cluster.server_failed();
        }
    }

    /// Returns where the server redirects a request, if the error is a redirect.
    fn redirect(&self, error: &RedisError) -> Option<Redirect> {
        self.cluster.as_ref()?;
        Redirect::of(error, self.target.address()?)
    }

    /// Handles requests that were not sent: fails them, or in a cluster lets the cluster send them to the server that has
    /// their slot by now.
    fn not_sent(
        self: &Arc<Self>,
        waiting: impl IntoIterator<Item = WaitingRequest>,
        error: &StoreError,
    ) {
        match self.cluster.as_ref().and_then(Weak::upgrade) {
            Some(cluster) => cluster.resend(self, waiting.into_iter().collect(), error),
            None => fail(waiting, error),
        }
    }

    fn fault(&self, error: &RedisError) -> Fault {
        Fault::from_command(error, self.name())
    }

    fn timeout(&self, after: Duration) -> StoreError {
        StoreError::Timeout { server: self.name().to_owned(), after }
    }

    fn breaker_open(&self, left_us: u64) -> StoreError {
        let (server, again_in) = (self.name().to_owned(), Duration::from_micros(left_us));
        let failure = self.connection.lock().failure.as_ref().map(StoreError::to_string);
        StoreError::BreakerOpen { server, again_in, failure: failure.unwrap_or_default() }
    }

    /// Returns the address, without user and password.
    pub(super) fn name(&self) -> &str {
        self.target.name()
    }

    /// Whether the breaker is closed.
    pub(super) fn is_breaker_closed(&self) -> bool {
        self.breaker.lock().state(self.shared.clock.now_us()) == BreakerState::Closed
    }

    pub(super) fn health(&self) -> ServerHealth {
        let breaker = self.breaker.lock().state(self.shared.clock.now_us());
        let waiting = self.batcher.lock().weight();
        ServerHealth::new(self.name(), breaker, waiting)
    }
}

/// Fails requests that no server decides.
pub(super) fn fail(waiting: impl IntoIterator<Item = WaitingRequest>, error: &StoreError) {
    waiting.into_iter().for_each(|waiting| waiting.fail(error.clone()));
}

impl RequestGroup {
    fn weight(&self) -> usize {
        match self {
            RequestGroup::One(waiting) => waiting.weight(),
            RequestGroup::Many(all) => all.iter().map(WaitingRequest::weight).sum(),
        }
    }

    fn all(&self) -> &[WaitingRequest] {
        match self {
            RequestGroup::One(waiting) => std::slice::from_ref(waiting),
            RequestGroup::Many(all) => all,
        }
    }

    fn first_mut(&mut self) -> Option<&mut WaitingRequest> {
        match self {
            RequestGroup::One(waiting) => Some(waiting),
            RequestGroup::Many(all) => all.first_mut(),
        }
    }

    /// Returns the lane for these requests. The requests of a lane have about the same time until their deadlines.
    fn lane(&self, deadline: Duration) -> Lane {
        let has_long_deadline =
            |waiting: &WaitingRequest| waiting.deadline > waiting.queued + deadline;
        match self.all() {
            all if all.iter().any(WaitingRequest::is_slow) => Lane::Slow,
            all if all.iter().all(has_long_deadline) => Lane::LongDeadline,
            _ => Lane::Usual,
        }
    }

    /// Returns the queue deadline: the earliest of its requests, at most `longest` after it was queued. So the front of a
    /// lane has the earliest queue deadline, except for requests with a timer.
    fn queue_deadline(&self, longest: Duration) -> Option<Instant> {
        self.all().iter().map(|waiting| waiting.deadline.min(waiting.queued + longest)).min()
    }

    /// Returns the earliest deadline that needs a timer, because it is before the queue deadlines of the requests ahead.
    fn timer_deadline(&self, longest: Duration) -> Option<Instant> {
        let slack = SLACK.min(longest / 8);
        let needs_timer =
            |waiting: &&WaitingRequest| waiting.deadline + slack < waiting.queued + longest;
        self.all().iter().filter(needs_timer).map(|waiting| waiting.deadline).min()
    }
}

fn flat(batch: impl IntoIterator<Item = RequestGroup>) -> impl Iterator<Item = WaitingRequest> {
    batch.into_iter().flat_map(|group| {
        let (one, many) = match group {
            RequestGroup::One(one) => (Some(one), Vec::new()),
            RequestGroup::Many(many) => (None, many),
        };
        one.into_iter().chain(many)
    })
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("server", &self.name()).finish_non_exhaustive()
    }
}
