//! One server: its connection, and the requests that share its round trips.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::runtime::{Handle, Runtime, RuntimeFlavor};
use tokio::sync::{MutexGuard, oneshot, watch};
use tokio::time::{Instant, timeout_at};
use tollgate_core::{Checked, Decision};

use super::batcher::{Batcher, Full, Next};
use super::denials::Denials;
use super::script::{Abilities, Sent};
use super::wire::{Answers, Arguments, Charge, Reply, Request};
use crate::clock::Clock;
use crate::error::StoreError;

/// The most charges that wait for one server: at 200,000 a second, a third of a second's worth.
const MAX_WAITING: usize = 65_536;

/// How long it may take to open a connection.
const OPENING: Duration = Duration::from_secs(5);

/// After so long without any answer, though one was due, a connection is given up: what is between
/// it and the server may have forgotten it.
const SILENCE: Duration = Duration::from_secs(1);

/// For units that are given back on behalf of nobody: that should not be lost in a rush.
const REFUND_DEADLINE: Duration = Duration::from_secs(5);

/// One server.
pub(super) struct Node {
    client: Client,
    /// Its address, without user and password.
    server: String,
    deadline: Duration,
    runtime: Handle,
    batcher: Mutex<Batcher<Load>>,
    connection: Mutex<Connection>,
    /// Whose turn it is to send.
    turn: tokio::sync::Mutex<()>,
    /// By which refusals are remembered.
    clock: Clock,
    pub(super) denials: Denials,
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
}

/// What goes in one batch.
enum Load {
    One(Waiting),
    /// In this order.
    Many(Vec<Waiting>),
}

/// A request, and whom to tell.
struct Waiting {
    request: Request,
    answer: oneshot::Sender<Result<Reply, StoreError>>,
    /// When it was put in, as the node's clock has it.
    since_us: u64,
    deadline: Instant,
    and_then: AndThen,
}

/// What happens when a request has been answered.
#[derive(Clone, Default)]
pub(crate) enum AndThen {
    #[default]
    Nothing,
    /// Those who wait for units to come back are told.
    Nudge(Nudge),
    /// If nobody is there any more to be told of the charge, it is refunded, and then the same.
    RefundUnlessTold(Nudge),
}

/// Tells those who wait for a key's units.
pub(crate) type Nudge = Arc<dyn Fn() + Send + Sync>;

/// Where an answer will be.
pub(crate) type Receiver = oneshot::Receiver<Result<Reply, StoreError>>;

/// For limiters that are made outside a runtime of several threads: one thread for all of them.
static BACKGROUND: LazyLock<std::io::Result<Runtime>> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("tollgate-redis")
        .enable_all()
        .build()
});

impl Node {
    /// On the runtime that it is made in, or a thread of its own.
    pub(super) fn new(client: Client, deadline: Duration) -> Result<Node, StoreError> {
        let server = client.get_connection_info().addr().to_string();
        let runtime = runtime()
            .map_err(|problem| StoreError::Unreachable { server: server.clone(), problem })?;
        Ok(Node {
            client,
            server,
            deadline,
            runtime,
            batcher: Mutex::new(Batcher::new(MAX_WAITING)),
            connection: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            clock: Clock::system(),
            denials: Denials::new(),
        })
    }

    /// Sends a request with the next batch. It is on its way whatever becomes of the receiver.
    pub(super) fn submit(
        self: &Arc<Self>,
        request: Request,
        and_then: AndThen,
    ) -> Result<Receiver, StoreError> {
        let (waiting, receiver) = self.waiting(request, and_then, self.deadline);
        self.put(Load::One(waiting))?;
        Ok(receiver)
    }

    /// Sends requests together, to be decided in this order.
    pub(super) fn submit_all(
        self: &Arc<Self>,
        requests: Vec<Request>,
    ) -> Result<Vec<Receiver>, StoreError> {
        let waiting = |request| self.waiting(request, AndThen::Nothing, self.deadline);
        let (waiting, receivers) = requests.into_iter().map(waiting).unzip();
        self.put(Load::Many(waiting))?;
        Ok(receivers)
    }

    fn waiting(
        &self,
        request: Request,
        and_then: AndThen,
        within: Duration,
    ) -> (Waiting, Receiver) {
        let (answer, receiver) = oneshot::channel();
        let (since_us, deadline) = (self.clock.now_us(), Instant::now() + within);
        (Waiting { request, answer, since_us, deadline, and_then }, receiver)
    }

    fn put(self: &Arc<Self>, load: Load) -> Result<(), StoreError> {
        let weight = load.weight();
        let next = self.batcher.lock().put(load, weight);
        match next {
            Ok(Next::Wait) => Ok(()),
            Ok(Next::Send) => {
                self.runtime.spawn(Sender::new(self).send_all());
                Ok(())
            }
            Err(Full { waiting }) => Err(StoreError::Overloaded { waiting }),
        }
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// A refusal that is remembered, for a check that asks at the server's time.
    pub(super) fn recall(&self, charge: &Charge) -> Option<Decision> {
        self.denials.recall(&charge.key, charge.ask.cost.units(), self.clock.now_us())
    }

    /// Sends the next batch and tells the answers; whether there was one.
    async fn send(self: &Arc<Self>) -> bool {
        // Until it is on its way: so requests reach the server in the order they were made.
        let turn = self.turn.lock().await;
        let batch = self.batcher.lock().take();
        if batch.is_empty() {
            return false;
        }
        // One that has hardly any time left would be charged for nothing, and take others with it.
        let late = Instant::now() + self.deadline / 8;
        let (batch, late): (Vec<_>, Vec<_>) =
            flat(batch).partition(|waiting| waiting.deadline > late);
        if !late.is_empty() {
            let waiting = self.batcher.lock().weight() + late.len();
            late.into_iter().for_each(|late| late.fail(StoreError::Overloaded { waiting }));
        }
        let Some(deadline) = batch.iter().map(|waiting| waiting.deadline).min() else {
            return true;
        };
        match self.ask(&batch, deadline, turn).await {
            Ok(answers) => self.deliver(batch, answers),
            Err(error) => batch.into_iter().for_each(|waiting| waiting.fail(error.clone())),
        }
        true
    }

    async fn ask(
        self: &Arc<Self>,
        batch: &[Waiting],
        deadline: Instant,
        turn: MutexGuard<'_, ()>,
    ) -> Result<Answers, StoreError> {
        let arguments = Arguments::of(batch.iter().map(|waiting| &waiting.request));
        let script = arguments.abilities.script();
        let connection = self.connection(arguments.abilities, deadline).await?;
        let generation = connection.generation;
        // The first time on this connection with its text, which the server may not know yet.
        let command = match connection.has_script {
            true => arguments.command("EVALSHA", &script.hash),
            false => arguments.command("EVAL", &script.text),
        };
        let mut open = connection.open;
        let sent = Instant::now();
        let mut reply: Result<Result<Value, _>, _> = {
            let mut asking = pin!(timeout_at(deadline, command.query_async(&mut open)));
            let polled = poll_fn(|context| Poll::Ready(asking.as_mut().poll(context))).await;
            drop(turn);
            match polled {
                Poll::Ready(reply) => reply,
                Poll::Pending => asking.await,
            }
        };
        if let Ok(Err(error)) = &reply
            && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
        {
            // It was flushed, or this is another server than a moment ago: normal.
            let command = arguments.command("EVAL", &script.text);
            reply = timeout_at(deadline, command.query_async(&mut open)).await;
        }
        let Ok(value) = reply else {
            self.connection.lock().was_silent(generation, sent);
            return Err(self.timeout());
        };
        self.connection.lock().silent_since = None;
        Answers::of(value.map_err(|error| self.failed(&error, generation))?)
    }

    fn deliver(self: &Arc<Self>, batch: Vec<Waiting>, mut answers: Answers) {
        for waiting in batch {
            let reply = answers.next(&waiting.request);
            self.note(&waiting, &reply);
            waiting.deliver(self, reply);
        }
    }

    /// Remembers a refusal; forgets it when units came back.
    fn note(&self, waiting: &Waiting, reply: &Result<Reply, StoreError>) {
        match (&waiting.request, reply) {
            (Request::Check { charge, at_us: None }, Ok(Reply::Checked(checked)))
                if !checked.decision.is_allowed() && charge.ask.max_wait_us.is_none() =>
            {
                let cost = charge.ask.cost.units();
                self.denials.remember(&charge.key, cost, waiting.since_us, checked.decision);
            }
            (Request::Refund { charge, .. } | Request::Reset { charge }, _) => {
                self.denials.forget(&charge.key, self.clock.now_us());
            }
            _ => {}
        }
    }

    /// The connection, opened if there is none, for a script.
    async fn connection(
        self: &Arc<Self>,
        abilities: Abilities,
        deadline: Instant,
    ) -> Result<Usable, StoreError> {
        loop {
            let mut opening = {
                let mut connection = self.connection.lock();
                if let Some(usable) = connection.for_script(abilities) {
                    return Ok(usable);
                }
                connection.opening.get_or_insert_with(|| self.open()).clone()
            };
            let opened = timeout_at(deadline, opening.wait_for(Option::is_some)).await;
            match opened.map_err(|_| self.timeout())?.map(|opened| opened.clone()) {
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
        self.spawn(async move {
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(OPENING))
                .set_response_timeout(None);
            let connect = node.client.get_multiplexed_async_connection_with_config(&config);
            let opened = tokio::time::timeout(OPENING, connect).await;
            let opened = match opened {
                Ok(opened) => opened.map_err(|error| node.opening_error(&error)),
                Err(_) => Err(StoreError::unreachable(&node.server, "it does not answer")),
            };
            let mut connection = node.connection.lock();
            connection.opening = None;
            let outcome = opened.map(|open| connection.replace(open));
            drop(connection);
            // Nobody may be left to tell.
            let _ = told.send(Some(outcome));
        });
        opening
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
        match error.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => {
                let code = error.code().unwrap_or(error.category());
                StoreError::refused(&format!("{code} {}", error.detail().unwrap_or_default()))
            }
            _ => StoreError::unreachable(&self.server, &error.to_string()),
        }
    }

    /// What goes wrong before there is a connection: what the server says then may repeat the password.
    fn opening_error(&self, error: &RedisError) -> StoreError {
        match error.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed
                if self.repeats_password(error) =>
            {
                StoreError::refused(error.code().unwrap_or(error.category()))
            }
            _ => self.error(error),
        }
    }

    fn repeats_password(&self, error: &RedisError) -> bool {
        let password = self.client.get_connection_info().redis_settings().password();
        let said = error.detail().unwrap_or_default();
        password.is_some_and(|password| said.contains(password))
    }

    fn timeout(&self) -> StoreError {
        StoreError::Timeout { server: self.server.clone(), after: self.deadline }
    }
}

/// The current one, unless it is of a single thread: that may stand still while others wait.
fn runtime() -> Result<Handle, String> {
    match Handle::try_current() {
        Ok(current) if current.runtime_flavor() != RuntimeFlavor::CurrentThread => Ok(current),
        _ => match &*BACKGROUND {
            Ok(background) => Ok(background.handle().clone()),
            Err(error) => Err(error.to_string()),
        },
    }
}

impl Waiting {
    fn fail(self, error: StoreError) {
        // Nobody may be left to tell.
        let _ = self.answer.send(Err(error));
    }

    fn deliver(self, node: &Arc<Node>, reply: Result<Reply, StoreError>) {
        let Waiting { request, answer, and_then, .. } = self;
        let undelivered = answer.send(reply);
        match (and_then, undelivered, request) {
            (AndThen::Nudge(nudge), ..) => nudge(),
            (
                AndThen::RefundUnlessTold(nudge),
                Err(Ok(undelivered)),
                Request::Check { charge, at_us },
            ) => Refund { node: Arc::clone(node), charge, at_us, nudge }.give_back(undelivered),
            _ => {}
        }
    }
}

impl Load {
    fn weight(&self) -> usize {
        match self {
            Load::One(waiting) => waiting.request.weight(),
            Load::Many(all) => all.iter().map(|waiting| waiting.request.weight()).sum(),
        }
    }
}

fn flat(batch: Vec<Load>) -> impl Iterator<Item = Waiting> {
    batch.into_iter().flat_map(|load| {
        let (one, many) = match load {
            Load::One(one) => (Some(one), Vec::new()),
            Load::Many(many) => (None, many),
        };
        one.into_iter().chain(many)
    })
}

/// A connection, and which one it is.
struct Usable {
    open: MultiplexedConnection,
    generation: u64,
    /// Whether the script has been sent on it.
    has_script: bool,
}

impl Connection {
    fn for_script(&mut self, abilities: Abilities) -> Option<Usable> {
        let open = self.open.clone()?;
        let has_script = self.scripts.insert(abilities);
        Some(Usable { open, generation: self.generation, has_script })
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

/// A charge to give back if its caller does not come to know of it.
pub(super) struct Refund {
    pub(super) node: Arc<Node>,
    pub(super) charge: Charge,
    pub(super) at_us: Option<u64>,
    pub(super) nudge: Nudge,
}

impl Refund {
    pub(super) fn give_back(self, undelivered: Reply) {
        let Reply::Checked(Checked { receipt: Some(receipt), .. }) = undelivered else { return };
        let Refund { node, charge, at_us, nudge } = self;
        let refund = Request::Refund { charge, place: receipt.place(), at_us };
        let within = node.deadline.max(REFUND_DEADLINE);
        let (waiting, _) = node.waiting(refund, AndThen::Nudge(nudge), within);
        // Nobody is left to tell.
        let _ = node.put(Load::One(waiting));
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
        f.debug_struct("Node").field("server", &self.server).finish_non_exhaustive()
    }
}
