//! The primary that sentinels name.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{RedisResult, Value};
use tokio::time::timeout;
use tollgate_limiter::{Clock, StoreError};

use super::address::ServerSettings;
use super::connect::{OpenConnection, connect, open};
use super::fault::Fault;
use super::race::first_of;
use super::slots::ServerAddress;

/// The time between two queries for the primary while there are requests.
const REFRESH_US: u64 = 1_000_000;

/// The longest time for one sentinel's answer, and for connecting to the primary. Both together take less than
/// `MAX_OPENING`, so that opening a connection also succeeds if one sentinel does not answer and another one does.
const SENTINEL_TIMEOUT: Duration = Duration::from_secs(2);

/// The sentinels of one primary.
pub(super) struct SentinelGroup {
    clock: Clock,
    all: Vec<ServerSettings>,
    /// The name of the primary in the sentinels' configuration.
    service: String,
    /// The settings of connections to the primary; the sentinels know its address.
    primary: ServerSettings,
    /// The name of the primary in error messages.
    name: String,
    connected: Mutex<Option<NamedPrimary>>,
    queried_us: AtomicU64,
    /// The sentinel that is queried first next time. It rotates, because one sentinel may be wrong.
    next: AtomicUsize,
}

/// The primary, as a sentinel names it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamedPrimary {
    address: ServerAddress,
    /// Grows with every failover: of two sentinels that disagree, the one with the larger epoch is right.
    epoch: u64,
}

impl SentinelGroup {
    pub(super) fn new(
        clock: Clock,
        all: Vec<ServerSettings>,
        service: String,
        primary: ServerSettings,
    ) -> SentinelGroup {
        let shown: Vec<&str> = all.iter().map(ServerSettings::name).collect();
        let name = format!("the primary `{}` of {}", service.escape_debug(), shown.join(", "));
        SentinelGroup {
            clock,
            all,
            service,
            primary,
            name,
            connected: Mutex::default(),
            queried_us: AtomicU64::new(0),
            next: AtomicUsize::new(0),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Opens a connection to the server that a sentinel names as the primary, if the server itself says that it is.
    pub(super) async fn open(&self) -> Result<OpenConnection, StoreError> {
        self.queried_us.store(self.clock.now_us(), Ordering::Relaxed);
        let known = self.connected.lock().clone();
        let epoch = known.as_ref().map_or(0, |known| known.epoch);
        let primary = self.primary.clone();
        let accept = move |named: NamedPrimary| {
            let primary = primary.clone();
            async move { Ok((connect_to(&primary, &named.address).await?, named)) }
        };
        let (open, named) = self.query(epoch, accept).await?;
        if !self.note_primary(known, named) {
            return Err(StoreError::unreachable(&self.name, "there was a failover meanwhile"));
        }
        Ok(open)
    }

    /// Notes where the primary is. Returns false if another task has noted a later failover meanwhile.
    fn note_primary(&self, known: Option<NamedPrimary>, named: NamedPrimary) -> bool {
        let mut connected = self.connected.lock();
        let is_newer = |other: &NamedPrimary| other.epoch > named.epoch;
        if *connected != known && connected.as_ref().is_some_and(is_newer) {
            return false;
        }
        *connected = Some(named);
        true
    }

    /// Returns true if the last query of the sentinels was at least a second ago, and records that the next one begins
    /// now. The caller must then query them.
    pub(super) fn begin_refresh_if_due(&self) -> bool {
        let (now_us, queried_us) = (self.clock.now_us(), self.queried_us.load(Ordering::Relaxed));
        let next = |queried_us, now_us| {
            self.queried_us.compare_exchange(
                queried_us,
                now_us,
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
        };
        now_us.saturating_sub(queried_us) >= REFRESH_US && next(queried_us, now_us).is_ok()
    }

    /// Opens a connection to the primary if it has moved to another address.
    pub(super) async fn open_elsewhere(&self) -> Option<OpenConnection> {
        let known = self.connected.lock().clone()?;
        let named = self.query(known.epoch, |named| async move { Ok(named) }).await.ok()?;
        if named.address == known.address {
            return None;
        }
        let open = connect_to(&self.primary, &named.address).await.ok()?;
        self.note_primary(Some(known), named).then_some(open)
    }

    /// Returns the first answer that `accept` accepts and that is not older than `epoch`; otherwise the newest answer, if
    /// most sentinels gave an older one.
    async fn query<T, F>(
        &self,
        epoch: u64,
        accept: impl Fn(NamedPrimary) -> F + Clone + Send + 'static,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let first = self.next.fetch_add(1, Ordering::Relaxed) % self.all.len().max(1);
        let (last, front) = self.all.split_at(first);
        let older = Arc::new(Mutex::new(Vec::new()));
        let queries = front.iter().chain(last).map(|sentinel| {
            let (sentinel, service) = (sentinel.clone(), self.service.clone());
            let (accept, older) = (accept.clone(), Arc::clone(&older));
            async move {
                let named = named_by(&sentinel, &service).await?;
                if named.epoch < epoch {
                    older.lock().push(named);
                    let problem = format!("{} does not know of the last failover", sentinel.name());
                    return Err(StoreError::refused(&problem));
                }
                accept(named).await
            }
        });
        let failure = match first_of(queries.collect::<Vec<_>>()).await {
            Ok(good) => return Ok(good),
            Err(failure) => failure,
        };
        // Sentinels that were set up again start to count failovers at 0, so the newest answer of most of them is right.
        let older = std::mem::take(&mut *older.lock());
        let are_most = older.len() > self.all.len() / 2;
        match older.into_iter().max_by_key(|named| named.epoch) {
            Some(newest) if are_most => accept(newest).await,
            _ => Err(failure.unwrap_or_else(|| {
                StoreError::unreachable(&self.name, "no sentinel could be queried")
            })),
        }
    }
}

/// Queries a sentinel for the primary.
async fn named_by(sentinel: &ServerSettings, service: &str) -> Result<NamedPrimary, StoreError> {
    let reply = in_time(sentinel, async {
        let mut connection = connect(sentinel).await?;
        let mut command = redis::cmd("SENTINEL");
        let reply: RedisResult<HashMap<String, String>> =
            command.arg("MASTER").arg(service).query_async(&mut connection).await;
        reply.map_err(|error| Fault::from_command(&error, sentinel.name()).into())
    });
    let reply = reply.await.map_err(|error| match error {
        StoreError::Refused { problem } => StoreError::refused(&format!(
            "{problem}; {} was queried for `{service}`",
            sentinel.name()
        )),
        other => other,
    })?;
    let named = || {
        let address = ServerAddress {
            host: reply.get("ip")?.clone(),
            port: reply.get("port")?.parse().ok()?,
        };
        Some(NamedPrimary { address, epoch: reply.get("config-epoch")?.parse().ok()? })
    };
    named().ok_or_else(|| {
        let problem = format!("{} does not say where `{service}` is", sentinel.name());
        StoreError::refused(&problem)
    })
}

/// Opens a connection to a server, and fails if the server does not say that it is the primary.
async fn connect_to(
    primary: &ServerSettings,
    address: &ServerAddress,
) -> Result<OpenConnection, StoreError> {
    let server = primary.at(&address.host, address.port);
    let opened = in_time(&server, async {
        let mut open = open(&server).await?;
        let role: RedisResult<Value> = redis::cmd("ROLE").query_async(&mut open.connection).await;
        Ok((role.map_err(|error| Fault::from_command(&error, server.name()))?, open))
    });
    match opened.await {
        Ok((role, open)) if is_primary(&role) => Ok(open),
        Ok(_) => {
            let problem = format!("{} is not the primary any more, or not yet", server.name());
            Err(StoreError::refused(&problem))
        }
        Err(StoreError::Refused { problem }) => {
            Err(StoreError::refused(&format!("{problem}; {} was queried", server.name())))
        }
        Err(other) => Err(other),
    }
}

async fn in_time<T>(
    server: &ServerSettings,
    query: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let answer = timeout(SENTINEL_TIMEOUT, query).await;
    answer.unwrap_or_else(|_| Err(StoreError::unreachable(server.name(), "it does not answer")))
}

fn is_primary(role: &Value) -> bool {
    let first = match role {
        Value::Array(parts) => parts.first(),
        _ => None,
    };
    match first {
        Some(Value::BulkString(role)) => role == b"master",
        Some(Value::SimpleString(role)) => role == "master",
        _ => false,
    }
}
