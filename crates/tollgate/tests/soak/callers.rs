//! Callers that go on whatever happens, and what they were told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tollgate::{Error, Limit, OnFailure, Redis, Scope, StoreError};

/// Of every key. Nothing comes back while this runs.
pub(crate) const LIMIT: u64 = 50;

/// How long a check may take, as the limiter is told.
pub(crate) const DEADLINE: Duration = Duration::from_millis(100);

/// Every turn has so many keys of its own.
const KEYS: usize = 10;

const CALLERS: usize = 8;

/// Long enough for any machine: one that reaches it has failed.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Callers {
    runtime: Runtime,
    told: Arc<Told>,
    tasks: Vec<JoinHandle<()>>,
}

/// From one fault to the next.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Whether some of what was charged may be lost in it.
    pub(crate) may_lose_state: bool,
    pub(crate) keys: [Key; KEYS],
}

/// What the callers of one key were told, how often.
#[derive(Debug, Default)]
pub(crate) struct Key {
    pub(crate) admitted: AtomicU64,
    pub(crate) denied: AtomicU64,
    /// Failures of which some may have been charged.
    pub(crate) in_doubt: AtomicU64,
}

/// What the callers were told.
#[derive(Default)]
pub(crate) struct Told {
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
        let told = Arc::<Told>::default();
        told.turns.lock().unwrap().push(Arc::default());
        let limiter = {
            let _within = runtime.enter();
            let builder = Redis::at(url).unwrap().on_failure(OnFailure::Closed);
            builder.deadline(DEADLINE).build().unwrap()
        };
        let limit: Limit = format!("fixed-window limit={LIMIT} window=366d").parse().unwrap();
        let scope = limiter.scope("soak", limit).unwrap();
        let tasks = (0..CALLERS)
            .map(|caller| runtime.spawn(call(scope.clone(), Arc::clone(&told), caller)))
            .collect();
        let callers = Callers { runtime, told, tasks };
        callers.wait_until_used_up();
        callers
    }

    /// From here on the callers use other keys.
    pub(crate) fn begin_turn(&self, may_lose_state: bool) {
        let turn = Turn { may_lose_state, ..Turn::default() };
        self.told.turns.lock().unwrap().push(Arc::new(turn));
    }

    /// Until the callers are answered again; how long that took.
    pub(crate) fn wait_until_answered(&self) -> Duration {
        self.wait_until(|key| key.admitted.load(Ordering::Relaxed) > 0)
    }

    /// Until every key of this turn has been denied.
    pub(crate) fn wait_until_used_up(&self) {
        self.wait_until(|key| key.denied.load(Ordering::Relaxed) > 0);
    }

    fn wait_until(&self, holds: impl Fn(&Key) -> bool) -> Duration {
        let (began, turn) = (Instant::now(), self.told.turn().1);
        while !turn.keys.iter().all(&holds) {
            assert!(began.elapsed() < PATIENCE, "{turn:?}, {:?}", self.told.failed());
            std::thread::sleep(Duration::from_millis(5));
        }
        began.elapsed()
    }

    pub(crate) fn stop(self) -> Arc<Told> {
        self.told.is_over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            self.runtime.block_on(task).unwrap();
        }
        self.told
    }
}

async fn call(scope: Scope, told: Arc<Told>, caller: usize) {
    for number in caller.. {
        if told.is_over.load(Ordering::Relaxed) {
            return;
        }
        let (at, turn) = told.turn();
        let key = &turn.keys[number % KEYS];
        let began = Instant::now();
        let answer = scope.check(&format!("{at}:{}", number % KEYS)).await;
        told.took(began.elapsed());
        match answer {
            Ok(decision) if decision.is_allowed() => {
                key.admitted.fetch_add(1, Ordering::Relaxed);
                told.allowed.fetch_add(1, Ordering::Relaxed);
            }
            Ok(_) => {
                key.denied.fetch_add(1, Ordering::Relaxed);
                told.denied.fetch_add(1, Ordering::Relaxed);
                // It is told from memory, and would be as fast as this can ask.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Err(Error::Store(error)) => {
                if let StoreError::Timeout { .. } | StoreError::Unreachable { .. } = error {
                    key.in_doubt.fetch_add(1, Ordering::Relaxed);
                }
                *told.failed.lock().unwrap().entry(kind(&error)).or_default() += 1;
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

impl Told {
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
