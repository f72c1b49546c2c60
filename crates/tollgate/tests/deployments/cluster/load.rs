//! Callers that check keys continuously, and a tally of their answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::sleep;
use tollgate::{Error, Limiter, Scope};

use crate::setup::PATIENCE;

/// How long a caller waits after an answer, so that the servers have time for each other.
const PACE: Duration = Duration::from_millis(1);

/// Callers that check keys until they are stopped.
pub(crate) struct Load {
    signals: Arc<Signals>,
    callers: Vec<JoinHandle<LoadTally>>,
    ids: usize,
}

#[derive(Default)]
struct Signals {
    is_over: AtomicBool,
    /// The number of checks that were decided.
    answered: AtomicU64,
}

/// How the checks of the callers were answered.
pub(crate) struct LoadTally {
    /// For each id, how often each scope allowed it.
    pub(crate) allowed: Vec<Vec<u64>>,
    /// For each id, the checks that failed and may have been charged.
    pub(crate) failed: Vec<u64>,
    pub(crate) failures: Vec<(Instant, Error)>,
    pub(crate) checks: u64,
}

/// The scopes and ids that are checked.
#[derive(Clone)]
struct Keys {
    limiter: Limiter,
    scopes: Vec<Scope>,
    ids: Vec<String>,
}

impl Load {
    /// Starts callers. Each checks random ids, in one of the scopes or in all of them together.
    pub(crate) fn start(limiter: &Limiter, scopes: &[Scope], ids: &[String], callers: u64) -> Load {
        let signals = Arc::<Signals>::default();
        let keys = Keys { limiter: limiter.clone(), scopes: scopes.into(), ids: ids.into() };
        let callers = (1..=callers)
            .map(|seed| tokio::spawn(call(keys.clone(), seed, Arc::clone(&signals))))
            .collect();
        Load { signals, callers, ids: ids.len() }
    }

    /// Waits until `checks` more checks were decided.
    pub(crate) async fn wait_for_answers(&self, checks: u64) {
        let answered = || self.signals.answered.load(Ordering::Relaxed);
        let before = answered();
        until("more checks are answered", || answered() >= before + checks).await;
    }

    /// Stops the callers. Returns their tallies, added up.
    pub(crate) async fn stop(self) -> LoadTally {
        self.signals.is_over.store(true, Ordering::Relaxed);
        let mut all = LoadTally::new(self.ids, 0);
        for caller in self.callers {
            all.add(caller.await.unwrap());
        }
        all
    }
}

async fn call(keys: Keys, seed: u64, signals: Arc<Signals>) -> LoadTally {
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut below = |bound: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % bound as u64) as usize
    };
    let mut tally = LoadTally::new(keys.ids.len(), keys.scopes.len());
    while !signals.is_over.load(Ordering::Relaxed) {
        let (id, which) = (below(keys.ids.len()), below(keys.scopes.len() + 1));
        tally.checks += 1;
        match keys.check(id, which).await {
            Ok(true) => {
                signals.answered.fetch_add(1, Ordering::Relaxed);
                let all = &mut tally.allowed[id];
                let charged = if which < all.len() { which..which + 1 } else { 0..all.len() };
                all[charged].iter_mut().for_each(|allowed| *allowed += 1);
            }
            Ok(false) => _ = signals.answered.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                tally.failed[id] += 1;
                tally.failures.push((Instant::now(), error));
            }
        }
        sleep(PACE).await;
    }
    tally
}

impl Keys {
    /// Checks the scope at index `which`, or all scopes together if the index is beyond the last.
    async fn check(&self, id: usize, which: usize) -> Result<bool, Error> {
        let id = &self.ids[id];
        match self.scopes.get(which) {
            Some(scope) => Ok(scope.check(id).await?.is_allowed()),
            None => {
                let checks: Vec<_> = self.scopes.iter().map(|scope| scope.check(id)).collect();
                Ok(self.limiter.check_all(&checks).await?.is_allowed())
            }
        }
    }
}

impl LoadTally {
    fn new(ids: usize, scopes: usize) -> LoadTally {
        let (allowed, failed) = (vec![vec![0; scopes]; ids], vec![0; ids]);
        LoadTally { allowed, failed, failures: Vec::new(), checks: 0 }
    }

    fn add(&mut self, other: LoadTally) {
        for (all, more) in self.allowed.iter_mut().zip(other.allowed) {
            all.resize(more.len(), 0);
            all.iter_mut().zip(more).for_each(|(all, more)| *all += more);
        }
        self.failed.iter_mut().zip(other.failed).for_each(|(all, more)| *all += more);
        self.failures.extend(other.failures);
        self.checks += other.checks;
    }
}

/// The units spent of a key.
pub(crate) async fn spent(scope: &Scope, id: &str) -> u64 {
    let began = Instant::now();
    let peeked = loop {
        match scope.peek(id).await {
            Ok(peeked) => break peeked,
            // On a slow machine a peek may time out.
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
    };
    peeked.limit() - peeked.remaining()
}

/// Peeks until a server answers. Returns how long that took.
pub(crate) async fn until_answered(scope: &Scope, id: &str) -> Duration {
    let began = Instant::now();
    while let Err(error) = scope.peek(id).await {
        assert!(began.elapsed() < PATIENCE, "{error}");
        sleep(PACE).await;
    }
    began.elapsed()
}

/// Waits until `is_so` returns true.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "not in time: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Runs blocking work while the callers continue.
pub(crate) fn meanwhile<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

/// Waits until exactly `units` of a key are spent.
pub(crate) async fn until_spent(scope: &Scope, id: &str, units: u64) {
    let began = Instant::now();
    loop {
        let spent = spent(scope, id).await;
        if spent == units {
            return;
        }
        let waited = began.elapsed();
        assert!(waited < PATIENCE / 3, "{spent} of {id} are spent, not {units}: {}", scope.name());
        sleep(PACE).await;
    }
}
