//! Decides the requests that sessions send to algorithms.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tollgate::{Decision, Limit, Limiter, OnFailure, Scope};
use tollgate_core::HoldId;

use super::algorithm::{AlgorithmParameters, PlaygroundAlgorithm};
use super::bodies::{AnswerJson, BurstBody, RequestBody, ResetJson};
use super::error::PlaygroundError;
use super::fields::WholeNumber;
use super::session::{Session, SessionId};
use super::session_holds::SessionHolds;
use super::sessions::{ActiveSession, SessionEntry, Sessions};

/// The number of requests in a burst by default.
const DEFAULT_BURST: u64 = 10;
/// The largest number of requests in a burst.
const MAX_BURST: u64 = 50;

/// The shortest deadline of a request to the store. It can be long, because a person waits for the answer, not a service.
const MIN_DEADLINE: Duration = Duration::from_millis(500);

/// The memory bound of the sessions' counters if limits are in memory. It is separate from the bound of other limits, and
/// is enough for the longest log of every session.
const MAX_SESSIONS_BYTES: usize = 32 << 20;

/// The limit on the decisions of all sessions together, if the playground shares its store with other limits.
const SHARED_LIMIT: &str = "token-bucket capacity=5000 refill=1000/s";

/// The number of times that a session tries to get a slot, because another session may take the slot that was freed.
const MAX_TRIES: u32 = 3;

/// The decisions of an algorithm on requests of a session.
#[derive(Debug)]
pub struct PlaygroundDecisions {
    scope: Scope,
    decisions: Vec<Decision>,
}

impl PlaygroundDecisions {
    /// Returns each decision, in the order of the requests.
    pub fn answers(&self) -> impl Iterator<Item = AnswerJson> {
        self.decisions.iter().map(|decision| AnswerJson::new(decision, &self.scope))
    }

    /// Returns the last decision, and the limit that made it.
    pub fn last(&self) -> Option<(&Scope, &Decision)> {
        Some((&self.scope, self.decisions.last()?))
    }
}

/// The counters of all sessions. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Playground {
    limiter: Limiter,
    sessions: Arc<Sessions>,
    /// The name of the store: `memory` or `redis`.
    store: &'static str,
    /// The limit on all sessions together; `None` if only the playground uses the store.
    shared_limit: Option<Scope>,
    deadline: Duration,
}

impl Playground {
    /// Creates a playground with its counters in memory.
    pub fn in_memory() -> Playground {
        let limiter = Limiter::builder().max_bytes(MAX_SESSIONS_BYTES).build();
        let (sessions, deadline) = (Arc::default(), MIN_DEADLINE);
        Playground { limiter, sessions, store: "memory", shared_limit: None, deadline }
    }

    /// Creates a playground on the Redis servers of a limiter, which other limits also use. `deadline` is the deadline of
    /// other requests to these servers; the playground's own deadline is at least 500 ms.
    pub fn on_servers(
        limiter: &Limiter,
        deadline: Duration,
    ) -> Result<Playground, PlaygroundError> {
        let limit = SHARED_LIMIT.parse::<Limit>().map_err(tollgate::Error::from)?;
        let shared_limit = Some(Limiter::memory().scope("playground", limit)?);
        let (sessions, deadline) = (Arc::default(), deadline.max(MIN_DEADLINE));
        Ok(Playground {
            limiter: limiter.clone(),
            sessions,
            store: "redis",
            shared_limit,
            deadline,
        })
    }

    /// Sends one request to an algorithm.
    pub async fn request(
        &self,
        algorithm: PlaygroundAlgorithm,
        body: RequestBody,
        session: &Session,
    ) -> Result<PlaygroundDecisions, PlaygroundError> {
        decides_requests(algorithm)?;
        let scope = self.scope(algorithm, &body.config.unwrap_or_default())?;
        self.charge_shared_limit(1)?;
        let _active = self.enter(session).await?;
        let decisions = vec![scope.check(session.key()).await?];
        Ok(PlaygroundDecisions { scope, decisions })
    }

    /// Sends several requests at once to an algorithm.
    pub async fn burst(
        &self,
        algorithm: PlaygroundAlgorithm,
        body: BurstBody,
        session: &Session,
    ) -> Result<PlaygroundDecisions, PlaygroundError> {
        decides_requests(algorithm)?;
        let count = body.count.map_or(DEFAULT_BURST, |WholeNumber(count)| count);
        if !(1..=MAX_BURST).contains(&count) {
            let detail = format!("count: {count} is out of range; use 1 to {MAX_BURST}");
            return Err(PlaygroundError::Invalid(detail));
        }
        let scope = self.scope(algorithm, &body.config.unwrap_or_default())?;
        self.charge_shared_limit(count)?;
        let _active = self.enter(session).await?;
        let check = [scope.check(session.key())];
        let checks: Vec<_> = (0..count).map(|_| &check[..]).collect();
        let mut decisions = Vec::new();
        for decision in self.limiter.batch(&checks).await? {
            decisions.extend(decision?.into_each());
        }
        Ok(PlaygroundDecisions { scope, decisions })
    }

    /// Resets the session's counters of all algorithms, and forgets its holds.
    pub async fn reset(&self, session: &Session) -> Result<ResetJson, PlaygroundError> {
        self.reset_counters(session.id()).await?;
        Ok(ResetJson { ok: true })
    }

    /// Returns the name of the store: `memory` or `redis`.
    pub(super) fn store(&self) -> &'static str {
        self.store
    }

    /// Charges decisions to the limit that all sessions share.
    pub(super) fn charge_shared_limit(&self, decisions: u64) -> Result<(), PlaygroundError> {
        let Some(limit) = &self.shared_limit else { return Ok(()) };
        let decision = limit.check("all").cost(decisions).now()?;
        if decision.is_allowed() {
            Ok(())
        } else {
            Err(PlaygroundError::Busy { retry_after: decision.retry_after() })
        }
    }

    /// Returns a slot for a session. If all slots are taken, the session that was idle for longest is evicted and its
    /// counters in the store are reset, so that the memory of sessions is bounded.
    pub(super) async fn enter(&self, session: &Session) -> Result<ActiveSession, PlaygroundError> {
        for _ in 0..MAX_TRIES {
            match self.sessions.enter(session.id()) {
                SessionEntry::Active(active) => return Ok(active),
                SessionEntry::Full => break,
                SessionEntry::Evict(idle) => {
                    // In its own task, which completes even if the client disconnects.
                    let playground = self.clone();
                    let evicted = tokio::spawn(async move { playground.evict(idle).await }).await;
                    evicted.map_err(|_| PlaygroundError::Busy { retry_after: None })??;
                }
            }
        }
        Err(PlaygroundError::Busy { retry_after: None })
    }

    /// Resets the counters of an idle session and frees its slot.
    async fn evict(&self, idle: SessionId) -> Result<(), PlaygroundError> {
        let reset = self.reset_counters(idle).await;
        match reset {
            Ok(()) => self.sessions.evicted(idle),
            Err(_) => self.sessions.eviction_failed(idle),
        }
        reset
    }

    /// Resets a session's counters of all algorithms, and forgets its holds.
    async fn reset_counters(&self, id: SessionId) -> Result<(), PlaygroundError> {
        self.charge_shared_limit(self.algorithms().count() as u64)?;
        for algorithm in self.algorithms() {
            self.scope(algorithm, &AlgorithmParameters::default())?.reset(id.key()).await?;
        }
        // Taken out of the table first, because a hold of a concurrency limit is released when it is dropped.
        let _forgotten = self.sessions.with_holds(id, SessionHolds::take_all);
        Ok(())
    }

    /// Whether the store has holds, without which there is no concurrency.
    pub fn has_holds(&self) -> bool {
        self.limiter.has_holds()
    }

    /// Returns the algorithms of the store.
    pub(super) fn algorithms(&self) -> impl Iterator<Item = PlaygroundAlgorithm> + use<> {
        let concurrency = self.has_holds().then_some(PlaygroundAlgorithm::Concurrency);
        concurrency.into_iter().chain(PlaygroundAlgorithm::OF_REQUESTS)
    }

    /// Returns the numbers of a session's holds by their ids in the store.
    pub(super) fn hold_numbers(&self, id: SessionId) -> BTreeMap<HoldId, u64> {
        self.sessions.with_holds(id, |holds| holds.numbers()).unwrap_or_default()
    }

    /// Returns the limit of an algorithm with these parameters. Its name has a space, so that it never equals the name of a
    /// limit or rule in a file. If the store fails, a check is an error: the playground only shows decisions of the store.
    pub(super) fn scope(
        &self,
        algorithm: PlaygroundAlgorithm,
        parameters: &AlgorithmParameters,
    ) -> Result<Scope, PlaygroundError> {
        let limit = algorithm.limit(parameters)?;
        let scope = self.limiter.scope(&format!("playground {}", algorithm.name()), limit)?;
        Ok(scope.on_failure(OnFailure::Closed).deadline(self.deadline))
    }
}

/// Returns an error for concurrency, which decides reservations only.
fn decides_requests(algorithm: PlaygroundAlgorithm) -> Result<(), PlaygroundError> {
    if PlaygroundAlgorithm::OF_REQUESTS.contains(&algorithm) {
        return Ok(());
    }
    let name = algorithm.name();
    Err(PlaygroundError::Invalid(format!(
        "{name} decides no requests, because its units are only ever held; \
         use /api/rate-limit/{name}/reserve, and /api/rate-limit/{name}/settle when the job ends"
    )))
}
