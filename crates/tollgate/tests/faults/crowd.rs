//! Many callers who ask again and again, and what they were told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate::{Error, Scope, StoreError};

/// How long a caller waits before it asks again.
const PACE: Duration = Duration::from_millis(10);

/// Many callers who ask for one key until they are stopped.
pub(crate) struct Crowd {
    is_over: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    allowed: Arc<AtomicU64>,
    tasks: JoinSet<Told>,
}

/// What they were told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) asked: u64,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Without a server.
    pub(crate) degraded: u64,
    /// Whether it was charged is not known: no answer, or a connection that broke.
    pub(crate) unknown: u64,
    /// Not charged.
    pub(crate) refused: u64,
    /// The longest that anybody waited.
    pub(crate) slowest: Duration,
    /// How long those waited who were told that the breaker is open.
    pub(crate) left_alone: Vec<Duration>,
}

impl Crowd {
    pub(crate) fn start(scope: &Scope, count: usize) -> Crowd {
        let is_over = Arc::new(AtomicBool::new(false));
        let (asked, allowed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        for _ in 0..count {
            let (scope, is_over) = (scope.clone(), Arc::clone(&is_over));
            let (asked, allowed) = (Arc::clone(&asked), Arc::clone(&allowed));
            tasks.spawn(async move {
                let mut told = Told::default();
                while !is_over.load(Ordering::Relaxed) {
                    let before = told.allowed;
                    told.ask(&scope).await;
                    asked.fetch_add(1, Ordering::Relaxed);
                    allowed.fetch_add(told.allowed - before, Ordering::Relaxed);
                    tokio::time::sleep(PACE).await;
                }
                told
            });
        }
        Crowd { is_over, asked, allowed, tasks }
    }

    /// How often they have asked so far.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// How many were allowed so far.
    pub(crate) fn allowed(&self) -> u64 {
        self.allowed.load(Ordering::Relaxed)
    }

    pub(crate) async fn stop(self) -> Told {
        self.is_over.store(true, Ordering::Relaxed);
        self.tasks.join_all().await.into_iter().fold(Told::default(), Told::and)
    }
}

impl Told {
    async fn ask(&mut self, scope: &Scope) {
        let began = Instant::now();
        let answer = scope.check("crowd").await;
        let took = began.elapsed();
        self.asked += 1;
        self.slowest = self.slowest.max(took);
        match answer {
            Ok(decision) if decision.is_degraded() => self.degraded += 1,
            Ok(decision) if decision.is_allowed() => self.allowed += 1,
            Ok(_) => self.denied += 1,
            Err(Error::Store(StoreError::BreakerOpen { .. })) => {
                self.refused += 1;
                self.left_alone.push(took);
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

    fn and(mut self, mut other: Told) -> Told {
        self.asked += other.asked;
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.degraded += other.degraded;
        self.unknown += other.unknown;
        self.refused += other.refused;
        self.slowest = self.slowest.max(other.slowest);
        self.left_alone.append(&mut other.left_alone);
        self
    }

    /// Of those who were told that the breaker is open; there must be some.
    pub(crate) fn median_left_alone(&mut self) -> Duration {
        self.left_alone.sort_unstable();
        self.left_alone[self.left_alone.len() / 2]
    }

    /// Everyone who was allowed is charged; of the others only those of whom nobody knows.
    pub(crate) fn assert_charged(&self, charged: u64) {
        let known = self.allowed..=self.allowed + self.unknown;
        assert!(known.contains(&charged), "{charged} charged, not {known:?}");
    }
}
