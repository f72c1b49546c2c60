//! Callers that continue through every fault, and a tally of their answers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tollgate::{Error, Limit, OnFailure, Redis, Scope, StoreError};

/// The limit of every key. No unit comes back while the test runs.
pub(crate) const LIMIT: u64 = 50;

/// The limiter's deadline.
pub(crate) const DEADLINE: Duration = Duration::from_millis(100);

/// The number of keys in a turn.
const KEYS: usize = 10;

const CALLERS: usize = 8;

/// Long enough for any machine: a test that reaches it has failed.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Callers {
    runtime: Runtime,
    tally: Arc<SoakTally>,
    tasks: Vec<JoinHandle<()>>,
}

/// The time from one fault to the next. It has its own keys.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Whether the fault may lose charges.
    pub(crate) may_lose_state: bool,
    pub(crate) keys: [Key; KEYS],
}

/// How the checks of one key were answered.
#[derive(Debug, Default)]
pub(crate) struct Key {
    pub(crate) admitted: AtomicU64,
    pub(crate) denied: AtomicU64,
    /// Failures of which some may have been charged.
    pub(crate) in_doubt: AtomicU64,
}

/// How the checks of all callers were answered.
#[derive(Default)]
pub(crate) struct SoakTally {
    turns: Mutex<Vec<Arc<Turn>>>,
    pub(crate) allowed: AtomicU64,
    pub(crate) denied: AtomicU64,
    failed: Mutex<BTreeMap<&'static str, u64>>,
    longest: Mutex<Duration>,
    is_over: AtomicBool,
}

impl Callers {
    pub(crate) fn start(url: &str) -> Callers {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let tally = Arc::<SoakTally>::default();
        tally.turns.lock().unwrap().push(Arc::default());
        let limiter = {
            let _within = runtime.enter();
            let builder = Redis::at(url).unwrap().on_failure(OnFailure::Closed);
            builder.deadline(DEADLINE).build().unwrap()
        };
        let limit: Limit = format!("fixed-window limit={LIMIT} window=366d").parse().unwrap();
        let scope = limiter.scope("soak", limit).unwrap();
        let tasks = (0..CALLERS)
            .map(|caller| runtime.spawn(call(scope.clone(), Arc::clone(&tally), caller)))
            .collect();
        let callers = Callers { runtime, tally, tasks };
        callers.wait_until_used_up();
        callers
    }

    /// Begins a turn: callers use other keys from now on.
    pub(crate) fn begin_turn(&self, may_lose_state: bool) {
        let turn = Turn { may_lose_state, ..Turn::default() };
        self.tally.turns.lock().unwrap().push(Arc::new(turn));
    }

    /// Waits until a check of every key of this turn was allowed. Returns how long that took.
    pub(crate) fn wait_until_answered(&self) -> Duration {
        self.wait_until(|key| key.admitted.load(Ordering::Relaxed) > 0)
    }

    /// Waits until a check of every key of this turn was denied.
    pub(crate) fn wait_until_used_up(&self) {
        self.wait_until(|key| key.denied.load(Ordering::Relaxed) > 0);
    }

    fn wait_until(&self, holds: impl Fn(&Key) -> bool) -> Duration {
        let (began, turn) = (Instant::now(), self.tally.turn().1);
        while !turn.keys.iter().all(&holds) {
            assert!(began.elapsed() < PATIENCE, "{turn:?}, {:?}", self.tally.failed());
            std::thread::sleep(Duration::from_millis(5));
        }
        began.elapsed()
    }

    pub(crate) fn stop(self) -> Arc<SoakTally> {
        self.tally.is_over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            self.runtime.block_on(task).unwrap();
        }
        self.tally
    }
}

async fn call(scope: Scope, tally: Arc<SoakTally>, caller: usize) {
    for number in caller.. {
        if tally.is_over.load(Ordering::Relaxed) {
            return;
        }
        let (at, turn) = tally.turn();
        let key = &turn.keys[number % KEYS];
        let began = Instant::now();
        let answer = scope.check(&format!("{at}:{}", number % KEYS)).await;
        tally.took(began.elapsed());
        match answer {
            Ok(decision) if decision.is_allowed() => {
                key.admitted.fetch_add(1, Ordering::Relaxed);
                tally.allowed.fetch_add(1, Ordering::Relaxed);
            }
            Ok(_) => {
                key.denied.fetch_add(1, Ordering::Relaxed);
                tally.denied.fetch_add(1, Ordering::Relaxed);
                // The deny cache answers at once, so this loop would spin.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Err(Error::Store(error)) => {
                if let StoreError::Timeout { .. } | StoreError::Unreachable { .. } = error {
                    key.in_doubt.fetch_add(1, Ordering::Relaxed);
                }
                *tally.failed.lock().unwrap().entry(kind(&error)).or_default() += 1;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn kind(error: &StoreError) -> &'static str {
    match error {
        StoreError::Unreachable { .. } => "no connection",
        StoreError::Timeout { .. } => "too late",
        StoreError::Refused { .. } => "refused by the server",
        StoreError::BreakerOpen { .. } => "breaker open",
        StoreError::Overloaded { .. } => "overloaded",
        other => panic!("{other}"),
    }
}

impl SoakTally {
    fn turn(&self) -> (usize, Arc<Turn>) {
        let turns = self.turns.lock().unwrap();
        let at = turns.len() - 1;
        (at, Arc::clone(&turns[at]))
    }

    fn took(&self, took: Duration) {
        let mut longest = self.longest.lock().unwrap();
        *longest = longest.max(took);
    }

    pub(crate) fn turns(&self) -> Vec<Arc<Turn>> {
        self.turns.lock().unwrap().clone()
    }

    pub(crate) fn failed(&self) -> BTreeMap<&'static str, u64> {
        self.failed.lock().unwrap().clone()
    }

    pub(crate) fn longest(&self) -> Duration {
        *self.longest.lock().unwrap()
    }
}
