//! One server: its connection, and the requests that share its round trips.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tollgate_core::{Checked, Decision};

use super::batcher::{Batcher, Full, Next};
use super::denials::Denials;
use super::wire::{Answers, Arguments, Charge, Reply, Request};
use crate::clock::Clock;
use crate::error::StoreError;

/// The most requests that wait for one server: at 200,000 a second, a third of a second's worth.
const MAX_WAITING: usize = 65_536;

/// One server.
pub(super) struct Node {
    client: Client,
    /// Its address, without user and password.
    server: String,
    deadline: Duration,
    runtime: Handle,
    batcher: Mutex<Batcher<Load>>,
    connection: Mutex<Connection>,
    /// Held by whoever opens one.
    opening: tokio::sync::Mutex<()>,
    /// By which refusals are remembered.
    clock: Clock,
    pub(super) denials: Denials,
}

/// The connection, if there is one, and how many there were.
#[derive(Default)]
struct Connection {
    open: Option<MultiplexedConnection>,
    generation: u64,
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

/// For limiters that are made outside a runtime: one thread for all of them.
static BACKGROUND: LazyLock<std::io::Result<Runtime>> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("tollgate-redis")
        .enable_all()
        .build()
});

impl Node {
    /// On the runtime that it is made in; outside of one, on a thread of its own.
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
            opening: tokio::sync::Mutex::default(),
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
        let (waiting, receiver) = self.waiting(request, and_then);
        self.put(Load::One(waiting))?;
        Ok(receiver)
    }

    /// Sends requests together, to be decided in this order.
    pub(super) fn submit_all(
        self: &Arc<Self>,
        requests: Vec<Request>,
    ) -> Result<Vec<Receiver>, StoreError> {
        let all = requests.into_iter().map(|request| self.waiting(request, AndThen::Nothing));
        let (waiting, receivers) = all.unzip();
        self.put(Load::Many(waiting))?;
        Ok(receivers)
    }

    fn waiting(&self, request: Request, and_then: AndThen) -> (Waiting, Receiver) {
        let (answer, receiver) = oneshot::channel();
        let (since_us, deadline) = (self.clock.now_us(), Instant::now() + self.deadline);
        (Waiting { request, answer, since_us, deadline, and_then }, receiver)
    }

    fn put(self: &Arc<Self>, load: Load) -> Result<(), StoreError> {
        let next = self.batcher.lock().put(load);
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

    async fn send(self: &Arc<Self>, batch: Vec<Load>) {
        // One that has hardly any time left would be charged for nothing, and take others with it.
        let late = Instant::now() + self.deadline / 8;
        let (batch, late): (Vec<_>, Vec<_>) =
            flat(batch).partition(|waiting| waiting.deadline > late);
        late.into_iter().for_each(|waiting| waiting.fail(self.timeout()));
        let Some(deadline) = batch.iter().map(|waiting| waiting.deadline).min() else { return };
        match self.ask(&batch, deadline).await {
            Ok(answers) => self.deliver(batch, answers),
            Err(error) => batch.into_iter().for_each(|waiting| waiting.fail(error.clone())),
        }
    }

    async fn ask(&self, batch: &[Waiting], deadline: Instant) -> Result<Answers, StoreError> {
        let arguments = Arguments::of(batch.iter().map(|waiting| &waiting.request));
        let script = arguments.abilities.script();
        let command = arguments.command("EVALSHA", &script.hash);
        let (mut connection, generation) = self.connection(deadline).await?;
        let mut reply: Result<Result<Value, _>, _> =
            timeout_at(deadline, command.query_async(&mut connection)).await;
        if let Ok(Err(error)) = &reply
            && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
        {
            // The server has not seen it since it started: normal.
            let command = arguments.command("EVAL", &script.text);
            reply = timeout_at(deadline, command.query_async(&mut connection)).await;
        }
        let value = reply.map_err(|_| self.timeout())?;
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
                self.denials.forget(&charge.key);
            }
            _ => {}
        }
    }

    /// The connection, opened if there is none, and which one it is.
    async fn connection(
        &self,
        deadline: Instant,
    ) -> Result<(MultiplexedConnection, u64), StoreError> {
        if let Some(open) = self.connection.lock().get() {
            return Ok(open);
        }
        timeout_at(deadline, self.open()).await.map_err(|_| self.timeout())?
    }

    async fn open(&self) -> Result<(MultiplexedConnection, u64), StoreError> {
        let _opening = self.opening.lock().await;
        if let Some(open) = self.connection.lock().get() {
            return Ok(open);
        }
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connect = self.client.get_multiplexed_async_connection_with_config(&config);
        let opened = connect.await.map_err(|error| self.error(&error))?;
        let mut connection = self.connection.lock();
        connection.generation += 1;
        connection.open = Some(opened.clone());
        Ok((opened, connection.generation))
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
                // What it says to a wrong password has none.
                let code = error.code().unwrap_or(error.category());
                StoreError::refused(&format!("{code} {}", error.detail().unwrap_or_default()))
            }
            _ => StoreError::unreachable(&self.server, &error.to_string()),
        }
    }

    fn timeout(&self) -> StoreError {
        StoreError::Timeout { server: self.server.clone(), after: self.deadline }
    }
}

fn runtime() -> Result<Handle, String> {
    match Handle::try_current() {
        Ok(current) => Ok(current),
        Err(_) => match &*BACKGROUND {
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
    fn charges(&self) -> usize {
        match self {
            Load::One(waiting) => waiting.request.charges().len(),
            Load::Many(all) => all.iter().map(|waiting| waiting.request.charges().len()).sum(),
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

impl Connection {
    fn get(&self) -> Option<(MultiplexedConnection, u64)> {
        self.open.clone().map(|open| (open, self.generation))
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
        // Nobody is left to tell.
        let _ = node.submit(refund, AndThen::Nudge(nudge));
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
            let batch = self.node.batcher.lock().take(Load::charges);
            if batch.is_empty() {
                self.is_done = true;
                return;
            }
            self.node.send(batch).await;
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
