//! Whether the store across the network answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, watch};
use tokio::time::MissedTickBehavior;
use tollgate::{Error, Limit, Limiter, OnFailure, Scope};

use crate::lifecycle::{Lifecycle, Phase};

/// With a space in it: no limit and no rule of a file can have that name.
const SCOPE: &str = "tollgate readiness";

/// Nothing is ever charged to it.
const LIMIT: &str = "fixed-window limit=1 window=1s";

/// Longer than a check may take: a connection may have to be opened first.
const DEADLINE: Duration = Duration::from_millis(500);

/// The store is not asked again for so long, however many want to know.
const FRESH: Duration = Duration::from_millis(100);

/// And so often if nobody does.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Of several servers, each has some keys: one in 3,000 has none of 8 for each.
const KEYS_OF_EACH: usize = 8;
const MAX_KEYS: usize = 256;

/// Asks a store across the network whether it is there. Those who want to know at the same time share the
/// answer.
#[derive(Debug)]
pub(super) struct Probe {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    scope: Scope,
    /// When it was last known. Who holds it asks, and the others wait for what comes of that.
    known: Mutex<Option<Instant>>,
    /// What came of asking last.
    is_answered: watch::Sender<bool>,
    failures: parking_lot::Mutex<Failures>,
}

/// How many requests the store failed to decide, by kind.
pub(crate) type ByKind = Vec<(&'static str, u64)>;

/// What of the store's failures was asked by the probe, and is nobody's request.
#[derive(Debug, Default)]
struct Failures {
    own: BTreeMap<&'static str, u64>,
    /// What there was of others before the probe asked. While it asks nobody knows whose the further ones
    /// are, and what was told once cannot be taken back.
    of_others_before: Option<ByKind>,
}

impl Probe {
    /// `None` of a limiter in memory, which is always there.
    pub(super) fn new(limiter: &Limiter) -> Result<Option<Probe>, Error> {
        if limiter.health().is_none() {
            return Ok(None);
        }
        let scope = limiter.scope(SCOPE, LIMIT.parse::<Limit>()?)?;
        let scope = scope.on_failure(OnFailure::Closed).deadline(DEADLINE);
        let (known, failures) = Default::default();
        let is_answered = watch::Sender::new(true);
        Ok(Some(Probe { inner: Arc::new(Inner { scope, known, is_answered, failures }) }))
    }

    /// Whether every server of the store answers, as of at most 100 ms ago.
    pub(super) async fn is_answered(&self) -> bool {
        let (inner, now) = (Arc::clone(&self.inner), Instant::now());
        // Whoever wants to know may go away before it is known, and what was asked has to be counted.
        tokio::spawn(async move { inner.is_answered(now).await }).await.unwrap_or(false)
    }

    /// The same as of the last time that somebody asked; true if nobody did.
    pub(super) fn was_answered(&self) -> bool {
        *self.inner.is_answered.borrow()
    }

    /// To wait for a change of that.
    pub(super) fn follow(&self) -> watch::Receiver<bool> {
        self.inner.is_answered.subscribe()
    }

    /// How many requests the store failed to decide, by kind, without what was asked here.
    pub(super) fn failed_of_others(&self) -> ByKind {
        let failures = self.inner.failures.lock();
        let before = failures.of_others_before.clone();
        before.unwrap_or_else(|| failures.of_others(&self.inner.scope))
    }

    /// Asks every second until the server is about to close: a breaker that is open closes only when somebody
    /// asks, and those who follow should hear of it.
    pub(super) async fn watch(&self, lifecycle: &Lifecycle) {
        let mut asks = tokio::time::interval(ASK_EVERY);
        asks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = asks.tick() => self.is_answered().await,
                () = lifecycle.reached(Phase::Closing) => return,
            };
        }
    }
}

impl Inner {
    async fn is_answered(&self, now: Instant) -> bool {
        let mut known = self.known.lock().await;
        if known.is_some_and(|at| now.saturating_duration_since(at) < FRESH) {
            return *self.is_answered.borrow();
        }
        self.failures.lock().begin(&self.scope);
        let failed = self.ask().await;
        self.failures.lock().end(&failed);
        *known = Some(Instant::now());
        let is_answered = failed.is_empty();
        self.is_answered.send_if_modified(|before| {
            let is_news = *before != is_answered;
            *before = is_answered;
            is_news
        });
        is_answered
    }

    /// Looks at keys that are never charged. Of a cluster or of shards, at so many that every server is
    /// asked: their breakers tell less, as one that is open closes only when somebody asks, and one of a
    /// node that was replaced never does. Returns how each failed that did.
    async fn ask(&self) -> Vec<Error> {
        let servers = self.scope.limiter().health().map_or(0, |health| health.servers.len());
        let keys = match servers {
            0 | 1 => 1,
            several => several.saturating_mul(KEYS_OF_EACH).min(MAX_KEYS),
        };
        let peek = |key: usize| self.scope.peek(&key.to_ne_bytes()).into_future();
        // All are on their way before the first is waited for.
        let answers: Vec<_> = (0..keys).map(peek).collect();
        let mut failed = Vec::new();
        for answer in answers {
            failed.extend(answer.await.err());
        }
        failed
    }
}

impl Failures {
    fn begin(&mut self, scope: &Scope) {
        self.of_others_before = Some(self.of_others(scope));
    }

    fn end(&mut self, failed: &[Error]) {
        for error in failed {
            if let Error::Store(error) = error {
                *self.own.entry(error.kind()).or_default() += 1;
            }
        }
        self.of_others_before = None;
    }

    fn of_others(&self, scope: &Scope) -> ByKind {
        let all = scope.limiter().health().map(|health| health.failed_by_kind).unwrap_or_default();
        let own = |kind| self.own.get(kind).copied().unwrap_or(0);
        all.into_iter().map(|(kind, count)| (kind, count.saturating_sub(own(kind)))).collect()
    }
}
