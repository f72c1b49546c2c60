//! Processes whose tasks check keys at the same time and record what they see.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tollgate::{Cost, Error, LeaseOptions, Limiter, Scope, StoreError};
use tollgate_conformance::history::{Histories, RecordedAnswer, RecordedRequest, Recorder, now_us};
use tollgate_core::{Intent, LimitDecision};

use crate::child::{ChildTest, say, wait_for_test};
use crate::polling::Random;
use crate::setup::{PATIENCE, builder, named};

/// Callers in each process.
const TASKS: u64 = 8;

/// How long a caller waits after an answer, so that the servers have time for each other.
const PACE: Duration = Duration::from_millis(2);

/// The deadline of a check. Short, so that lost replies do not take long; and long enough that few checks reach it on a
/// busy machine, because each is an unknown outcome.
const DEADLINE: Duration = Duration::from_secs(1);

/// Every algorithm. Callers spend the units of the first six faster than they come back. No unit of the others comes back
/// while a test runs, so that each charge that is lost shows.
const LIMITS: [&str; 9] = [
    "fixed-window limit=40 window=500ms",
    "sliding-window-log limit=40 window=400ms",
    "sliding-window-counter limit=40 window=500ms",
    "token-bucket capacity=40 refill=80/s",
    "leaky-bucket capacity=40 leak=60/s mode=policing",
    "leaky-bucket capacity=40 leak=60/s mode=shaping",
    "fixed-window limit=100000 window=366d",
    "sliding-window-counter limit=100000 window=366d",
    "leaky-bucket capacity=100000 leak=1/h mode=policing",
];

/// The limits of callers with leases: so large that several processes can hold units of a key at the same time. No unit of
/// the last comes back while a test runs.
const LEASED_LIMITS: [&str; 6] = [
    "fixed-window limit=2000 window=1s",
    "sliding-window-log limit=1000 window=500ms",
    "sliding-window-counter limit=2000 window=1s",
    "token-bucket capacity=1000 refill=3000/s",
    "leaky-bucket capacity=1000 leak=3000/s mode=policing",
    "fixed-window limit=10000000 window=366d",
];

const URL: &str = "TOLLGATE_CALLERS_URL";
const ID: &str = "TOLLGATE_CALLERS_ID";
const RECORD: &str = "TOLLGATE_CALLERS_RECORD";
const KIND: &str = "TOLLGATE_CALLERS_KIND";

/// How callers make their requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallerKind {
    /// With a time of their own, so that the decisions follow from the order of the requests.
    AtTheirTime,
    /// At the store's time. This is how callers with leases decide, and a cache may answer.
    AtTheStoresTime,
    /// At the store's time, with leases.
    Leased,
    /// The same, with a deadline that no answer misses, so that every outcome is known.
    LeasedPatiently,
    /// A planted fault: they read the state, decide, and charge the store if they have allowed the request. Callers that
    /// decide at the same time read the same state.
    ReadThenWrite,
    /// A planted fault: they send a request again if its answer is lost.
    SendAgain,
}

impl CallerKind {
    const ALL: [CallerKind; 6] = [
        CallerKind::AtTheirTime,
        CallerKind::AtTheStoresTime,
        CallerKind::Leased,
        CallerKind::LeasedPatiently,
        CallerKind::ReadThenWrite,
        CallerKind::SendAgain,
    ];

    /// The limits of the keys that they check.
    fn limits(self) -> &'static [&'static str] {
        if self.is_leased() { &LEASED_LIMITS } else { &LIMITS }
    }

    fn is_leased(self) -> bool {
        matches!(self, CallerKind::Leased | CallerKind::LeasedPatiently)
    }

    fn has_own_time(self) -> bool {
        self != CallerKind::AtTheStoresTime && !self.is_leased()
    }

    fn deadline(self) -> Duration {
        if self == CallerKind::LeasedPatiently { PATIENCE } else { DEADLINE }
    }

    /// The kind as the text of an environment variable.
    fn text(self) -> String {
        format!("{self:?}")
    }
}

/// Processes that check keys until they are stopped.
pub(super) struct CallerProcesses {
    processes: Vec<ChildTest>,
    records: TempDir,
}

impl CallerProcesses {
    /// Starts `count` processes on the store at `url`. They check every limit for this id.
    pub(super) fn start(count: usize, url: &str, id: &str, kind: CallerKind) -> Self {
        let mut callers =
            CallerProcesses { processes: Vec::new(), records: tempfile::tempdir().unwrap() };
        for number in 0..count {
            let record = callers.record(number);
            let variables =
                [(URL, url), (ID, id), (RECORD, record.to_str().unwrap()), (KIND, &kind.text())];
            callers.processes.push(ChildTest::start("history::callers::process", &variables));
        }
        for process in &mut callers.processes {
            assert_eq!(process.next_line(), "ready");
        }
        callers.processes.iter_mut().for_each(ChildTest::go);
        callers
    }

    /// The file with the record of a process.
    fn record(&self, number: usize) -> PathBuf {
        self.records.path().join(number.to_string())
    }

    /// The records of all processes.
    fn records(&self) -> impl Iterator<Item = String> {
        // A process that has just started may not have made its file.
        (0..self.processes.len()).map(|at| fs::read_to_string(self.record(at)).unwrap_or_default())
    }

    fn answers(&self) -> usize {
        self.records().map(|record| record.matches("\nend ").count()).sum()
    }

    /// Waits until `count` more requests were answered.
    pub(super) async fn wait_for_answers(&self, count: usize) {
        let (began, before) = (Instant::now(), self.answers());
        while self.answers() < before + count {
            assert!(began.elapsed() < PATIENCE, "{before} answers, and few more");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Kills a process at any point of its requests.
    pub(super) fn kill(&mut self, number: usize) {
        self.processes[number].kill();
    }

    /// Stops a process where it is, until [`thaw`](Self::thaw).
    pub(super) fn freeze(&self, number: usize) {
        self.processes[number].freeze();
    }

    pub(super) fn thaw(&self, number: usize) {
        self.processes[number].thaw();
    }

    /// Stops all processes that live, and returns what all of them recorded.
    pub(super) fn stop(self) -> Histories {
        self.stop_and_count().0
    }

    /// Does the same as [`stop`](Self::stop), and returns how many checks leases have admitted in the processes that live.
    pub(super) fn stop_and_count(mut self) -> (Histories, u64) {
        let mut hits = 0;
        for process in &mut self.processes {
            if process.process.try_wait().unwrap().is_none() {
                process.go();
                let line = process.next_line();
                let count = line.strip_prefix("stopped after ").unwrap().strip_suffix(" hits");
                hits += count.unwrap().parse::<u64>().unwrap();
            }
        }
        let mut histories = Histories::default();
        for record in self.records() {
            histories.read(&record).unwrap_or_else(|error| panic!("{error}"));
        }
        (histories, hits)
    }
}

/// A limit and an id, with the name under which their requests are recorded.
#[derive(Clone)]
struct CalledKey {
    scope: Scope,
    id: String,
    name: String,
}

impl CalledKey {
    /// The key with this name: its id, a blank and the text of its limit.
    fn of(limiter: &Limiter, name: &str) -> CalledKey {
        let (id, text) = name.split_once(' ').unwrap();
        CalledKey { scope: named(limiter, text, text), id: id.to_owned(), name: name.to_owned() }
    }

    fn leased_for(self, kind: CallerKind) -> CalledKey {
        if !kind.is_leased() {
            return self;
        }
        let scope = self.scope.leased(LeaseOptions::default()).unwrap();
        CalledKey { scope, ..self }
    }
}

/// Whether units of a recorded key come back while a test runs.
pub(super) fn units_come_back(name: &str) -> bool {
    !name.contains("=100000 ")
}

/// Peeks at a recorded key after the callers have stopped, in the way in which they made their requests.
pub(super) async fn last_peek(
    limiter: &Limiter,
    name: &str,
    history: &[RecordedRequest],
) -> RecordedRequest {
    let key = CalledKey::of(limiter, name);
    let began_us = now_us();
    let at_us = history[0].at_us.map(|_| began_us);
    let (cost, intent) = (Cost::ONE, Intent::Peek);
    let request = RecordedRequest { began_us, at_us, cost, intent, answer: None };
    let decision = send(&key, &request).await.unwrap().unwrap();
    let answer = RecordedAnswer { ended_us: now_us(), decision };
    RecordedRequest { answer: Some(answer), ..request }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the tests of this directory in processes of their own"]
async fn process() {
    let Ok(url) = env::var(URL) else { return };
    let kind = env::var(KIND).unwrap();
    let kind = CallerKind::ALL.into_iter().find(|own| own.text() == kind).unwrap();
    let limiter = builder(&url).deadline(kind.deadline()).build().unwrap();
    let id = env::var(ID).unwrap();
    let key = |text: &&str| CalledKey::of(&limiter, &format!("{id} {text}")).leased_for(kind);
    let keys: Vec<CalledKey> = kind.limits().iter().map(key).collect();
    let is_over = Arc::new(AtomicBool::new(false));
    until_answered(&keys[0], &is_over).await;
    say("ready");
    wait_for_test();
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        let mut record = OpenOptions::new();
        let file = record.create(true).append(true).open(env::var(RECORD).unwrap()).unwrap();
        let recorder = Recorder::new(file, number, TASKS);
        let seed = (u64::from(std::process::id()) << 8) + number + 1;
        let caller = Caller { keys: keys.clone(), kind, recorder, is_over: Arc::clone(&is_over) };
        tasks.spawn(caller.run(Random(seed)));
    }
    tokio::task::spawn_blocking(wait_for_test).await.unwrap();
    is_over.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    // An error leaves the units to expire.
    let _ = limiter.end_leases().await;
    say(&format!("stopped after {} hits", limiter.lease_counters().hits));
}

/// One task that makes requests, one after the other.
struct Caller {
    keys: Vec<CalledKey>,
    kind: CallerKind,
    recorder: Recorder<File>,
    is_over: Arc<AtomicBool>,
}

impl Caller {
    async fn run(mut self, mut random: Random) {
        while !self.is_over.load(Ordering::Relaxed) {
            let key = self.keys[random.below(self.keys.len() as u64) as usize].clone();
            let cost = Cost::new(1 + random.below(3)).unwrap();
            let intent = if random.one_in(8) { Intent::Peek } else { Intent::Charge };
            self.call(&key, cost, intent).await;
            sleep(PACE).await;
        }
    }

    /// Makes and records a request. If its outcome is unknown, waits until the store answers again.
    async fn call(&mut self, key: &CalledKey, cost: Cost, intent: Intent) {
        let began_us = now_us();
        let at_us = self.kind.has_own_time().then_some(began_us);
        let request = RecordedRequest { began_us, at_us, cost, intent, answer: None };
        let number = self.recorder.begin(&key.name, &request).unwrap();
        match self.kind.decide(key, &request).await {
            Ok(Some(decision)) => {
                let answer = RecordedAnswer { ended_us: now_us(), decision };
                self.recorder.end(number, &answer).unwrap();
            }
            Ok(None) => self.recorder.unsent(number).unwrap(),
            Err(Error::Store(error)) => {
                if let StoreError::BreakerOpen { .. } | StoreError::Overloaded { .. } = error {
                    self.recorder.unsent(number).unwrap();
                }
                until_answered(key, &self.is_over).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

impl CallerKind {
    /// Returns the decision; `None` if a cache answered.
    async fn decide(
        self,
        key: &CalledKey,
        request: &RecordedRequest,
    ) -> Result<Option<LimitDecision>, Error> {
        match (self, request.intent) {
            (CallerKind::ReadThenWrite, Intent::Charge) => read_then_write(key, request).await,
            (CallerKind::SendAgain, _) => match send(key, request).await {
                Err(_) => {
                    until_answered(key, &AtomicBool::new(false)).await;
                    send(key, request).await
                }
                answer => answer,
            },
            _ => send(key, request).await,
        }
    }
}

async fn send(key: &CalledKey, request: &RecordedRequest) -> Result<Option<LimitDecision>, Error> {
    let check = match request.intent {
        Intent::Charge => key.scope.check(&key.id),
        Intent::Peek => key.scope.peek(&key.id),
    };
    let check = check.cost(request.cost.units());
    let decision = match request.at_us {
        Some(at_us) => check.at_us(at_us).await?,
        None => check.await?,
    };
    Ok((!decision.is_cached()).then_some(*decision.decided()))
}

async fn read_then_write(
    key: &CalledKey,
    request: &RecordedRequest,
) -> Result<Option<LimitDecision>, Error> {
    let mut read = key.scope.state(&key.id).await?;
    let at_us = request.at_us.unwrap_or(read.now_us);
    let decided = read.limit.check(&mut read.state, at_us, request.cost.into()).decision;
    if decided.is_allowed() {
        send(key, request).await?;
    }
    Ok(Some(decided))
}

/// Peeks at the key until the store answers or the callers are stopped. These peeks are not recorded.
async fn until_answered(key: &CalledKey, is_over: &AtomicBool) {
    let began = Instant::now();
    while let Err(error) = key.scope.peek(&key.id).await {
        assert!(began.elapsed() < PATIENCE, "{error}");
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        sleep(PACE).await;
    }
}
