//! Probes a store across the network: finds out whether each of its servers answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, watch};
use tokio::time::MissedTickBehavior;
use tollgate::{Error, Limit, Limiter, OnFailure, Scope};

use crate::lifecycle::{Lifecycle, Phase};

/// The name contains a space, so no limit or rule of a file can have it.
const SCOPE: &str = "tollgate readiness";

/// The limit is never charged: the probe only peeks.
const LIMIT: &str = "fixed-window limit=1 window=1s";

/// Longer than the deadline of checks, because the probe may have to open a connection first.
const DEADLINE: Duration = Duration::from_millis(500);

/// How long a result is used again: concurrent callers share it, and cause at most one probe in this time.
const FRESH: Duration = Duration::from_millis(100);

/// The interval of the probes in the background.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The number of keys that are probed for each server, if there are several. The keys are spread over the servers at
/// random. With 8 keys per server, the chance that a server has none of the keys is 1 in 3,000.
const KEYS_PER_SERVER: usize = 8;
const MAX_KEYS: usize = 256;

/// Probes a store across the network. Concurrent callers share one result.
#[derive(Debug)]
pub(super) struct Probe {
    state: Arc<ProbeState>,
}

#[derive(Debug)]
struct ProbeState {
    scope: Scope,
    /// When the last probe ended. Locked during a probe, so that other callers wait for its result.
    probed: Mutex<Option<Instant>>,
    /// The result of the last probe; true before the first.
    is_answering: watch::Sender<bool>,
    failures: parking_lot::Mutex<ProbeFailures>,
}

/// The number of requests that the store failed to decide, by kind of failure.
pub(crate) type FailuresByKind = Vec<(&'static str, u64)>;

/// The failures of probes. The store counts failures of probes and of requests together; this separates them.
#[derive(Debug, Default)]
struct ProbeFailures {
    own: BTreeMap<&'static str, u64>,
    /// The failures of requests when the running probe began; `None` while no probe runs. During the probe these counts
    /// are reported, because a new failure may be the probe's own, and a reported count must never decrease.
    failures_before: Option<FailuresByKind>,
}

impl Probe {
    /// Returns a probe of a limiter's store; `None` if the store is memory, which always answers.
    pub(super) fn new(limiter: &Limiter) -> Result<Option<Probe>, Error> {
        if limiter.health().is_none() {
            return Ok(None);
        }
        let scope = limiter.scope(SCOPE, LIMIT.parse::<Limit>()?)?;
        let scope = scope.on_failure(OnFailure::Closed).deadline(DEADLINE);
        let (probed, failures) = Default::default();
        let is_answering = watch::Sender::new(true);
        Ok(Some(Probe { state: Arc::new(ProbeState { scope, probed, is_answering, failures }) }))
    }

    /// Returns whether every server of the store answers, by a result of at most 100 ms ago.
    pub(super) async fn is_answering(&self) -> bool {
        let (state, now) = (Arc::clone(&self.state), Instant::now());
        // In a task of its own: the caller may be dropped before the result, and the probe's failures must be counted.
        tokio::spawn(async move { state.is_answering(now).await }).await.unwrap_or(false)
    }

    /// Returns the result of the last probe; true before the first.
    pub(super) fn was_answering(&self) -> bool {
        *self.state.is_answering.borrow()
    }

    /// Returns a receiver of changes of the result.
    pub(super) fn follow(&self) -> watch::Receiver<bool> {
        self.state.is_answering.subscribe()
    }

    /// Returns how many requests the store failed to decide, by kind of failure, without the probes.
    pub(super) fn failed_by_kind(&self) -> FailuresByKind {
        let failures = self.state.failures.lock();
        let before = failures.failures_before.clone();
        before.unwrap_or_else(|| failures.request_failures(&self.state.scope))
    }

    /// Probes every second until the server closes. An open breaker closes only after an answered request, which may be
    /// a probe, and receivers of [`follow`](Self::follow) should soon see that the store answers again.
    pub(super) async fn watch(&self, lifecycle: &Lifecycle) {
        let mut ticks = tokio::time::interval(PROBE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.is_answering().await,
                () = lifecycle.reached(Phase::Closing) => return,
            };
        }
    }
}

impl ProbeState {
    async fn is_answering(&self, now: Instant) -> bool {
        let mut probed = self.probed.lock().await;
        if probed.is_some_and(|at| now.saturating_duration_since(at) < FRESH) {
            return *self.is_answering.borrow();
        }
        self.failures.lock().begin(&self.scope);
        let errors = self.peek().await;
        self.failures.lock().end(&errors);
        *probed = Some(Instant::now());
        let is_answering = errors.is_empty();
        self.is_answering.send_if_modified(|before| {
            let has_changed = *before != is_answering;
            *before = is_answering;
            has_changed
        });
        is_answering
    }

    /// Peeks at keys that are never charged, and returns the errors. With a cluster or shards, peeks at enough keys to
    /// reach every server. The states of the breakers would say less: an open breaker closes only after an answered
    /// request, and the breaker of a replaced node never closes.
    async fn peek(&self) -> Vec<Error> {
        let servers = self.scope.limiter().health().map_or(0, |health| health.servers.len());
        let keys = match servers {
            0 | 1 => 1,
            several => several.saturating_mul(KEYS_PER_SERVER).min(MAX_KEYS),
        };
        let peek = |key: usize| self.scope.peek(&key.to_ne_bytes()).into_future();
        // All peeks are sent before the first is waited for.
        let answers: Vec<_> = (0..keys).map(peek).collect();
        let mut errors = Vec::new();
        for answer in answers {
            errors.extend(answer.await.err());
        }
        errors
    }
}

impl ProbeFailures {
    /// Called before a probe.
    fn begin(&mut self, scope: &Scope) {
        self.failures_before = Some(self.request_failures(scope));
    }

    /// Called after a probe, with its errors.
    fn end(&mut self, errors: &[Error]) {
        for error in errors {
            if let Error::Store(error) = error {
                *self.own.entry(error.kind()).or_default() += 1;
            }
        }
        self.failures_before = None;
    }

    /// Returns the failures of requests: all failures of the store without the probes' own.
    fn request_failures(&self, scope: &Scope) -> FailuresByKind {
        let all = scope.limiter().health().map(|health| health.failed_by_kind).unwrap_or_default();
        let own = |kind| self.own.get(kind).copied().unwrap_or(0);
        all.into_iter().map(|(kind, count)| (kind, count.saturating_sub(own(kind)))).collect()
    }
}
