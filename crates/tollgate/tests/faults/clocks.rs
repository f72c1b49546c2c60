//! Clocks that disagree: of processes, of a server and its replica, and of one server with itself.

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

/// The server that a racer is to use.
const URL: &str = "TOLLGATE_SKEWED_URL";

/// Another process of this program with a clock of its own, which runs `racer` below.
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

    /// The number it says next.
    fn said(&mut self) -> i64 {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "it ended");
            if let Some((_, said)) = line.trim_end().split_once("racer: ") {
                return said.parse().unwrap();
            }
        }
    }
}

impl Drop for Racer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Debian keeps it in a directory for each architecture.
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

/// One an hour ahead, one an hour behind: the server's clock is the only one that counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_two_hours_apart_admit_exactly_the_limit() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let limiter = at(&server.url());
        let offsets = [HOUR_S, -HOUR_S];
        let mut racers = offsets.map(|offset| Racer::start(&server.url(), offset));
        for (racer, offset) in racers.iter_mut().zip(offsets) {
            let ahead_s = racer.said() - machine_s();
            assert!((ahead_s - offset).abs() <= 60, "{ahead_s} s, not {offset} s");
        }
        for text in LIMITS {
            racers.iter_mut().for_each(Racer::go);
            let admitted: Vec<i64> = racers.iter_mut().map(Racer::said).collect();
            assert_eq!(admitted.iter().sum::<i64>(), 100, "{flavour}, {text}: {admitted:?}");
            let scope = scope(&limiter, text);
            assert_eq!(remaining(&scope, "key").await, 0, "{flavour}, {text}");
            // All are told the same end, up to the time that asking takes.
            let before_us = server_us(&server);
            racers.iter_mut().for_each(Racer::go);
            let resets_us: Vec<i64> = racers.iter_mut().map(Racer::said).collect();
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
#[ignore = "a part of the test above, which runs it"]
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

/// Makes a replica, that far ahead, the primary in place of a server that dies, once it has all.
fn fail_over(mut primary: Server, replica: &Server) {
    let synced: u64 = primary.ask(cmd("WAIT").arg(1).arg(4_000)).unwrap();
    assert_eq!(synced, 1);
    primary.kill();
    replica.ask::<()>(cmd("REPLICAOF").arg("NO").arg("ONE")).unwrap();
}

/// Units that the clock gives back in an hour: none, of limits that take a year.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_an_hour_off_keeps_spent_units() {
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
            // No longer than a window, or as long as a bucket takes; of a counter, which goes by the
            // window before, no longer than two.
            let most = if text.contains("counter") { 2 * YEAR } else { YEAR };
            assert!(full.retry_after().unwrap() <= most, "{ahead_s} s, {text}: {full:?}");
            assert!(full.reset_after() <= most, "{ahead_s} s, {text}: {full:?}");
        }
    }
}

/// Limits that are whole again in 2 s, and how long that takes at most.
const SHORT: [(&str, u64); 6] = [
    ("fixed-window limit=10 window=2s", 2),
    ("sliding-window-log limit=10 window=2s", 2),
    ("sliding-window-counter limit=10 window=2s", 4),
    ("token-bucket capacity=10 refill=5/s", 2),
    ("leaky-bucket capacity=10 leak=5/s mode=policing", 2),
    ("leaky-bucket capacity=10 leak=5/s mode=shaping", 2),
];

/// All of a limit is there again when its wait is over, which is so many seconds at most.
async fn assert_comes_back(server: &Server, scope: &Scope, ahead_s: i64, most: Duration) {
    let why = format!("{ahead_s} s, {}", scope.limit());
    // A check, as a peek restarts no time.
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
async fn replica_an_hour_off_does_not_lock_a_key() {
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

/// Steps of 5 s, which a key's time does not follow back, of 11 s and an hour, which are a new clock.
const STEPS_S: [i64; 12] = [5, 0, -5, 0, 11, 0, 5, -11, HOUR_S, 0, -HOUR_S, 0];

/// One unit at each step: remaining is exact, whatever the clock says.
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
            // As it was charged, and of nobody's whole quota.
            assert!(!scope.check("a").cost(left - 1).await.unwrap().is_allowed(), "{why}");
        }
    }
}

/// Takes what a key has left; how much that was. By a limiter that remembers no refusal.
async fn all_there_is(scope: &Scope) -> u64 {
    let left = remaining(scope, "a").await;
    // Also if there is nothing: a check shows the key a new clock, a peek does not.
    let is_allowed = scope.check("a").cost(left.max(1)).await.unwrap().is_allowed();
    left * u64::from(is_allowed)
}

/// So many seconds' worth, to and fro ten times while many ask: a step back is no time that passes
/// again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_steps_to_and_fro_give_nothing_back_twice() {
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
            *allowed += all_there_is(&scope(&limiter, text)).await;
        }
        last_us = last_us.max(server_us(&server));
        server.set_clock_offset(ahead_s).unwrap();
        steps += 1;
    }
    let passed_us = last_us - first_us;
    let passed_s = passed_us / 1_000_000;
    // The clock was 5 s ahead at times, and went on by itself.
    assert!(passed_s >= 5 && steps == 20, "{passed_us}");
    for (text, allowed) in texts.into_iter().zip(allowed) {
        let most = text.parse::<tollgate::Limit>().unwrap().bound_over(passed_us + 1).max_units;
        assert!(allowed <= most, "{text}: {allowed} in {passed_us} us, at most {most}");
        assert!(allowed >= 10, "{text}");
    }
}

/// After any step, back or forth, all of a limit is there again when its own time has passed; after a
/// step back of about 10 s or less, when the clock is also where it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_step_does_not_lock_a_key() {
    let server = with_clock(0).start().unwrap();
    let limiter = at(&server.url());
    for (from_s, to_s) in [(0, -5), (0, -11), (0, -30), (HOUR_S, 0), (0, HOUR_S), (0, 5)] {
        for (text, most_s) in SHORT {
            let scope = named(&limiter, &format!("{from_s} {to_s} {text}"), text);
            server.set_clock_offset(from_s).unwrap();
            assert!(scope.check("a").cost(10).await.unwrap().is_allowed());
            server.set_clock_offset(to_s).unwrap();
            // Of a window by its start, which may be as much earlier as it is long.
            let step_s = u64::try_from(from_s - to_s).unwrap_or(0);
            let most_s = if step_s <= 12 { most_s + step_s } else { most_s };
            assert_comes_back(&server, &scope, to_s, Duration::from_secs(most_s)).await;
        }
    }
}

/// A step back of more than 10 s: what comes back is what the clock shows to pass from there on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_clock_gives_back_no_more_than_it_shows_to_pass() {
    let server = with_clock(0).start().unwrap();
    for (number, step_s) in [11, HOUR_S].into_iter().enumerate() {
        let text = "token-bucket capacity=10 refill=1/10s";
        let (mut allowed, mut passed_us) = (0_u64, 0_u64);
        server.set_clock_offset(0).unwrap();
        let mut last_us = server_us(&server);
        for ahead_s in [-step_s, 0].repeat(3) {
            allowed += all_there_is(&named(&at(&server.url()), &number.to_string(), text)).await;
            // Forth as far as it went, and back never.
            passed_us += server_us(&server).saturating_sub(last_us);
            last_us = server_us(&server);
            let most = 10 + passed_us / 10_000_000;
            assert!(allowed <= most, "{step_s} s: {allowed} in {passed_us} us, at most {most}");
            server.set_clock_offset(ahead_s).unwrap();
        }
        // An hour is worth the whole bucket, each time that it passes.
        assert!(allowed >= if step_s == HOUR_S { 30 } else { 10 }, "{step_s} s: {allowed}");
    }
}
