//! One server: its connection, its breaker, and the requests that share its round trips.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::{MutexGuard, watch};
use tokio::time::{Instant, timeout_at};

use super::batcher::{Batcher, Full, Next};
use super::breaker::{self, Breaker, Outcome};
use super::cluster::Cluster;
use super::script::{Abilities, Sent};
use super::shared::Shared;
use super::slots::Redirect;
use super::target::Target;
use super::waiting::Waiting;
use super::wire::{Answers, Arguments, Reply, Request};
use crate::error::StoreError;
use crate::health::{BreakerState, ServerHealth};

/// The most charges that wait for one server: at 200,000 a second, a third of a second's worth.
const MAX_WAITING: usize = 65_536;

/// After so long without any answer, though one was due, a connection is given up: what is between
/// it and the server may have forgotten it.
const SILENCE: Duration = Duration::from_secs(1);

/// One server.
pub(super) struct Node {
    shared: Arc<Shared>,
    target: Target,
    batcher: Mutex<Batcher<Load>>,
    breaker: Mutex<Breaker>,
    connection: Mutex<Connection>,
    /// Whose turn it is to send.
    turn: tokio::sync::Mutex<()>,
    /// The cluster that it is a part of, if it is.
    cluster: Option<Weak<Cluster>>,
}

/// The connection, if there is one.
#[derive(Default)]
struct Connection {
    open: Option<MultiplexedConnection>,
    /// How many there were.
    generation: u64,
    /// The scripts that were sent on it.
    scripts: Sent,
    /// What comes of the one that is being opened.
    opening: Option<watch::Receiver<Option<Result<(), StoreError>>>>,
    /// Since when answers are due, and none has come.
    silent_since: Option<Instant>,
    /// What went wrong last.
    failure: Option<StoreError>,
}

/// What goes in one batch.
#[allow(clippy::large_enum_variant, reason = "nearly all are of one")]
pub(super) enum Load {
    One(Waiting),
    /// In this order.
    Many(Vec<Waiting>),
}

/// Requests that one run of the script decides.
struct Call {
    members: Vec<Waiting>,
}

/// Requests, and what each of them is told.
struct Decided {
    members: Vec<Waiting>,
    replies: Vec<Result<Reply, StoreError>>,
}

impl Node {
    pub(super) fn new(
        shared: &Arc<Shared>,
        target: Target,
        cluster: Option<Weak<Cluster>>,
    ) -> Arc<Node> {
        // Nodes that find each other failing should not ask again in step.
        let seed = shared.clock.now_us();
        Arc::new(Node {
            shared: Arc::clone(shared),
            target,
            batcher: Mutex::new(Batcher::new(MAX_WAITING)),
            breaker: Mutex::new(Breaker::new(seed)),
            connection: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            cluster,
        })
    }

    /// Sends requests with the next batch. They are on their way whatever becomes of their receivers.
    pub(super) fn put(self: &Arc<Self>, load: Load) {
        let is_open = self.breaker.lock().is_open(self.shared.clock.now_us());
        if let Some(left_us) = is_open {
            return self.not_sent(flat([load]), &self.breaker_open(left_us));
        }
        let weight = load.weight();
        let hurried = load.hurried(self.shared.deadline);
        let (next, number) = {
            let mut batcher = self.batcher.lock();
            (batcher.put(load, weight), batcher.newest())
        };
        match next {
            Ok(Next::Wait) => {}
            Ok(Next::Send) => self.shared.spawn(Sender::new(self).send_all()),
            Err(Full { request, waiting }) => {
                return fail(flat([request]), &StoreError::Overloaded { waiting });
            }
        }
        if let Some(deadline) = hurried {
            self.shared.spawn(Arc::clone(self).tell_in_time(number, deadline));
        }
    }

    /// Tells one that has less time than a batch before it may take.
    async fn tell_in_time(self: Arc<Self>, number: u64, deadline: Instant) {
        tokio::time::sleep_until(deadline).await;
        let over = self.batcher.lock().remove(number);
        flat(over).for_each(|waiting| self.time_out(waiting));
    }

    fn time_out(&self, mut waiting: Waiting) {
        let error = self.timeout(waiting.within);
        waiting.fail(error);
    }

    /// Sends the next batch and tells the answers; whether there was one.
    async fn send(self: &Arc<Self>) -> bool {
        // Until it is on its way: so requests reach the server in the order they were made.
        let turn = self.turn.lock().await;
        let batch = self.batcher.lock().take();
        if batch.is_empty() {
            return false;
        }
        let now = Instant::now();
        // One that has hardly any time left would be charged for nothing.
        let is_late = |waiting: &Waiting| {
            waiting.deadline <= now + waiting.within.min(self.shared.deadline) / 8
        };
        let (late, batch): (Vec<_>, Vec<_>) = flat(batch).partition(is_late);
        self.were_late(late);
        if batch.is_empty() {
            return true;
        }
        let admitted = self.breaker.lock().admit(self.shared.clock.now_us());
        let ticket = match admitted {
            Ok(ticket) => ticket,
            Err(left_us) => {
                self.not_sent(batch, &self.breaker_open(left_us));
                return true;
            }
        };
        let (outcome, decided) = self.decide(self.calls(batch), turn).await;
        self.breaker.lock().report(ticket, outcome, self.shared.clock.now_us());
        // Only now: one who was told, and asks again at once, must not find the breaker still open.
        decided.into_iter().for_each(|decided| self.tell(decided));
        true
    }

    /// Those that had as long as any waited for others; some had less from the start.
    fn were_late(&self, late: Vec<Waiting>) {
        let (hurried, late): (Vec<_>, Vec<_>) =
            late.into_iter().partition(|waiting| waiting.within < self.shared.deadline);
        hurried.into_iter().for_each(|waiting| self.time_out(waiting));
        if !late.is_empty() {
            let waiting = self.batcher.lock().weight() + late.len();
            fail(late, &StoreError::Overloaded { waiting });
        }
    }

    /// One for all; in a cluster, where a script has the keys of one slot, one for each.
    fn calls(&self, batch: Vec<Waiting>) -> Vec<Call> {
        if self.cluster.is_none() {
            return vec![Call { members: batch }];
        }
        let mut calls: Vec<Call> = Vec::new();
        for waiting in batch {
            let way = waiting.way;
            let same = |call: &&mut Call| call.members[0].way == way && !way.is_alone;
            match calls.iter_mut().rev().find(same) {
                Some(call) => call.members.push(waiting),
                None => calls.push(Call { members: vec![waiting] }),
            }
        }
        calls
    }

    /// Has the calls decided, and tells in time those that are not; the others are left to be told.
    async fn decide(
        self: &Arc<Self>,
        mut calls: Vec<Call>,
        turn: MutexGuard<'_, ()>,
    ) -> (Outcome, Vec<Decided>) {
        let until = Instant::now() + self.shared.deadline;
        let opening = self.connection();
        let (open, generation) = match self.in_time(&mut calls, until, pin!(opening)).await {
            Some(Ok(connection)) => connection,
            Some(Err(error)) => {
                self.connection.lock().failure = Some(error.clone());
                self.not_sent(flat_calls(calls), &error);
                return (Outcome::Failed, Vec::new());
            }
            None => return (self.was_too_slow(), Vec::new()),
        };
        self.target.refresh_if_old(self);
        let sent = Instant::now();
        let until = sent + self.shared.deadline;
        let mut outcome = Outcome::Answered;
        let mut turn = Some(turn);
        let mut is_told_in_full = false;
        while !calls.is_empty() {
            let commands = self.commands(&calls, generation, is_told_in_full);
            let reply = {
                let mut asking = pin!(commands.send(open.clone()));
                // Once it has been polled, it is on its way.
                let polled = poll_fn(|context| Poll::Ready(asking.as_mut().poll(context))).await;
                drop(turn.take());
                match polled {
                    Poll::Ready(reply) => Some(reply),
                    Poll::Pending => self.in_time(&mut calls, until, asking).await,
                }
            };
            let values = match reply {
                Some(Ok(values)) => values,
                Some(Err(error)) => {
                    let error = self.failed(&error, generation);
                    self.is_failing(&error);
                    fail(flat_calls(calls), &error);
                    return (Outcome::Failed, Vec::new());
                }
                None => {
                    self.connection.lock().was_silent(generation, sent);
                    return (self.was_too_slow(), Vec::new());
                }
            };
            self.connection.lock().silent_since = None;
            let (decided, unknown) = self.read(calls, values, &mut outcome);
            if unknown.is_empty() {
                return (outcome, decided);
            }
            decided.into_iter().for_each(|decided| self.tell(decided));
            // A script was flushed, or this is another server than a moment ago: normal, once.
            if is_told_in_full {
                let error = StoreError::refused("NOSCRIPT, though it was sent the script");
                fail(flat_calls(unknown), &error);
                return (outcome, Vec::new());
            }
            (calls, is_told_in_full) = (unknown, true);
        }
        (outcome, Vec::new())
    }

    /// Waits for what is to come, and tells those whose own time is over before; at last all.
    async fn in_time<F: Future>(
        &self,
        calls: &mut [Call],
        until: Instant,
        mut coming: Pin<&mut F>,
    ) -> Option<F::Output> {
        loop {
            let waiting = calls.iter().flat_map(|call| &call.members);
            let deadlines = waiting.filter(|waiting| !waiting.is_told()).map(|it| it.deadline);
            let next = deadlines.min().unwrap_or(until).min(until);
            if let Ok(come) = timeout_at(next, coming.as_mut()).await {
                return Some(come);
            }
            for waiting in calls.iter_mut().flat_map(|call| &mut call.members) {
                if next == until || waiting.deadline <= next {
                    waiting.fail(self.timeout(waiting.within));
                }
            }
            if next == until {
                return None;
            }
        }
    }

    /// Reads what came of each call, and tells those that failed; and the calls whose script the server
    /// did not know.
    fn read(
        self: &Arc<Self>,
        calls: Vec<Call>,
        values: Vec<Value>,
        outcome: &mut Outcome,
    ) -> (Vec<Decided>, Vec<Call>) {
        let mut values = values.into_iter();
        let mut decided = Vec::with_capacity(calls.len());
        let mut unknown = Vec::new();
        for call in calls {
            if call.is_asking() {
                // That the server took note.
                values.next();
            }
            let answers = values.next().unwrap_or(Value::Nil).extract_error();
            let answers = match answers {
                Ok(value) => Answers::of(value),
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    unknown.push(call);
                    continue;
                }
                Err(error) => match self.redirect(&error) {
                    Some((cluster, redirect)) => {
                        cluster.redirect(self, call.members, redirect);
                        continue;
                    }
                    None => Err(self.error(&error)),
                },
            };
            match answers {
                Ok(answers) => decided.push(self.read_call(call, answers, outcome)),
                Err(error) => {
                    *outcome = Outcome::Failed;
                    self.may_be_elsewhere(&error);
                    self.is_failing(&error);
                    fail(call.members, &error);
                }
            }
        }
        (decided, unknown)
    }

    fn read_call(&self, call: Call, mut answers: Answers, outcome: &mut Outcome) -> Decided {
        let members = call.members;
        let replies: Vec<_> =
            members.iter().map(|waiting| answers.next(&waiting.request)).collect();
        for error in replies.iter().filter_map(|reply| reply.as_ref().err()) {
            if self.may_be_elsewhere(error) {
                *outcome = Outcome::Failed;
                self.is_failing(error);
            }
        }
        Decided { members, replies }
    }

    fn tell(&self, decided: Decided) {
        for (waiting, reply) in decided.members.into_iter().zip(decided.replies) {
            self.note(&waiting, &reply);
            waiting.deliver(reply);
        }
    }

    /// Remembers a refusal; forgets it when units came back.
    fn note(&self, waiting: &Waiting, reply: &Result<Reply, StoreError>) {
        let Shared { denials, clock, .. } = &*self.shared;
        match (&waiting.request, reply) {
            (Request::Check { charge, at_us: None }, Ok(Reply::Checked(checked, _)))
                if !checked.decision.is_allowed() && charge.ask.max_wait_us.is_none() =>
            {
                let cost = charge.ask.cost.units();
                denials.remember(&charge.key, cost, waiting.since_us, checked.decision);
            }
            (Request::Refund { charge, .. } | Request::Reset { charge }, _) => {
                denials.forget(&charge.key, clock.now_us());
            }
            _ => {}
        }
    }

    /// A server that has become a replica: the next connection may find the primary.
    fn may_be_elsewhere(&self, error: &StoreError) -> bool {
        let is_replica =
            matches!(error, StoreError::Refused { problem } if problem.contains("READONLY"));
        if is_replica {
            self.connection.lock().open = None;
        }
        is_replica
    }

    fn was_too_slow(&self) -> Outcome {
        self.is_failing(&self.timeout(self.shared.deadline));
        Outcome::Slow
    }

    /// Somebody else in the cluster may have its keys by now.
    fn is_failing(&self, error: &StoreError) {
        self.connection.lock().failure = Some(error.clone());
        if let Some(cluster) = self.cluster.as_ref().and_then(Weak::upgrade) {
            cluster.is_failing();
        }
    }

    /// Where else it sends requests.
    fn redirect(&self, error: &RedisError) -> Option<(Arc<Cluster>, Redirect)> {
        let cluster = self.cluster.as_ref()?.upgrade()?;
        let redirect = Redirect::of(error, self.target.address()?)?;
        Some((cluster, redirect))
    }

    /// Nothing of these was sent. In a cluster somebody else may have the keys by now.
    fn not_sent(self: &Arc<Self>, waiting: impl IntoIterator<Item = Waiting>, error: &StoreError) {
        match self.cluster.as_ref().and_then(Weak::upgrade) {
            Some(cluster) => cluster.not_sent(self, waiting, error),
            None => fail(waiting, error),
        }
    }

    fn commands(&self, calls: &[Call], generation: u64, is_told_in_full: bool) -> Commands {
        let command = |call: &Call| {
            let arguments = Arguments::of(call.members.iter().map(|waiting| &waiting.request));
            let script = arguments.abilities.script();
            // The first time on a connection with its text, which the server may not know yet.
            let is_known = !is_told_in_full
                && self.connection.lock().has_script(generation, arguments.abilities);
            match is_known {
                true => arguments.command("EVALSHA", &script.hash),
                false => arguments.command("EVAL", &script.text),
            }
        };
        if let ([call], true) = (calls, self.cluster.is_none()) {
            return Commands::One(command(call));
        }
        let mut pipeline = Pipeline::with_capacity(calls.len());
        let mut count = 0;
        for call in calls {
            if call.is_asking() {
                pipeline.add_command(redis::cmd("ASKING"));
                count += 1;
            }
            pipeline.add_command(command(call));
            count += 1;
        }
        Commands::Many(pipeline, count)
    }

    /// The connection, and which one it is; opened if there is none.
    async fn connection(self: &Arc<Self>) -> Result<(MultiplexedConnection, u64), StoreError> {
        loop {
            let mut opening = {
                let mut connection = self.connection.lock();
                if let Some(open) = &connection.open {
                    return Ok((open.clone(), connection.generation));
                }
                connection.opening.get_or_insert_with(|| self.open()).clone()
            };
            match opening.wait_for(Option::is_some).await.map(|opened| opened.clone()) {
                Ok(Some(Err(error))) => return Err(error),
                // It may have broken again meanwhile.
                Ok(_) => {}
                Err(_) => return Err(StoreError::Gone),
            }
        }
    }

    /// Opens a connection, for whoever waits for it then: that may take longer than they have.
    fn open(self: &Arc<Self>) -> watch::Receiver<Option<Result<(), StoreError>>> {
        let (told, opening) = watch::channel(None);
        let node = Arc::clone(self);
        self.shared.spawn(async move {
            let opened = node.target.open().await;
            let mut connection = node.connection.lock();
            connection.opening = None;
            let outcome = opened.map(|open| connection.replace(open));
            drop(connection);
            // Nobody may be left to tell.
            let _ = told.send(Some(outcome));
        });
        opening
    }

    /// Uses another connection from the next batch on.
    pub(super) fn replace(&self, open: MultiplexedConnection) {
        self.connection.lock().replace(open);
    }

    /// What an error comes to; a connection that broke is not used again.
    fn failed(&self, error: &RedisError, generation: u64) -> StoreError {
        if error.is_unrecoverable_error() {
            let mut connection = self.connection.lock();
            if connection.generation == generation {
                connection.open = None;
            }
        }
        self.error(error)
    }

    fn error(&self, error: &RedisError) -> StoreError {
        super::target::store_error(error, self.name())
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

    pub(super) fn target(&self) -> &Target {
        &self.target
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
pub(super) fn fail(waiting: impl IntoIterator<Item = Waiting>, error: &StoreError) {
    waiting.into_iter().for_each(|mut waiting| waiting.fail(error.clone()));
}

impl Load {
    fn weight(&self) -> usize {
        match self {
            Load::One(waiting) => waiting.request.weight(),
            Load::Many(all) => all.iter().map(|waiting| waiting.request.weight()).sum(),
        }
    }

    fn first(&self) -> Option<&Waiting> {
        match self {
            Load::One(waiting) => Some(waiting),
            Load::Many(all) => all.first(),
        }
    }

    /// By when it must be told, if that may be before a batch ahead of it comes back; all of a load have
    /// the same time.
    fn hurried(&self, deadline: Duration) -> Option<Instant> {
        self.first().filter(|waiting| waiting.within < deadline).map(|waiting| waiting.deadline)
    }
}

fn flat(batch: impl IntoIterator<Item = Load>) -> impl Iterator<Item = Waiting> {
    batch.into_iter().flat_map(|load| {
        let (one, many) = match load {
            Load::One(one) => (Some(one), Vec::new()),
            Load::Many(many) => (None, many),
        };
        one.into_iter().chain(many)
    })
}

fn flat_calls(calls: Vec<Call>) -> impl Iterator<Item = Waiting> {
    calls.into_iter().flat_map(|call| call.members)
}

impl Call {
    fn is_asking(&self) -> bool {
        self.members.first().is_some_and(|waiting| waiting.way.is_asking)
    }
}

/// What goes to the server in one write.
enum Commands {
    One(Cmd),
    Many(Pipeline, usize),
}

impl Commands {
    async fn send(self, mut open: MultiplexedConnection) -> RedisResult<Vec<Value>> {
        match self {
            Commands::One(command) => {
                open.send_packed_command(&command).await.map(|value| vec![value])
            }
            Commands::Many(pipeline, count) => open.send_packed_commands(&pipeline, 0, count).await,
        }
    }
}

impl Connection {
    /// Whether a script has been sent on it; it is now.
    fn has_script(&mut self, generation: u64, abilities: Abilities) -> bool {
        self.generation == generation && self.scripts.insert(abilities)
    }

    fn replace(&mut self, open: MultiplexedConnection) {
        self.generation += 1;
        self.open = Some(open);
        self.scripts = Sent::default();
        self.silent_since = None;
    }

    /// What was sent then has not been answered in time.
    fn was_silent(&mut self, generation: u64, sent: Instant) {
        if self.generation == generation
            && self.silent_since.get_or_insert(sent).elapsed() > SILENCE
        {
            self.open = None;
        }
    }
}

/// One who sends batches until nothing waits. When it is dropped in the middle, because its runtime
/// ended, nobody waits for it in vain.
struct Sender {
    node: Arc<Node>,
    is_done: bool,
}

impl Sender {
    fn new(node: &Arc<Node>) -> Sender {
        Sender { node: Arc::clone(node), is_done: false }
    }

    async fn send_all(mut self) {
        loop {
            if !self.node.send().await {
                self.is_done = true;
                return;
            }
            // Those who were just told may have more to ask: that goes along.
            tokio::task::yield_now().await;
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        self.node.connection.lock().open = None;
        // Dropped without the lock: that tells those who wait.
        let waiting = self.node.batcher.lock().give_up();
        drop(waiting);
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("server", &self.name()).finish_non_exhaustive()
    }
}
