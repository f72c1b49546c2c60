//! Sessions send requests to algorithms.

use std::sync::Arc;
use std::time::Duration;

use tollgate::{Decision, Limit, Limiter, OnFailure, Scope};

use super::algorithm::{Algorithm, Parameters};
use super::bodies::{AnswerJson, BurstBody, RequestBody, ResetJson};
use super::error::PlaygroundError;
use super::fields::WholeNumber;
use super::session::{Id, Session};
use super::sessions::{ActiveSession, SessionEntry, Sessions};

/// How many requests a burst has, and the most that it may have.
const BURST: u64 = 10;
const MAX_BURST: u64 = 50;

/// The shortest deadline of a request to the store: a person waits for the answer, not a service.
const LEAST_DEADLINE: Duration = Duration::from_millis(500);

/// The most memory for sessions when limits are in memory, in addition to the memory of keys that count. Enough for
/// the longest log of every session.
const MAX_PLAYED_BYTES: usize = 32 << 20;

/// The limit on the decisions of all sessions together, on a store that others use as well.
const PACE: &str = "token-bucket capacity=5000 refill=1000/s";

/// How often a session tries to get a slot while others take the free ones.
const TRIES: u32 = 3;

/// The decisions of an algorithm on some requests of a session.
#[derive(Debug)]
pub struct Round {
    scope: Scope,
    decisions: Vec<Decision>,
}

impl Round {
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
    /// `memory` or `redis`.
    store: &'static str,
    /// `None` if the store is the playground's own.
    pace: Option<Scope>,
    deadline: Duration,
}

impl Playground {
    /// Creates a playground whose counters are in memory of its own.
    pub fn in_memory() -> Playground {
        let limiter = Limiter::builder().max_bytes(MAX_PLAYED_BYTES).build();
        let (sessions, deadline) = (Arc::default(), LEAST_DEADLINE);
        Playground { limiter, sessions, store: "memory", pace: None, deadline }
    }

    /// Creates a playground on the Redis servers of a limiter, which others use as well. `deadline` is that of other
    /// requests to these servers; the playground's may be longer.
    pub fn on_servers(
        limiter: &Limiter,
        deadline: Duration,
    ) -> Result<Playground, PlaygroundError> {
        let pace = PACE.parse::<Limit>().map_err(tollgate::Error::from)?;
        let pace = Some(Limiter::memory().scope("playground", pace)?);
        let (sessions, deadline) = (Arc::default(), deadline.max(LEAST_DEADLINE));
        Ok(Playground { limiter: limiter.clone(), sessions, store: "redis", pace, deadline })
    }

    /// Sends one request to an algorithm.
    pub async fn request(
        &self,
        algorithm: Algorithm,
        asked: RequestBody,
        session: &Session,
    ) -> Result<Round, PlaygroundError> {
        let scope = self.scope(algorithm, &asked.config.unwrap_or_default())?;
        self.spend(1)?;
        let _playing = self.play(session).await?;
        let decisions = vec![scope.check(session.key()).await?];
        Ok(Round { scope, decisions })
    }

    /// Sends several requests at once to an algorithm.
    pub async fn burst(
        &self,
        algorithm: Algorithm,
        asked: BurstBody,
        session: &Session,
    ) -> Result<Round, PlaygroundError> {
        let count = asked.count.map_or(BURST, |WholeNumber(count)| count);
        if !(1..=MAX_BURST).contains(&count) {
            let detail = format!("count: {count} is out of range; use 1 to {MAX_BURST}");
            return Err(PlaygroundError::Invalid(detail));
        }
        let scope = self.scope(algorithm, &asked.config.unwrap_or_default())?;
        self.spend(count)?;
        let _playing = self.play(session).await?;
        let check = [scope.check(session.key())];
        let checks: Vec<_> = (0..count).map(|_| &check[..]).collect();
        let mut decisions = Vec::new();
        for together in self.limiter.batch(&checks).await? {
            decisions.extend(together?.into_each());
        }
        Ok(Round { scope, decisions })
    }

    /// Resets the session's counters of all algorithms.
    pub async fn reset(&self, session: &Session) -> Result<ResetJson, PlaygroundError> {
        self.forget(session.id()).await?;
        Ok(ResetJson { ok: true })
    }

    /// Returns where the counters are: `memory` or `redis`.
    pub(super) fn store(&self) -> &'static str {
        self.store
    }

    /// Charges decisions to the limit that all sessions share.
    pub(super) fn spend(&self, decisions: u64) -> Result<(), PlaygroundError> {
        let Some(pace) = &self.pace else { return Ok(()) };
        let decision = pace.check("all").cost(decisions).now()?;
        if decision.is_allowed() {
            Ok(())
        } else {
            Err(PlaygroundError::Busy { retry_after: decision.retry_after() })
        }
    }

    /// Returns a slot for a session. If all slots are taken, the session that was idle for longest is evicted, and its
    /// counters in the store are reset: so the memory that visitors use there is bounded.
    async fn play(&self, session: &Session) -> Result<ActiveSession, PlaygroundError> {
        for _ in 0..TRIES {
            match self.sessions.enter(session.id()) {
                SessionEntry::Playing(playing) => return Ok(playing),
                SessionEntry::Full => break,
                SessionEntry::Idle(rested) => {
                    // A task of its own, which completes even if the client disconnects meanwhile.
                    let own = self.clone();
                    let gone = tokio::spawn(async move { own.let_go(rested).await }).await;
                    gone.map_err(|_| PlaygroundError::Busy { retry_after: None })??;
                }
            }
        }
        Err(PlaygroundError::Busy { retry_after: None })
    }

    async fn let_go(&self, rested: Id) -> Result<(), PlaygroundError> {
        let forgotten = self.forget(rested).await;
        match forgotten {
            Ok(()) => self.sessions.left(rested),
            Err(_) => self.sessions.stays(rested),
        }
        forgotten
    }

    /// Resets a session's counters of all algorithms.
    async fn forget(&self, id: Id) -> Result<(), PlaygroundError> {
        self.spend(Algorithm::ALL.len() as u64)?;
        for algorithm in Algorithm::ALL {
            self.scope(algorithm, &Parameters::default())?.reset(id.key()).await?;
        }
        Ok(())
    }

    /// Returns the limit of an algorithm with these parameters. Its name has a space, so it never equals the name of a
    /// limit or rule of a file. While the store fails there is no answer: only decisions of the store are shown.
    pub(super) fn scope(
        &self,
        algorithm: Algorithm,
        parameters: &Parameters,
    ) -> Result<Scope, PlaygroundError> {
        let limit = algorithm.limit(parameters)?;
        let scope = self.limiter.scope(&format!("playground {}", algorithm.name()), limit)?;
        Ok(scope.on_failure(OnFailure::Closed).deadline(self.deadline))
    }
}
