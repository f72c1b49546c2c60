//! Clocks that disagree: two processes, a server and its replica, and a server whose clock steps.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::cmd;
use tokio::task::JoinSet;
use tollgate::Scope;
use tollgate_launcher::{Flavour, Launch, Server};

use crate::setup::{LIMITS, at, named, remaining, scope, start};

const HOUR_S: i64 = 3_600;
const YEAR: Duration = Duration::from_secs(366 * 24 * 3_600);

/// The environment variable with the URL of a racer's server.
const URL: &str = "TOLLGATE_SKEWED_URL";

/// Another process of this program with its own clock. It runs `racer` below.
struct Racer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Racer {
    fn start(url: &str, ahead_s: i64) -> Racer {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "clocks::racer", "--ignored", "--nocapture"])
            .env(URL, url)
            .env("LD_PRELOAD", libfaketime())
            .env("FAKETIME", format!("{ahead_s:+}"))
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("DONT_FAKE_MONOTONIC", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Racer { child, input, output: BufReader::new(output) }
    }

    fn go(&mut self) {
        self.input.write_all(b"go\n").unwrap();
    }

    /// The next number that the process prints.
    fn next_number(&mut self) -> i64 {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the racer has ended");
            if let Some((_, number)) = line.trim_end().split_once("racer: ") {
                return number.parse().unwrap();
            }
        }
    }
}

impl Drop for Racer {
    fn drop(&mut self) {
        // Errors are ignored: the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Debian keeps the library in a directory for each architecture.
fn libfaketime() -> PathBuf {
    let entries = fs::read_dir("/usr/lib").unwrap().flatten();
    let mut found = entries.map(|entry| entry.path().join("faketime/libfaketime.so.1"));
    found.find(|path| path.is_file()).unwrap_or_else(|| panic!("run `make servers`"))
}

fn machine_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().try_into().unwrap()
}

fn server_us(server: &Server) -> u64 {
    let (seconds, micros): (u64, u64) = server.ask(&cmd("TIME")).unwrap();
    seconds * 1_000_000 + micros
}

/// One process is an hour ahead, one an hour behind. Only the server's clock counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_with_clocks_two_hours_apart_admit_exactly_the_limit() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let limiter = at(&server.url());
        let offsets = [HOUR_S, -HOUR_S];
        let mut racers = offsets.map(|offset| Racer::start(&server.url(), offset));
        for (racer, offset) in racers.iter_mut().zip(offsets) {
            let ahead_s = racer.next_number() - machine_s();
            assert!((ahead_s - offset).abs() <= 60, "{ahead_s} s, not {offset} s");
        }
        for text in LIMITS {
            racers.iter_mut().for_each(Racer::go);
            let admitted: Vec<i64> = racers.iter_mut().map(Racer::next_number).collect();
            assert_eq!(admitted.iter().sum::<i64>(), 100, "{flavour}, {text}: {admitted:?}");
            let scope = scope(&limiter, text);
            assert_eq!(remaining(&scope, "key").await, 0, "{flavour}, {text}");
            // All get the same time of reset, up to the time that the peeks take.
            let before_us = server_us(&server);
            racers.iter_mut().for_each(Racer::go);
            let resets_us: Vec<i64> = racers.iter_mut().map(Racer::next_number).collect();
            let own_us = scope.peek("key").await.unwrap().reset_after().as_micros() as i64;
            let took_us = (server_us(&server) - before_us) as i64;
            for reset_us in resets_us {
                let apart_us = (reset_us - own_us).abs();
                assert!(apart_us <= took_us, "{flavour}, {text}: {apart_us} us in {took_us} us");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test above in a process of its own"]
async fn racer() {
    let Ok(url) = env::var(URL) else { return };
    let limiter = at(&url);
    let next = || std::io::stdin().read_line(&mut String::new()).unwrap();
    println!("\nracer: {}", machine_s());
    for text in LIMITS {
        let scope = scope(&limiter, text);
        next();
        let mut tasks = JoinSet::new();
        for _ in 0..90 {
            let scope = scope.clone();
            tasks.spawn(async move { scope.check("key").await.unwrap().is_allowed() });
        }
        let admitted = tasks.join_all().await.into_iter().filter(|is_allowed| *is_allowed).count();
        println!("\nracer: {admitted}");
        next();
        let reset = scope.peek("key").await.unwrap().reset_after();
        println!("\nracer: {}", reset.as_micros());
    }
}

fn with_clock(ahead_s: i64) -> Launch {
    Launch::new(Flavour::Valkey).clock_offset(ahead_s)
}

/// Kills the primary once its replica has all its data, and makes the replica the primary.
fn fail_over(mut primary: Server, replica: &Server) {
    let synced: u64 = primary.ask(cmd("WAIT").arg(1).arg(4_000)).unwrap();
    assert_eq!(synced, 1);
    primary.kill();
    replica.ask::<()>(cmd("REPLICAOF").arg("NO").arg("ONE")).unwrap();
}

/// Units that the clock gives back in an hour: none, of limits that take a year.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_with_a_clock_an_hour_off_keeps_spent_units() {
    for ahead_s in [HOUR_S, -HOUR_S] {
        let primary = with_clock(0).start().unwrap();
        let replica = with_clock(ahead_s).replica_of(&primary).start().unwrap();
        replica.wait_until_in_sync().unwrap();
        let before = at(&primary.url());
        for text in LIMITS {
            scope(&before, text).check("a").cost(60).await.unwrap();
            scope(&before, text).check("full").cost(100).await.unwrap();
        }
        fail_over(primary, &replica);
        let after = at(&replica.url());
        for text in LIMITS {
            let scope = scope(&after, text);
            assert_eq!(remaining(&scope, "a").await, 40, "{ahead_s} s, {text}");
            assert!(!scope.check("a").cost(41).await.unwrap().is_allowed());
            assert_eq!(scope.check("a").cost(40).await.unwrap().remaining(), 0, "{text}");
            let full = scope.check("full").cost(100).await.unwrap();
            assert!(!full.is_allowed(), "{ahead_s} s, {text}");
            // At most one window or the time to refill a bucket; at most two windows for a counter, which
            // also uses the previous window.
            let most = if text.contains("counter") { 2 * YEAR } else { YEAR };
            assert!(full.retry_after().unwrap() <= most, "{ahead_s} s, {text}: {full:?}");
            assert!(full.reset_after() <= most, "{ahead_s} s, {text}: {full:?}");
        }
    }
}

/// Limits, and the most seconds until all their units are back.
const SHORT: [(&str, u64); 6] = [
    ("fixed-window limit=10 window=2s", 2),
    ("sliding-window-log limit=10 window=2s", 2),
    ("sliding-window-counter limit=10 window=2s", 4),
    ("token-bucket capacity=10 refill=5/s", 2),
    ("leaky-bucket capacity=10 leak=5/s mode=policing", 2),
    ("leaky-bucket capacity=10 leak=5/s mode=shaping", 2),
];

/// Asserts that all units of a limit are back after `retry_after`, which is `most` or less.
async fn assert_comes_back(server: &Server, scope: &Scope, ahead_s: i64, most: Duration) {
    let why = format!("{ahead_s} s, {}", scope.limit());
    // A check and not a peek, because a peek does not write that the key is on a new clock.
    let denied = scope.check("a").cost(10).await.unwrap();
    let Some(wait) = denied.retry_after() else {
        assert!(denied.is_allowed(), "{why}: {denied:?}");
        return;
    };
    assert!(wait <= most && denied.reset_after() <= most, "{why}: {denied:?}");
    let wait_s = i64::try_from(wait.as_secs()).unwrap() + 1;
    server.set_clock_offset(ahead_s + wait_s).unwrap();
    assert!(scope.peek("a").cost(10).await.unwrap().is_allowed(), "{why}: {denied:?}");
    server.set_clock_offset(ahead_s).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_with_a_clock_an_hour_off_does_not_lock_out_a_client() {
    for ahead_s in [HOUR_S, -HOUR_S] {
        let primary = with_clock(0).start().unwrap();
        let replica = with_clock(ahead_s).replica_of(&primary).start().unwrap();
        replica.wait_until_in_sync().unwrap();
        let before = at(&primary.url());
        for (text, _) in SHORT {
            assert!(scope(&before, text).check("a").cost(10).await.unwrap().is_allowed());
        }
        fail_over(primary, &replica);
        let after = at(&replica.url());
        for (text, most_s) in SHORT {
            let most = Duration::from_secs(most_s);
            assert_comes_back(&replica, &scope(&after, text), ahead_s, most).await;
        }
    }
}

/// Offsets of the clock. A key's time does not follow a step back of 5 s; 11 s or an hour back is a new clock.
const STEPS_S: [i64; 12] = [5, 0, -5, 0, 11, 0, 5, -11, HOUR_S, 0, -HOUR_S, 0];

/// Two units are spent at each step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remaining_is_exact_on_a_clock_that_steps() {
    let server = with_clock(0).start().unwrap();
    let limiter = at(&server.url());
    for (step, ahead_s) in STEPS_S.into_iter().enumerate() {
        server.set_clock_offset(ahead_s).unwrap();
        for text in LIMITS {
            let scope = scope(&limiter, text);
            let left = 100 - 2 * step as u64;
            let why = format!("step {step} to {ahead_s} s, {text}");
            assert_eq!(remaining(&scope, "a").await, left, "{why}");
            assert!(scope.peek("a").cost(left).await.unwrap().is_allowed(), "{why}");
            assert!(!scope.peek("a").cost(left + 1).await.unwrap().is_allowed(), "{why}");
            let charged = scope.check("a").cost(2).await.unwrap();
            assert!(charged.is_allowed(), "{why}");
            assert_eq!(charged.remaining(), left - 2, "{why}");
            // The key is charged, and its quota did not start again.
            assert!(!scope.check("a").cost(left - 1).await.unwrap().is_allowed(), "{why}");
        }
    }
}

/// Spends all that a key has left, and returns how much that was. The limiter must be new, so that its deny cache is
/// empty.
async fn spend_all(scope: &Scope) -> u64 {
    let left = remaining(scope, "a").await;
    // Also if nothing is left: a check writes that the key is on a new clock, a peek does not.
    let is_allowed = scope.check("a").cost(left.max(1)).await.unwrap().is_allowed();
    left * u64::from(is_allowed)
}

/// The clock steps 5 s forth and back ten times, while every unit that comes back is spent. The time after a step back
/// does not count a second time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_clock_steps_back_and_forth_give_nothing_back_twice() {
    let server = with_clock(0).start().unwrap();
    let texts = [
        "fixed-window limit=10 window=10s",
        "sliding-window-log limit=10 window=10s",
        "sliding-window-counter limit=10 window=10s",
        "token-bucket capacity=10 refill=1/s",
        "leaky-bucket capacity=10 leak=1/s mode=policing",
    ];
    let mut allowed = texts.map(|_| 0_u64);
    let first_us = server_us(&server);
    let mut last_us = first_us;
    let mut steps = 0;
    for ahead_s in [5, 0].repeat(10) {
        let limiter = at(&server.url());
        for (text, allowed) in texts.into_iter().zip(&mut allowed) {
            *allowed += spend_all(&scope(&limiter, text)).await;
        }
        last_us = last_us.max(server_us(&server));
        server.set_clock_offset(ahead_s).unwrap();
        steps += 1;
    }
    let passed_us = last_us - first_us;
    let passed_s = passed_us / 1_000_000;
    // The clock stepped 5 s ahead, and time also passed.
    assert!(passed_s >= 5 && steps == 20, "{passed_us}");
    for (text, allowed) in texts.into_iter().zip(allowed) {
        let most = text.parse::<tollgate::Limit>().unwrap().bound_over(passed_us + 1).max_units;
        assert!(allowed <= most, "{text}: {allowed} in {passed_us} us, at most {most}");
        assert!(allowed >= 10, "{text}");
    }
}

/// After any step, back or forth, all units of a limit are back after the limit's own time. After a step back of
/// about 10 s or less, the clock must also have reached its old time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_step_does_not_lock_out_a_client() {
    let server = with_clock(0).start().unwrap();
    let limiter = at(&server.url());
    for (from_s, to_s) in [(0, -5), (0, -11), (0, -30), (HOUR_S, 0), (0, HOUR_S), (0, 5)] {
        for (text, most_s) in SHORT {
            let scope = named(&limiter, &format!("{from_s} {to_s} {text}"), text);
            server.set_clock_offset(from_s).unwrap();
            assert!(scope.check("a").cost(10).await.unwrap().is_allowed());
            server.set_clock_offset(to_s).unwrap();
            // A window's time is its start, up to 2 s earlier: a step of up to 12 s may be no new clock.
            let step_s = u64::try_from(from_s - to_s).unwrap_or(0);
            let most_s = if step_s <= 12 { most_s + step_s } else { most_s };
            assert_comes_back(&server, &scope, to_s, Duration::from_secs(most_s)).await;
        }
    }
}

/// After a step back of more than 10 s, units come back for the time that the clock shows from there on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_clock_gives_back_only_for_the_time_that_it_shows() {
    let server = with_clock(0).start().unwrap();
    for (number, step_s) in [11, HOUR_S].into_iter().enumerate() {
        let text = "token-bucket capacity=10 refill=1/10s";
        let (mut allowed, mut passed_us) = (0_u64, 0_u64);
        server.set_clock_offset(0).unwrap();
        let mut last_us = server_us(&server);
        for ahead_s in [-step_s, 0].repeat(3) {
            allowed += spend_all(&named(&at(&server.url()), &number.to_string(), text)).await;
            // Steps forth count as time, steps back do not.
            passed_us += server_us(&server).saturating_sub(last_us);
            last_us = server_us(&server);
            let most = 10 + passed_us / 10_000_000;
            assert!(allowed <= most, "{step_s} s: {allowed} in {passed_us} us, at most {most}");
            server.set_clock_offset(ahead_s).unwrap();
        }
        // Each step of an hour forth refills the whole bucket.
        assert!(allowed >= if step_s == HOUR_S { 30 } else { 10 }, "{step_s} s: {allowed}");
    }
}
