//! Worst cases of the scripts: no call takes longer than 2 ms, whatever clients have done to the states that it reads.
//!
//! Each case is the most expensive batch of one kind that the batcher sends, on the longest logs, with as many holes as
//! a log can have. The table that the tests print (`--nocapture`) is in `docs/faults.md`.

#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

use redis::{Connection, Value};
use tollgate_core::{Ask, Cost, Intent, Limit, MAX_LOG_UNITS, Place};
use tollgate_launcher::{Flavour, Launch, Server};

use super::batcher::MAX_BATCH;
use super::node::MAX_CARRIED_OVER;
use super::wire::{Answers, Arguments, Charge, MAX_CHARGES, PartOf, Reply, Request};
use crate::together::Demand;

/// The longest time of a call, measured by the server.
const MOST_US: u64 = 2_000;

/// The number of runs of each case. Only the fastest counts, because the machine may be busy with other work.
const RUNS: usize = 7;

const LONGEST_LOG: &str = "sliding-window-log limit=65536 window=24h";

/// When everything begins, in microseconds.
const START_US: u64 = 1_700_000_000_000_000;

/// A server whose scripts see `now_us` as the time.
struct Bench {
    flavour: Flavour,
    connection: Connection,
    _server: Server,
    now_us: u64,
}

impl Bench {
    fn start(flavour: Flavour) -> Bench {
        let server = Launch::new(flavour).start().unwrap_or_else(|error| panic!("{error}"));
        let mut connection =
            redis::Client::open(server.unix_url()).unwrap().get_connection().unwrap();
        let all = ["SET", "slowlog-log-slower-than", "0"];
        redis::cmd("CONFIG").arg(&all).exec(&mut connection).unwrap();
        Bench { flavour, connection, _server: server, now_us: START_US }
    }

    /// Runs one call. Returns the replies and the time that the server took.
    fn call(&mut self, requests: &[Request], script: Carry) -> (Vec<Reply>, u64) {
        let arguments = Arguments::of(requests);
        let arguments = match script {
            Carry::Nothing => arguments,
            Carry::Over => arguments.carrying_over(),
        };
        let text =
            arguments.abilities.script().text.replace(r#"redis.call("TIME")"#, "{ 0, ARGV[3] }");
        let mut load = redis::cmd("SCRIPT");
        let hash: String = load.arg("LOAD").arg(text).query(&mut self.connection).unwrap();
        let mut command = arguments.command("EVALSHA", &hash);
        let value = command.arg(self.now_us).query(&mut self.connection).unwrap();
        let took_us = self.last_took_us();
        let mut answers = Answers::of(value).unwrap();
        let replies = requests.iter().map(|request| answers.next(request).unwrap().unwrap());
        (replies.collect(), took_us)
    }

    fn last_took_us(&mut self) -> u64 {
        let mut newest = redis::cmd("SLOWLOG");
        let newest: Vec<Vec<Value>> = newest.arg("GET").arg(1).query(&mut self.connection).unwrap();
        match newest[0][2] {
            Value::Int(us) => us as u64,
            ref other => panic!("{other:?}"),
        }
    }

    /// Runs a case and asserts the bound.
    fn case(&mut self, name: &str, script: Carry, requests: impl Fn(usize) -> Vec<Request>) {
        let count = requests(0).len();
        let mut runs: Vec<u64> = (0..RUNS).map(|run| self.call(&requests(run), script).1).collect();
        runs.sort_unstable();
        self.hold(&format!("{count} x {name}"), runs[0], runs[RUNS / 2]);
    }

    fn hold(&self, name: &str, least_us: u64, median_us: u64) {
        println!("{:?} | {name} | {least_us} us | {median_us} us", self.flavour);
        assert!(least_us <= MOST_US, "{name} took {least_us} us, not {MOST_US} at most");
    }

    /// Charges a log unit by unit, a full batch at a time. Returns the place of each charge and the time of each call.
    fn fill(&mut self, key: &str, limit: Limit, units: usize) -> (Vec<Place>, Vec<u64>) {
        let batch: Vec<Request> = (0..MAX_BATCH).map(|_| check(key, limit)).collect();
        let (mut places, mut calls_us) = (Vec::new(), Vec::new());
        while places.len() < units {
            let (replies, took_us) = self.call(&batch, Carry::Nothing);
            places.extend(replies.into_iter().map(|reply| match reply {
                Reply::Checked(checked, _) => checked.receipt.unwrap().place(),
                other => panic!("{other:?}"),
            }));
            calls_us.push(took_us);
            self.now_us += 1;
        }
        (places, calls_us)
    }

    fn copy(&mut self, from: &str, count: usize) {
        for number in 0..count {
            let to = format!("{from} {number}");
            redis::cmd("COPY").arg(from).arg(to).arg("REPLACE").exec(&mut self.connection).unwrap();
        }
    }
}

/// The script of a call.
#[derive(Clone, Copy)]
enum Carry {
    Nothing,
    /// The one that carries over what was spent under other limits.
    Over,
}

fn charge(key: &str, limit: Limit, cost: u64) -> Charge {
    Charge { key: key.into(), limit, demand: Demand::of(Ask::new(Cost::new(cost).unwrap())) }
}

fn check(key: &str, limit: Limit) -> Request {
    Request::Check { charge: charge(key, limit, 1), at_us: None }
}

/// A check that is refused, and so has to search for its wait.
fn refused(key: &str, limit: Limit) -> Request {
    Request::Check { charge: charge(key, limit, limit.size()), at_us: None }
}

fn refund(key: &str, limit: Limit, place: Place) -> Request {
    Request::Refund { charge: charge(key, limit, 1), place, at_us: None }
}

/// One check of as many limits as are allowed, each on a key of its own.
fn together(key: &str, limit: Limit) -> Vec<Request> {
    let count = MAX_CHARGES / charge(key, limit, 1).counts_as();
    let charges = (0..count).map(|number| charge(&format!("{key} {number}"), limit, 1)).collect();
    let parts = (0..count).map(|charge| PartOf { charge, intent: Intent::Charge }).collect();
    vec![Request::Together { parts, charges, at_us: None }]
}

/// As many requests as fit in one batch, each on a key of its own.
fn full_batch(key: &str, request: impl Fn(&str) -> Request) -> Vec<Request> {
    let count = (MAX_BATCH / request(key).weight()).max(1);
    (0..count).map(|number| request(&format!("{key} {number}"))).collect()
}

fn longest_log() -> Limit {
    LONGEST_LOG.parse().unwrap()
}

#[test]
fn no_call_on_the_longest_logs_takes_longer_than_2_ms() {
    for flavour in Flavour::ALL {
        let mut bench = Bench::start(flavour);
        let limit = longest_log();
        let (places, _) = bench.fill("log", limit, MAX_LOG_UNITS as usize - 1_024);
        bench.copy("log", MAX_BATCH);
        for (what, place) in [
            ("refund of the oldest charge", places[0]),
            ("refund of the newest charge", places[places.len() - 1]),
        ] {
            bench
                .case(what, Carry::Nothing, |_| full_batch("log", |key| refund(key, limit, place)));
        }
        bench.case("check of a log without holes", Carry::Nothing, |_| {
            full_batch("log", |key| check(key, limit))
        });
        bench.case("list of a log", Carry::Nothing, |_| {
            let state = |key: &str| Request::State { charge: charge(key, limit, 1), at_us: None };
            full_batch("log", state)
        });

        // Refunds all over the log: each leaves a hole and compacts a part of the log.
        let mut runs = Vec::new();
        let of_refund = 17 * MAX_BATCH;
        for number in 0..3_000 {
            let place = places[(MAX_BATCH + number * of_refund) % (places.len() - 2 * MAX_BATCH)];
            let batch = [refund("log", limit, place), refund("log 0", limit, place)];
            runs.push(bench.call(&batch, Carry::Nothing).1);
            if number == 255 {
                bench.copy("log", MAX_BATCH);
            }
        }
        runs.sort_unstable();
        let (most_us, median_us) = (runs[runs.len() * 99 / 100], runs[runs.len() / 2]);
        bench.hold("2 x refund from the middle of a log, 99 of 100", most_us, median_us);

        bench.case("check of a log with holes", Carry::Nothing, |_| {
            full_batch("log", |key| check(key, limit))
        });
        bench.case("refused check of a log with holes", Carry::Nothing, |_| {
            full_batch("log", |key| refused(key, limit))
        });
        bench.case("check of 32 logs with holes", Carry::Nothing, |_| together("log", limit));
        bench.now_us -= 20_000_000;
        bench.case("check of a log with holes on a new clock", Carry::Nothing, |_| {
            full_batch("log", |key| check(key, limit))
        });
        bench.now_us += 20_000_000;
        bench.copy("log", MAX_BATCH);
        let other: Limit = "sliding-window-log limit=65535 window=25h".parse().unwrap();
        bench.case("log with holes carried over to a log", Carry::Over, |_| {
            full_batch("log", |key| check(key, other))
        });
        bench.copy("log", MAX_BATCH);
        let other: Limit = "token-bucket capacity=100000 refill=1/s".parse().unwrap();
        let mut runs: Vec<u64> = Vec::new();
        for _ in 0..RUNS {
            // Copied again for each run, because a log that was carried over is a bucket.
            bench.copy("log", MAX_CARRIED_OVER);
            let batch: Vec<Request> =
                (0..MAX_CARRIED_OVER).map(|at| check(&format!("log {at}"), other)).collect();
            runs.push(bench.call(&batch, Carry::Over).1);
        }
        runs.sort_unstable();
        bench.hold("16 x log with holes carried over to a bucket", runs[0], runs[RUNS / 2]);
        bench.copy("log", MAX_BATCH);
        bench.case("reset of a log", Carry::Nothing, |run| {
            let reset = |at: usize| Request::Reset {
                charge: charge(&format!("log {}", run * 4 + at), limit, 1),
            };
            (0..4).map(reset).collect()
        });
    }
}

#[test]
fn no_call_in_which_a_log_grows_or_shrinks_takes_longer_than_2_ms() {
    let limit: Limit = "sliding-window-log limit=65536 window=1s".parse().unwrap();
    for flavour in Flavour::ALL {
        let mut bench = Bench::start(flavour);
        // The same calls in every run: the fastest run of each counts.
        let mut calls_us: Vec<u64> = Vec::new();
        for run in 0..3 {
            let key = format!("log {run}");
            let mut own_us = Vec::new();
            // The log grows; then its older half leaves the window, and the log wraps around the end of the ring and
            // grows again; then nearly all charges leave, and it shrinks.
            for (units, pause_us) in
                [(28_000, 500_000), (28_000, 500_000), (30_000, 999_000), (64, 0)]
            {
                own_us.extend(bench.fill(&key, limit, units).1);
                bench.now_us += pause_us;
            }
            calls_us.resize(own_us.len(), u64::MAX);
            calls_us.iter_mut().zip(own_us).for_each(|(least, own)| *least = own.min(*least));
        }
        calls_us.sort_unstable();
        let (most_us, median_us) = (calls_us[calls_us.len() - 1], calls_us[calls_us.len() / 2]);
        bench.hold("64 x charge of a log that grows, the longest call", most_us, median_us);
    }
}

#[test]
fn no_call_of_windows_and_buckets_takes_longer_than_2_ms() {
    for flavour in Flavour::ALL {
        let mut bench = Bench::start(flavour);
        for limit in [
            "fixed-window limit=1000000 window=1h",
            "sliding-window-counter limit=1000000 window=1h",
            "sliding-window-log limit=64 window=1h",
            "token-bucket capacity=1000000 refill=999983/h",
            "leaky-bucket capacity=1000000 leak=999983/h mode=shaping",
        ] {
            let limit: Limit = limit.parse().unwrap();
            bench.case(&format!("check of {limit}"), Carry::Nothing, |_| {
                full_batch("key", |key| check(key, limit))
            });
            bench.case(&format!("refused check of {limit}"), Carry::Nothing, |_| {
                full_batch("key", |key| refused(key, limit))
            });
            let many = format!("check of as many {limit} as there may be");
            bench.case(&many, Carry::Nothing, |_| together("key", limit));
            bench.case(&format!("{many}, carrying over"), Carry::Over, |_| together("key", limit));
            redis::cmd("FLUSHALL").exec(&mut bench.connection).unwrap();
        }
    }
}
