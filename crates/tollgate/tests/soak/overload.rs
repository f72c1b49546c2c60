//! Measures how much each failure policy admits on a host whose CPUs are busy, so that checks miss their deadline of 10 ms
//! although Redis is healthy.
//!
//! Four processes check one key as fast as they can, while threads keep all CPUs busy. The test asserts the bounds, and not
//! how long a check takes. `make soak` prints the table of docs/operate/faults.md.

use std::env;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _, stdin};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate::{Limit, OnFailure, Redis};
use tollgate_launcher::{Flavour, Launch};

const PROCESSES: u64 = 4;

/// The callers of each process.
const CALLERS: usize = 32;

const CAPACITY: u64 = 1_000;
const LIMIT: &str = "token-bucket capacity=1000 refill=1000/s";

/// Threads that keep each CPU busy, in addition to the processes.
const BUSY_FOR_EACH_CPU: usize = 4;

const MEASURED: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(60);

/// The environment variables of another process: the URL of the server, and the policy.
const URL: &str = "TOLLGATE_OVERLOAD_URL";
const POLICY: &str = "TOLLGATE_OVERLOAD_POLICY";

/// Threads that use all CPUs until this is dropped.
struct BusyHost {
    is_over: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl BusyHost {
    fn start() -> BusyHost {
        let is_over = Arc::new(AtomicBool::new(false));
        let count = BUSY_FOR_EACH_CPU * available_parallelism().unwrap().get();
        let threads = (0..count).map(|_| {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || while !is_over.load(Ordering::Relaxed) {})
        });
        let threads = threads.collect();
        BusyHost { is_over, threads }
    }
}

impl Drop for BusyHost {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Another process of this program, which runs `caller` below.
struct CallerProcess {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl CallerProcess {
    fn start(url: &str, policy: &str) -> CallerProcess {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "overload::caller", "--ignored", "--nocapture"])
            .env(URL, url)
            .env(POLICY, policy)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        CallerProcess { child, output }
    }

    fn next_line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the process has ended");
            if let Some((_, text)) = line.trim_end().split_once("caller: ") {
                return text.to_owned();
            }
        }
    }

    fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }
}

impl Drop for CallerProcess {
    fn drop(&mut self) {
        // Errors are ignored: the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The answers to the checks of all processes.
#[derive(Clone, Copy, Debug, Default)]
struct AnswerCounts {
    checks: u64,
    /// Checks that the store did not decide in time.
    without_store: u64,
    admitted: u64,
    admitted_without_store: u64,
}

impl AnswerCounts {
    fn parse(line: &str) -> AnswerCounts {
        let mut numbers = line.split(' ').map(|number| number.parse().unwrap());
        let mut next = || numbers.next().unwrap();
        AnswerCounts {
            checks: next(),
            without_store: next(),
            admitted: next(),
            admitted_without_store: next(),
        }
    }

    fn plus(self, other: AnswerCounts) -> AnswerCounts {
        AnswerCounts {
            checks: self.checks + other.checks,
            without_store: self.without_store + other.without_store,
            admitted: self.admitted + other.admitted,
            admitted_without_store: self.admitted_without_store + other.admitted_without_store,
        }
    }
}

/// Returns the answers, and the time from the first check to the last answer.
fn measure(policy: &str) -> (AnswerCounts, Duration) {
    let server = Launch::new(Flavour::Redis).start().unwrap();
    let mut callers: Vec<CallerProcess> =
        (0..PROCESSES).map(|_| CallerProcess::start(&server.url(), policy)).collect();
    for caller in &mut callers {
        assert_eq!(caller.next_line(), "ready");
    }
    let _busy = BusyHost::start();
    let began = Instant::now();
    callers.iter_mut().for_each(CallerProcess::go);
    let counts = callers.iter_mut().map(|caller| AnswerCounts::parse(&caller.next_line()));
    let counts = counts.fold(AnswerCounts::default(), AnswerCounts::plus);
    (counts, began.elapsed())
}

#[test]
#[ignore = "takes a minute and all CPUs; `make soak` runs it"]
fn local_policy_stays_within_its_bound_on_a_busy_host() {
    let mut table = String::from(
        "| policy | checks | not decided in time by Redis | admitted of these | admitted in all | of what the limit admits |\n\
         |---|---|---|---|---|---|\n",
    );
    for policy in ["local", "closed", "open"] {
        let (counts, took) = measure(policy);
        let refilled = u64::try_from(took.as_millis()).unwrap();
        let limit = CAPACITY + refilled;
        let percent = 100.0 * counts.admitted as f64 / limit as f64;
        let AnswerCounts { checks, without_store, admitted, admitted_without_store } = counts;
        let row = format!(
            "| `{policy}` | {checks} | {without_store} | {admitted_without_store} | {admitted} | {percent:.1}% of {limit} |"
        );
        let _ = writeln!(table, "{row}");
        if policy != "open" {
            let more = if policy == "local" { limit } else { 0 };
            assert!(admitted <= limit + more, "{row}");
        }
    }
    println!("\n{table}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test above in a process of its own"]
async fn caller() {
    let (Ok(url), Ok(policy)) = (env::var(URL), env::var(POLICY)) else { return };
    let on_failure = match policy.as_str() {
        "local" => OnFailure::default(),
        "closed" => OnFailure::Closed,
        _ => OnFailure::Open,
    };
    let limiter = Redis::at(&url).unwrap().on_failure(on_failure).build().unwrap();
    let scope = limiter.scope("scope", LIMIT.parse::<Limit>().unwrap()).unwrap();
    let began = Instant::now();
    let is_counted =
        || policy != "local" || limiter.live_processes() == u32::try_from(PROCESSES).ok();
    while scope.peek("ready").await.is_err() || !is_counted() {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    println!("\ncaller: ready");
    stdin().read_line(&mut String::new()).unwrap();
    let began = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let scope = scope.clone();
        callers.spawn(async move {
            let mut counts = AnswerCounts::default();
            while began.elapsed() < MEASURED {
                counts.checks += 1;
                // An error is a check that the policy `Closed` did not decide.
                let (is_allowed, is_degraded) = match scope.check("key").await {
                    Ok(decision) => (decision.is_allowed(), decision.is_degraded()),
                    Err(_) => (false, true),
                };
                counts.without_store += u64::from(is_degraded);
                counts.admitted += u64::from(is_allowed);
                counts.admitted_without_store += u64::from(is_allowed && is_degraded);
                // A client does something between its requests.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            counts
        });
    }
    let counts = callers.join_all().await;
    let AnswerCounts { checks, without_store, admitted, admitted_without_store } =
        counts.into_iter().fold(AnswerCounts::default(), AnswerCounts::plus);
    println!("\ncaller: {checks} {without_store} {admitted} {admitted_without_store}");
}
