//! One server: its breaker, its connection, and the requests that share its round trips.
//!
//! - `flight`: one batch on its way to the server and back; `call`: what one script of it decides
//! - `connection`: opened when there is none, given up when it breaks; `sender`: the task that sends batches

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

use super::batcher::{Batcher, Full, Lane, Next, Room};
use super::breaker::{self, Breaker};
use super::fault::Fault;
use super::shared::Shared;
use super::slots::Redirect;
use super::target::Target;
use super::waiting::WaitingRequest;
use crate::error::StoreError;
use crate::health::{BreakerState, ServerHealth};
#[cfg(test)]
pub(super) use call::MAX_CARRIED_OVER;
use connection::Connection;
use sender::Sender;

/// The largest weight of requests that wait for one server: a third of a second's work at 200,000 checks a second. The
/// room for slow requests holds 2,048 refunds from long logs, a second's work. Refunds of callers that gave up wait here
/// as well; if there is no room for such a refund, its units stay spent.
const MAX_WAITING: Room = Room { slow: 65_536, others: 65_536 };

/// By so much one in the queue may be told late, so that not everybody needs a timer.
const SLACK: Duration = Duration::from_millis(1);

/// So long at most a batch holds up the next, and the breaker is not told, because some in it have longer
/// than the limiter's deadline.
const MAX_HOLD: Duration = Duration::from_secs(1);

/// The most batches that some wait for still longer.
const MAX_LINGERING: usize = 1_024;

/// One server.
pub(super) struct Node {
    shared: Arc<Shared>,
    target: Target,
    batcher: Mutex<Batcher<Load>>,
    breaker: Mutex<Breaker>,
    connection: Mutex<Connection>,
    /// Whose turn it is to send.
    turn: tokio::sync::Mutex<()>,
    /// One for each batch that some wait for though it was given up.
    lingering: Arc<Semaphore>,
    /// The cluster that the server is a part of, if any.
    cluster: Option<Weak<dyn Reroute>>,
}

/// What a cluster does with requests that one of its servers did not decide: another server may have the keys.
///
/// The cluster gives this to its nodes, so that a node knows nothing of clusters.
pub(super) trait Reroute: Send + Sync {
    /// Sends requests where a server says that they belong. The server charged nothing.
    fn redirect(&self, from: &Arc<Node>, requests: Vec<WaitingRequest>, redirect: Redirect);

    /// Sends requests that were not sent to the server that has their slot by now. If it is still the same server, they
    /// fail with `error`.
    fn resend(&self, from: &Arc<Node>, requests: Vec<WaitingRequest>, error: &StoreError);

    /// Notes that a server failed: it may have lost its slots.
    fn server_failed(&self);
}

/// What goes in one batch.
#[allow(clippy::large_enum_variant, reason = "nearly all are of one")]
pub(super) enum Load {
    One(WaitingRequest),
    /// In this order.
    Many(Vec<WaitingRequest>),
}

impl Node {
    pub(super) fn new(
        shared: &Arc<Shared>,
        target: Target,
        cluster: Option<Weak<dyn Reroute>>,
    ) -> Arc<Node> {
        // Nodes that find each other failing should not ask again in step.
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

    /// Sends requests with the next batch. They are on their way whatever becomes of their receivers.
    pub(super) fn put(self: &Arc<Self>, mut load: Load) {
        let is_open = self.breaker.lock().is_open(self.shared.clock.now_us());
        if let Some(left_us) = is_open {
            return self.not_sent(flat([load]), &self.breaker_open(left_us));
        }
        let (weight, lane) = (load.weight(), load.lane(self.shared.deadline));
        let next = {
            let mut batcher = self.batcher.lock();
            self.set_timer(&mut load, lane, batcher.newest() + 1);
            batcher.put(load, weight, lane)
        };
        match next {
            Ok(Next::Wait) => {}
            Ok(Next::Send) => self.shared.executor.spawn(Sender::new(self).send_all()),
            Err(Full { request, waiting }) => {
                fail(flat([request]), &StoreError::Overloaded { waiting });
            }
        }
    }

    /// One in a hurry has a timer while it is in the queue, under the number that it will have there.
    fn set_timer(self: &Arc<Self>, load: &mut Load, lane: Lane, number: u64) {
        let hurried = load.hurried_by(self.longest_in(lane));
        if let (Some(deadline), Some(first)) = (hurried, load.first_mut()) {
            let task = Arc::clone(self).tell_in_time(number, deadline);
            first.timer = self.shared.executor.timer(task);
        }
    }

    /// Tells one that has less time than a batch before it may take.
    async fn tell_in_time(self: Arc<Self>, number: u64, deadline: Instant) {
        tokio::time::sleep_until(deadline).await;
        let over = self.batcher.lock().remove(number);
        self.put_back(flat(over));
    }

    fn time_out(&self, waiting: WaitingRequest) {
        let error = self.timeout(waiting.within);
        waiting.fail(error);
    }

    /// Whether it has hardly any time left.
    fn is_late(&self, waiting: &WaitingRequest, now: Instant) -> bool {
        waiting.deadline <= now + waiting.within.min(self.shared.deadline) / 8
    }

    /// How long one may be in a queue before it is looked at.
    fn longest_in(&self, lane: Lane) -> Duration {
        match lane {
            Lane::Usual => self.shared.deadline,
            Lane::Patient | Lane::Slow => self.shared.deadline.max(MAX_HOLD),
        }
    }

    /// When the time in a queue is over of the one that is there longest.
    fn next_in_queue(&self) -> Option<Instant> {
        let batcher = self.batcher.lock();
        let due = |lane| batcher.front(lane)?.due(self.longest_in(lane));
        Lane::ALL.into_iter().filter_map(due).min()
    }

    /// Removes requests whose queue deadline has passed.
    fn remove_overdue(self: &Arc<Self>, now: Instant) {
        for lane in Lane::ALL {
            let longest = self.longest_in(lane);
            let is_over = |load: &Load| load.due(longest).is_none_or(|due| due <= now);
            let over = self.batcher.lock().take_over(lane, is_over);
            self.put_back(flat(over));
        }
    }

    /// Nothing of these was sent: those that have time left wait again.
    fn put_back(self: &Arc<Self>, waiting: impl Iterator<Item = WaitingRequest>) {
        let now = Instant::now();
        let (late, patient): (Vec<_>, Vec<_>) =
            waiting.partition(|waiting| self.is_late(waiting, now));
        self.were_late(late);
        for mut waiting in patient {
            (waiting.queued, waiting.timer) = (now, None);
            self.put(Load::One(waiting));
        }
    }

    /// Those that had as long as any waited for others; some had less from the start.
    fn were_late(&self, late: Vec<WaitingRequest>) {
        let (hurried, late): (Vec<_>, Vec<_>) =
            late.into_iter().partition(|waiting| waiting.within < self.shared.deadline);
        hurried.into_iter().for_each(|waiting| self.time_out(waiting));
        if !late.is_empty() {
            let waiting = self.batcher.lock().weight() + late.len();
            fail(late, &StoreError::Overloaded { waiting });
        }
    }

    /// Somebody else in the cluster may have its keys by now.
    fn is_failing(&self, error: &StoreError) {
        self.connection.lock().failure = Some(error.clone());
        if let Some(cluster) = self.cluster.as_ref().and_then(Weak::upgrade) {
            cluster.server_failed();
        }
    }

    /// Where else it sends requests.
    fn redirect(&self, error: &RedisError) -> Option<Redirect> {
        self.cluster.as_ref()?;
        Redirect::of(error, self.target.address()?)
    }

    /// Nothing of these was sent. In a cluster somebody else may have the keys by now.
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
        Fault::of_command(error, self.name())
    }

    fn timeout(&self, after: Duration) -> StoreError {
        StoreError::Timeout { server: self.name().to_owned(), after }
    }

    fn breaker_open(&self, left_us: u64) -> StoreError {
        let (server, again_in) = (self.name().to_owned(), Duration::from_micros(left_us));
        let failure = self.connection.lock().failure.as_ref().map(StoreError::to_string);
        StoreError::BreakerOpen { server, again_in, failure: failure.unwrap_or_default() }
    }

    /// Its address, without user and password.
    pub(super) fn name(&self) -> &str {
        self.target.name()
    }

    /// Whether it has not failed lately.
    pub(super) fn is_well(&self) -> bool {
        self.breaker.lock().state(self.shared.clock.now_us()) == breaker::State::Closed
    }

    pub(super) fn health(&self) -> ServerHealth {
        let breaker = match self.breaker.lock().state(self.shared.clock.now_us()) {
            breaker::State::Closed => BreakerState::Closed,
            breaker::State::Open => BreakerState::Open,
            breaker::State::HalfOpen => BreakerState::HalfOpen,
        };
        let waiting = self.batcher.lock().weight();
        ServerHealth { server: self.name().to_owned(), breaker, waiting }
    }
}

/// Tells all that no server decided them.
pub(super) fn fail(waiting: impl IntoIterator<Item = WaitingRequest>, error: &StoreError) {
    waiting.into_iter().for_each(|waiting| waiting.fail(error.clone()));
}

impl Load {
    fn weight(&self) -> usize {
        match self {
            Load::One(waiting) => waiting.weight(),
            Load::Many(all) => all.iter().map(WaitingRequest::weight).sum(),
        }
    }

    fn all(&self) -> &[WaitingRequest] {
        match self {
            Load::One(waiting) => std::slice::from_ref(waiting),
            Load::Many(all) => all,
        }
    }

    fn first_mut(&mut self) -> Option<&mut WaitingRequest> {
        match self {
            Load::One(waiting) => Some(waiting),
            Load::Many(all) => all.first_mut(),
        }
    }

    /// Where it waits, beside others that are over when it is.
    fn lane(&self, deadline: Duration) -> Lane {
        let is_patient = |waiting: &WaitingRequest| waiting.deadline > waiting.queued + deadline;
        match self.all() {
            all if all.iter().any(WaitingRequest::is_slow) => Lane::Slow,
            all if all.iter().all(is_patient) => Lane::Patient,
            _ => Lane::Usual,
        }
    }

    /// When its time in the queue is over, of the first of a load; no longer than the longest there: so
    /// those who came first are over first, save those in a hurry.
    fn due(&self, longest: Duration) -> Option<Instant> {
        self.all().iter().map(|waiting| waiting.deadline.min(waiting.queued + longest)).min()
    }

    /// By when the first in a hurry must be told, which those before it in the queue are not.
    fn hurried_by(&self, longest: Duration) -> Option<Instant> {
        let slack = SLACK.min(longest / 8);
        let is_hurried =
            |waiting: &&WaitingRequest| waiting.deadline + slack < waiting.queued + longest;
        self.all().iter().filter(is_hurried).map(|waiting| waiting.deadline).min()
    }
}

fn flat(batch: impl IntoIterator<Item = Load>) -> impl Iterator<Item = WaitingRequest> {
    batch.into_iter().flat_map(|load| {
        let (one, many) = match load {
            Load::One(one) => (Some(one), Vec::new()),
            Load::Many(many) => (None, many),
        };
        one.into_iter().chain(many)
    })
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("server", &self.name()).finish_non_exhaustive()
    }
}
