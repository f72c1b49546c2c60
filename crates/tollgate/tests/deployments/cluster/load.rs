//! Callers that check keys all the time, and what they were told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::sleep;
use tollgate::{Error, Limiter, Scope};

use crate::setup::PATIENCE;

/// How long a caller waits after an answer: a load that leaves the servers time for each other.
const PACE: Duration = Duration::from_millis(1);

/// Callers that check keys until they are told to stop.
pub(crate) struct Load {
    signals: Arc<Signals>,
    callers: Vec<JoinHandle<Told>>,
    ids: usize,
}

#[derive(Default)]
struct Signals {
    is_over: AtomicBool,
    /// How many checks were answered, whatever the answer.
    answered: AtomicU64,
}

/// What callers were told.
pub(crate) struct Told {
    /// For each id, how often each scope allowed it.
    pub(crate) allowed: Vec<Vec<u64>>,
    /// For each id, how many checks failed, and may have been charged.
    pub(crate) failed: Vec<u64>,
    pub(crate) failures: Vec<(Instant, Error)>,
    pub(crate) checks: u64,
}

/// What is checked.
#[derive(Clone)]
struct Keys {
    limiter: Limiter,
    scopes: Vec<Scope>,
    ids: Vec<String>,
}

impl Load {
    /// So many callers, each with any id: now one of the scopes, now all of them together.
    pub(crate) fn start(limiter: &Limiter, scopes: &[Scope], ids: &[String], callers: u64) -> Load {
        let signals = Arc::<Signals>::default();
        let keys = Keys { limiter: limiter.clone(), scopes: scopes.into(), ids: ids.into() };
        let callers = (1..=callers)
            .map(|seed| tokio::spawn(call(keys.clone(), seed, Arc::clone(&signals))))
            .collect();
        Load { signals, callers, ids: ids.len() }
    }

    /// Waits until so many more checks were answered.
    pub(crate) async fn goes_on_for(&self, checks: u64) {
        let answered = || self.signals.answered.load(Ordering::Relaxed);
        let before = answered();
        until("the load went on", || answered() >= before + checks).await;
    }

    /// What they were told, all together.
    pub(crate) async fn stop(self) -> Told {
        self.signals.is_over.store(true, Ordering::Relaxed);
        let mut all = Told::new(self.ids, 0);
        for caller in self.callers {
            all.add(caller.await.unwrap());
        }
        all
    }
}

async fn call(keys: Keys, seed: u64, signals: Arc<Signals>) -> Told {
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut below = |bound: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % bound as u64) as usize
    };
    let mut told = Told::new(keys.ids.len(), keys.scopes.len());
    while !signals.is_over.load(Ordering::Relaxed) {
        let (id, which) = (below(keys.ids.len()), below(keys.scopes.len() + 1));
        told.checks += 1;
        match keys.check(id, which).await {
            Ok(true) => {
                signals.answered.fetch_add(1, Ordering::Relaxed);
                let all = &mut told.allowed[id];
                let charged = if which < all.len() { which..which + 1 } else { 0..all.len() };
                all[charged].iter_mut().for_each(|allowed| *allowed += 1);
            }
            Ok(false) => _ = signals.answered.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                told.failed[id] += 1;
                told.failures.push((Instant::now(), error));
            }
        }
        sleep(PACE).await;
    }
    told
}

impl Keys {
    /// One of the scopes; all of them together, if there is none of that number.
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

impl Told {
    fn new(ids: usize, scopes: usize) -> Told {
        let (allowed, failed) = (vec![vec![0; scopes]; ids], vec![0; ids]);
        Told { allowed, failed, failures: Vec::new(), checks: 0 }
    }

    fn add(&mut self, other: Told) {
        for (all, more) in self.allowed.iter_mut().zip(other.allowed) {
            all.resize(more.len(), 0);
            all.iter_mut().zip(more).for_each(|(all, more)| *all += more);
        }
        self.failed.iter_mut().zip(other.failed).for_each(|(all, more)| *all += more);
        self.failures.extend(other.failures);
        self.checks += other.checks;
    }
}

/// How many units of a key are spent.
pub(crate) async fn spent(scope: &Scope, id: &str) -> u64 {
    let began = Instant::now();
    let peeked = loop {
        match scope.peek(id).await {
            Ok(peeked) => break peeked,
            // On a slow machine one may be too late.
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
    };
    peeked.limit() - peeked.remaining()
}

/// Checks until a server answers; how long that took.
pub(crate) async fn until_answered(scope: &Scope, id: &str) -> Duration {
    let began = Instant::now();
    while let Err(error) = scope.peek(id).await {
        assert!(began.elapsed() < PATIENCE, "{error}");
        sleep(PACE).await;
    }
    began.elapsed()
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Does what blocks, while the callers go on.
pub(crate) fn meanwhile<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

/// Waits until so many units of a key are spent, and no more.
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
