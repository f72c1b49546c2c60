//! Many callers that check one key again and again, and a tally of their answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate::{Error, Scope, StoreError};

/// How long a caller waits before its next check.
const PACE: Duration = Duration::from_millis(10);

/// Many callers that check one key until they are stopped.
pub(crate) struct Crowd {
    is_over: Arc<AtomicBool>,
    checks: Arc<AtomicU64>,
    allowed: Arc<AtomicU64>,
    tasks: JoinSet<CrowdTally>,
}

/// How the checks of a crowd were answered.
#[derive(Debug, Default)]
pub(crate) struct CrowdTally {
    pub(crate) checks: u64,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Decided without the server.
    pub(crate) degraded: u64,
    /// Failed by a timeout or a broken connection: may have been charged.
    pub(crate) unknown: u64,
    /// Failed in a way that charges nothing.
    pub(crate) refused: u64,
    /// The longest time that a check took.
    pub(crate) slowest: Duration,
    /// How long each check took that failed because the breaker was open.
    pub(crate) took_when_open: Vec<Duration>,
}

impl Crowd {
    pub(crate) fn start(scope: &Scope, count: usize) -> Crowd {
        let is_over = Arc::new(AtomicBool::new(false));
        let (checks, allowed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        for _ in 0..count {
            let (scope, is_over) = (scope.clone(), Arc::clone(&is_over));
            let (checks, allowed) = (Arc::clone(&checks), Arc::clone(&allowed));
            tasks.spawn(async move {
                let mut tally = CrowdTally::default();
                while !is_over.load(Ordering::Relaxed) {
                    let before = tally.allowed;
                    tally.check(&scope).await;
                    checks.fetch_add(1, Ordering::Relaxed);
                    allowed.fetch_add(tally.allowed - before, Ordering::Relaxed);
                    tokio::time::sleep(PACE).await;
                }
                tally
            });
        }
        Crowd { is_over, checks, allowed, tasks }
    }

    /// The checks answered so far.
    pub(crate) fn checks(&self) -> u64 {
        self.checks.load(Ordering::Relaxed)
    }

    /// The checks allowed so far.
    pub(crate) fn allowed(&self) -> u64 {
        self.allowed.load(Ordering::Relaxed)
    }

    pub(crate) async fn stop(self) -> CrowdTally {
        self.is_over.store(true, Ordering::Relaxed);
        self.tasks.join_all().await.into_iter().fold(CrowdTally::default(), CrowdTally::and)
    }
}

impl CrowdTally {
    async fn check(&mut self, scope: &Scope) {
        let began = Instant::now();
        let answer = scope.check("crowd").await;
        let took = began.elapsed();
        self.checks += 1;
        self.slowest = self.slowest.max(took);
        match answer {
            Ok(decision) if decision.is_degraded() => self.degraded += 1,
            Ok(decision) if decision.is_allowed() => self.allowed += 1,
            Ok(_) => self.denied += 1,
            Err(Error::Store(StoreError::BreakerOpen { .. })) => {
                self.refused += 1;
                self.took_when_open.push(took);
            }
            Err(Error::Store(StoreError::Refused { .. } | StoreError::Overloaded { .. })) => {
                self.refused += 1;
            }
            Err(Error::Store(StoreError::Timeout { .. } | StoreError::Unreachable { .. })) => {
                self.unknown += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    fn and(mut self, mut other: CrowdTally) -> CrowdTally {
        self.checks += other.checks;
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.degraded += other.degraded;
        self.unknown += other.unknown;
        self.refused += other.refused;
        self.slowest = self.slowest.max(other.slowest);
        self.took_when_open.append(&mut other.took_when_open);
        self
    }

    /// The median time of the checks that failed because the breaker was open. There must be at least one.
    pub(crate) fn median_when_open(&mut self) -> Duration {
        self.took_when_open.sort_unstable();
        self.took_when_open[self.took_when_open.len() / 2]
    }

    /// Asserts that all allowed checks were charged, and no others except checks with an unknown outcome.
    pub(crate) fn assert_charged(&self, charged: u64) {
        let known = self.allowed..=self.allowed + self.unknown;
        assert!(known.contains(&charged), "{charged} charged, not {known:?}");
    }
}
