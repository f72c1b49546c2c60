//! Worst cases of the scripts: no call takes longer than 2 ms, whatever clients have done to the states that it reads.
//!
//! Each case is the most expensive batch of one kind that the batcher sends, on the longest logs, with as many holes as
//! a log can have. The table that the tests print (`--nocapture`) is in `docs/operate/faults.md`.

#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

use std::iter;
use std::sync::Arc;

use redis::{Connection, Value};
use tollgate_core::{
    ChargePlace, Cost, HoldGrowth, HoldId, HoldReference, HoldTime, HoldUse, LeaseRequest, Limit,
    MAX_HOLDS, MAX_LOG_UNITS, Reservation, UnitRequest,
};
use tollgate_launcher::{Flavour, Launch, Server};

use super::batcher::MAX_BATCH;
use super::node::MAX_CARRIED_OVER;
use super::wire::{
    Arguments, MAX_CHARGES, Reply, RequestOutcome, ScriptReply, ServerCharge, StoreRequest,
};
use tollgate_limiter::store::Demand;
use tollgate_limiter::store::{self, Name};

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

    /// Runs one call. Returns the replies of requests that were decided, and the time that the server took.
    fn call(&mut self, requests: &[StoreRequest], script: ScriptChoice) -> (Vec<Reply>, u64) {
        let arguments = Arguments::of(requests);
        let arguments = match script {
            ScriptChoice::Smallest => arguments,
            ScriptChoice::BesideHolds => arguments.beside_holds(),
            ScriptChoice::CarryOver => arguments.carrying_over(),
        };
        let text =
            arguments.abilities.script().text.replace(r#"redis.call("TIME")"#, "{ 0, ARGV[3] }");
        let mut load = redis::cmd("SCRIPT");
        let hash: String = load.arg("LOAD").arg(text).query(&mut self.connection).unwrap();
        let mut command = arguments.command("EVALSHA", &hash);
        let value = command.arg(self.now_us).query(&mut self.connection).unwrap();
        let took_us = self.last_took_us();
        let mut answers = ScriptReply::of(value).unwrap();
        let reply = |outcome| match outcome {
            RequestOutcome::Reply(reply) => Some(reply.unwrap()),
            RequestOutcome::PutOff | RequestOutcome::PutOffForHolds => panic!("put off"),
            RequestOutcome::Later => None,
        };
        let replies = requests.iter().filter_map(|request| reply(answers.next(request)));
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

    /// Asserts the bound.
    fn assert_bound(&self, name: &str, least_us: u64, median_us: u64) {
        println!("{:?} | {name} | {least_us} us | {median_us} us", self.flavour);
        assert!(least_us <= MOST_US, "{name} took {least_us} us, not {MOST_US} at most");
    }

    /// Charges a key unit by unit, 16 at a time. Returns the place of each charge.
    fn fill(&mut self, key: &str, limit: Limit, units: usize) -> Vec<ChargePlace> {
        let mut places = Vec::with_capacity(units);
        while places.len() < units {
            let batch: Vec<StoreRequest> =
                (places.len()..units).take(16).map(|_| check(key, limit)).collect();
            let (replies, _) = self.call(&batch, ScriptChoice::Smallest);
            places.extend(replies.into_iter().map(|reply| match reply {
                Reply::Decision(decision) => decision.receipt().unwrap().place(),
                other => panic!("{other:?}"),
            }));
            self.now_us += 1;
        }
        places
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
enum ScriptChoice {
    /// The script with only the abilities that the requests need.
    Smallest,
    /// The same, with the twin of holds.
    BesideHolds,
    /// The script that carries over what was spent under other limits.
    CarryOver,
}

fn charge(key: &str, limit: Limit, cost: u64) -> ServerCharge {
    let (name, demand) =
        (Name::new("test", []), Demand::of(UnitRequest::new(Cost::new(cost).unwrap())));
    let original = store::Charge::new(Arc::new(name), key.as_bytes(), limit, demand);
    ServerCharge { key: key.as_bytes().into(), original }
}

fn check(key: &str, limit: Limit) -> StoreRequest {
    StoreRequest::Check { charge: charge(key, limit, 1), at_us: None }
}

/// Returns a check that is refused, and so has to search for its wait.
fn refused(key: &str, limit: Limit) -> StoreRequest {
    StoreRequest::Check { charge: charge(key, limit, limit.size()), at_us: None }
}

fn refund(key: &str, limit: Limit, place: ChargePlace) -> StoreRequest {
    StoreRequest::Refund { charge: charge(key, limit, 1), place, at_us: None }
}

/// Returns one check of as many limits as are allowed, each on a key of its own.
fn together(key: &str, limit: Limit, cost: u64) -> Vec<StoreRequest> {
    let count = MAX_CHARGES / charge(key, limit, 1).counts_as();
    let charges = (0..count).map(|at| charge(&format!("{key} {at}"), limit, cost)).collect();
    vec![StoreRequest::CheckAll { charges, at_us: None }]
}

/// Returns as many requests as fit in one batch, each on a key of its own.
fn full_batch(key: &str, request: impl Fn(&str) -> StoreRequest) -> Vec<StoreRequest> {
    let count = (MAX_BATCH / request(key).weight()).max(1);
    (0..count).map(|number| request(&format!("{key} {number}"))).collect()
}

fn longest_log() -> Limit {
    LONGEST_LOG.parse().unwrap()
}

/// The keys that a case needs: copies of a prepared key, made again before each run.
#[derive(Clone, Copy)]
struct Copies<'k> {
    of: &'k str,
    count: usize,
}

impl Bench {
    /// Runs a case on new copies of a key each time, and asserts the bound and that one call decides all requests.
    fn case_on(
        &mut self,
        name: &str,
        copies: Copies<'_>,
        script: ScriptChoice,
        requests: impl FnOnce() -> Vec<StoreRequest>,
    ) {
        let requests = requests();
        let decided = self.measure(name, copies, script, &requests);
        assert_eq!(decided, requests.len(), "{name}: requests decided in one call");
    }

    /// Runs a case in which one call decides only some of the requests, and leaves the others for a later call.
    fn case_cut_short(
        &mut self,
        name: &str,
        copies: Copies<'_>,
        script: ScriptChoice,
        requests: impl FnOnce() -> Vec<StoreRequest>,
    ) {
        let requests = requests();
        let decided = self.measure(name, copies, script, &requests);
        assert!((1..requests.len()).contains(&decided), "{name}: {decided} decided in one call");
    }

    /// Measures a call and asserts the bound. Returns how many requests it decided.
    fn measure(
        &mut self,
        name: &str,
        copies: Copies<'_>,
        script: ScriptChoice,
        requests: &[StoreRequest],
    ) -> usize {
        let (mut runs, mut decided) = (Vec::new(), 0);
        for _ in 0..RUNS {
            self.copy(copies.of, copies.count);
            let (replies, took_us) = self.call(requests, script);
            runs.push(took_us);
            decided = replies.len();
        }
        runs.sort_unstable();
        let name = format!("{decided} of {} x {name}", requests.len());
        self.assert_bound(&name, runs[0], runs[RUNS / 2]);
        decided
    }

    /// Makes a key with as many charges as a log can have, and nearly as many holes: its compaction is under way.
    fn long_log(&mut self, key: &str) -> Vec<ChargePlace> {
        let limit = longest_log();
        let places = self.fill(key, limit, MAX_LOG_UNITS as usize);
        // One hole near the beginning and 127 near the end. At 128 holes compaction starts, at the first one, and moves on
        // with each refund. Meanwhile 100 more holes are made before its start, which this pass does not reach.
        let near_the_end = (1..128).map(|hole| places.len() - 128 * 64 + hole * 60);
        for at in iter::once(400).chain(near_the_end).chain(200..300) {
            self.call(&[refund(key, limit, places[at])], ScriptChoice::Smallest);
        }
        // Lets the ring grow now, before the measurement.
        self.fill(key, limit, 16);
        assert!(self.holes(key) >= 220, "{} holes", self.holes(key));
        places
    }

    /// Returns the number of holes of a log, from its trailer.
    fn holes(&mut self, key: &str) -> u32 {
        let capacity = self.number(key, 31) as usize;
        self.number(key, 34 + 14 * capacity + 24)
    }

    /// Whether all slots of a log are in use.
    fn is_full(&mut self, key: &str) -> bool {
        self.number(key, 28) == self.number(key, 31)
    }

    /// Returns a number of three bytes in the string of a log.
    fn number(&mut self, key: &str, at: usize) -> u32 {
        let mut command = redis::cmd("GETRANGE");
        let bytes: Vec<u8> =
            command.arg(key).arg(at).arg(at + 2).query(&mut self.connection).unwrap();
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0])
    }
}

/// Returns a reservation of one unit for an hour and a little more, so that all expire at different times.
fn reserve(key: &str, limit: Limit, id: u64) -> StoreRequest {
    let hold_for = HoldTime::from_us(3_600_000_000 + id).unwrap();
    let reservation = Reservation { id: HoldId(id), cost: Cost::ONE, hold_for };
    let name = Arc::new(Name::new("test", []));
    let demand = Demand::of_reservation(reservation);
    let original = store::Charge::new(name, key.as_bytes(), limit, demand);
    let charge = ServerCharge { key: key.as_bytes().into(), original };
    StoreRequest::CheckAll { charges: vec![charge], at_us: None }
}

/// The hold that was reserved first.
fn first_hold() -> HoldReference {
    HoldReference { id: HoldId(MAX_HOLDS as u64 / 2), expires_us: START_US + 7_200_000_000 }
}

fn settle(keys: &[String], limit: Limit) -> StoreRequest {
    let charges = keys.iter().map(|key| charge(key, limit, 1)).collect();
    let used = HoldUse { units: 3, is_last: true };
    StoreRequest::Settle { charges, uses: vec![(first_hold(), used); keys.len()], at_us: None }
}

fn extend(keys: &[String], limit: Limit) -> StoreRequest {
    let charges = keys.iter().map(|key| charge(key, limit, 1)).collect();
    let hold_for = HoldTime::from_us(3_600_000_000).unwrap();
    let growth = HoldGrowth { more: Some(Cost::ONE), hold_for };
    StoreRequest::Extend { charges, growths: vec![(first_hold(), growth); keys.len()], at_us: None }
}

/// A renewal of the hold that was reserved first, as a lease, with a check that waits.
fn renew_lease(key: &str, limit: Limit) -> StoreRequest {
    let HoldReference { id, expires_us } = first_hold();
    let lease = LeaseRequest {
        id,
        expires_us: Some(expires_us),
        used: 1,
        need: Some(Cost::ONE),
        want: 100,
        most: 100,
        lease_for: HoldTime::from_us(3_600_000_000).unwrap(),
    };
    StoreRequest::Lease { charge: charge(key, limit, 1), lease, at_us: None }
}

fn state(key: &str, limit: Limit) -> StoreRequest {
    StoreRequest::State { charge: charge(key, limit, 1), at_us: None }
}

#[test]
fn no_call_on_the_longest_logs_takes_longer_than_2_ms() {
    for flavour in Flavour::ALL {
        let mut bench = Bench::start(flavour);
        let limit = longest_log();
        bench.fill("plain", limit, MAX_LOG_UNITS as usize - 128);
        let places = bench.long_log("log");
        let (oldest, newest) = (places[0], places[places.len() - 1]);
        let middle = places[places.len() / 2];
        let plain = Copies { of: "plain", count: 16 };
        let log = Copies { of: "log", count: 32 };
        let batch = |key: &str, request: &dyn Fn(&str) -> StoreRequest| full_batch(key, request);

        bench.case_on("check of a log without holes", plain, ScriptChoice::Smallest, || {
            batch("plain", &|key| check(key, limit))
        });
        bench.case_on("check of a long log", log, ScriptChoice::Smallest, || {
            batch("log", &|key| check(key, limit))
        });
        bench.case_on("refused check of a long log", log, ScriptChoice::Smallest, || {
            batch("log", &|key| refused(key, limit))
        });
        bench.case_on("check of 4 long logs, refused", log, ScriptChoice::Smallest, || {
            together("log", limit, limit.size())
        });
        bench.case_on("check of 4 long logs, allowed", log, ScriptChoice::Smallest, || {
            together("log", limit, 1)
        });
        for (place, of) in [(oldest, "oldest"), (newest, "newest"), (middle, "middle")] {
            bench.case_on(
                &format!("refund of the {of} charge"),
                log,
                ScriptChoice::Smallest,
                || batch("log", &|key| refund(key, limit, place)),
            );
        }
        bench.case_on("list of a long log", log, ScriptChoice::Smallest, || {
            batch("log", &|key| state(key, limit))
        });
        bench.case_on("reset of a long log", log, ScriptChoice::Smallest, || {
            batch("log", &|key| StoreRequest::Reset { charge: charge(key, limit, 1) })
        });
        bench.now_us -= 20_000_000;
        bench.case_on("check of a long log on a new clock", log, ScriptChoice::Smallest, || {
            batch("log", &|key| check(key, limit))
        });
        bench.now_us += 20_000_000;
        for other in
            ["sliding-window-log limit=65535 window=25h", "token-bucket capacity=100000 refill=1/s"]
        {
            let other: Limit = other.parse().unwrap();
            bench.case_on(
                &format!("long log carried over to {other}"),
                log,
                ScriptChoice::CarryOver,
                || {
                    let number = 0..MAX_CARRIED_OVER;
                    number.map(|number| check(&format!("log {number}"), other)).collect()
                },
            );
        }
    }
}

/// After a limit is lowered to 64 units, its log is still long, and the client cannot know that from the limit.
#[test]
fn no_call_on_long_logs_of_a_lowered_limit_takes_longer_than_2_ms() {
    for flavour in Flavour::ALL {
        let mut bench = Bench::start(flavour);
        let places = bench.long_log("log");
        let lowered: Limit = "sliding-window-log limit=64 window=24h".parse().unwrap();
        bench.call(&[check("log", lowered)], ScriptChoice::CarryOver);
        let log = Copies { of: "log", count: MAX_BATCH };
        let middle = places[places.len() / 2];
        bench.case_cut_short("refused check of a lowered log", log, ScriptChoice::Smallest, || {
            full_batch("log", |key| refused(key, lowered))
        });
        bench.case_cut_short("list of a lowered log", log, ScriptChoice::Smallest, || {
            full_batch("log", |key| state(key, lowered))
        });
        bench.case_cut_short("refund from a lowered log", log, ScriptChoice::Smallest, || {
            full_batch("log", |key| refund(key, lowered, middle))
        });
        let window: Limit = "fixed-window limit=64 window=24h".parse().unwrap();
        bench.case_cut_short(
            "list of a log carried over to a window",
            log,
            ScriptChoice::CarryOver,
            || (0..MAX_CARRIED_OVER).map(|at| state(&format!("log {at}"), window)).collect(),
        );
    }
}

#[test]
fn no_call_in_which_logs_grow_or_shrink_takes_longer_than_2_ms() {
    let limit: Limit = "sliding-window-log limit=65536 window=1s".parse().unwrap();
    for flavour in Flavour::ALL {
        let mut bench = Bench::start(flavour);
        // The older half leaves the window, and the log wraps around the end of the ring.
        bench.fill("log", limit, 28_032);
        bench.now_us += 500_000;
        bench.fill("log", limit, 28_032);
        bench.now_us += 500_000;
        bench.fill("log", limit, 27_968);
        let log = Copies { of: "log", count: 32 };
        for more in [0, 64, 640, 2_560, 2_560, 1_920] {
            bench.fill("log", limit, more);
            bench.case_on(
                "check of a log that wraps and grows",
                log,
                ScriptChoice::Smallest,
                || full_batch("log", |key| check(key, limit)),
            );
            bench.case_on(
                "check of 4 logs that wrap and grow",
                log,
                ScriptChoice::Smallest,
                || together("log", limit, 1),
            );
        }
        bench.fill("full", limit, 40_000);
        while !bench.is_full("full") {
            bench.fill("full", limit, 1);
        }
        let full = Copies { of: "full", count: 16 };
        bench.case_cut_short(
            "check of a log whose string grows",
            full,
            ScriptChoice::Smallest,
            || full_batch("full", |key| check(key, limit)),
        );
        for (left_us, of) in [(999_900, "to 6,000 charges"), (999_990, "to 1,000 charges")] {
            bench.now_us += left_us - 500_000;
            bench.case_on(
                &format!("check of a log that shrinks {of}"),
                log,
                ScriptChoice::Smallest,
                || full_batch("log", |key| check(key, limit)),
            );
            bench.now_us -= left_us - 500_000;
        }
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
            // A log of 64 units that is nearly full; for the others any state will do.
            let places = bench.fill("key", limit, 32);
            let key = Copies { of: "key", count: MAX_CHARGES };
            bench.case_on(&format!("check of {limit}"), key, ScriptChoice::Smallest, || {
                full_batch("key", |key| check(key, limit))
            });
            bench.case_on(
                &format!("refused check of {limit}"),
                key,
                ScriptChoice::Smallest,
                || full_batch("key", |key| refused(key, limit)),
            );
            bench.case_on(&format!("refund of {limit}"), key, ScriptChoice::Smallest, || {
                full_batch("key", |key| refund(key, limit, places[1]))
            });
            let many = format!("check of as many {limit} as there may be");
            bench.case_on(&many, key, ScriptChoice::Smallest, || together("key", limit, 1));
            redis::cmd("FLUSHALL").exec(&mut bench.connection).unwrap();
        }
    }
}

/// The algorithms that can have holds, with room for the most holds that a key can have.
const HOLDING: [&str; 4] = [
    "fixed-window limit=1000000 window=1h",
    "sliding-window-counter limit=1000000 window=1h",
    "sliding-window-log limit=65536 window=24h",
    "token-bucket capacity=1000000 refill=999983/h",
];

impl Bench {
    /// Makes a key with this number of holds, and some units spent.
    fn hold(&mut self, key: &str, limit: Limit, count: u64) {
        self.fill(key, limit, 100);
        for id in MAX_HOLDS as u64 / 2..MAX_HOLDS as u64 / 2 + count {
            self.call(&[reserve(key, limit, id)], ScriptChoice::Smallest);
            self.now_us += 1;
        }
    }
}

/// Each case runs on keys with the most holds that a key can have, and on keys with a usual number of holds.
#[test]
fn no_call_on_keys_with_holds_takes_longer_than_2_ms() {
    for flavour in Flavour::ALL {
        let mut bench = Bench::start(flavour);
        for text in HOLDING {
            let limit: Limit = text.parse().unwrap();
            let kind = text.split(' ').next().unwrap();
            let copies = Copies { of: "key", count: MAX_BATCH };
            let key = |number: usize| format!("key {number}");
            let (smallest, beside) = (ScriptChoice::Smallest, ScriptChoice::BesideHolds);
            let checks = || full_batch("key", |key| check(key, limit));
            let refusals = || full_batch("key", |key| refused(key, limit));
            let settlements = || full_batch("key", |key| settle(&[key.to_owned()], limit));
            let renewals = || full_batch("key", |key| renew_lease(key, limit));
            let reservations = || full_batch("key", |key| reserve(key, limit, 5_000));

            bench.hold("key", limit, 8);
            bench.case_on(
                &format!("reservation beside 8 holds, {kind}"),
                copies,
                smallest,
                reservations,
            );
            bench.case_on(
                &format!("settlement beside 8 holds, {kind}"),
                copies,
                smallest,
                settlements,
            );
            bench.case_on(
                &format!("renewal of a lease beside 8 holds, {kind}"),
                copies,
                smallest,
                renewals,
            );
            let name = format!("check beside 8 holds, {kind}");
            let one_check = || vec![check("key 0", limit)];
            bench.case_on(&name, copies, beside, one_check);
            redis::cmd("DEL").arg("key").exec(&mut bench.connection).unwrap();
            bench.fill("key", limit, 100);
            let name = format!("check without holds, {kind}");
            bench.case_on(&name, copies, smallest, one_check);
            redis::cmd("DEL").arg("key").exec(&mut bench.connection).unwrap();

            bench.hold("key", limit, MAX_HOLDS as u64);
            for (name, requests, script) in [
                ("refused reservation", reservations(), smallest),
                ("settlement", settlements(), smallest),
                ("extension", full_batch("key", |key| extend(&[key.to_owned()], limit)), smallest),
                ("renewal of a lease", renewals(), smallest),
                ("check", checks(), beside),
                ("refused check", refusals(), beside),
            ] {
                let name = format!("{name} beside 1,024 holds, {kind}");
                bench.case_cut_short(&name, copies, script, || requests);
            }
            let states = full_batch("key", |key| state(key, limit));
            bench.measure(&format!("list beside 1,024 holds, {kind}"), copies, beside, &states);
            let keys: Vec<_> = (0..3).map(key).collect();
            for (name, request) in
                [("settlement", settle(&keys, limit)), ("extension", extend(&keys, limit))]
            {
                let name = format!("{name} of 3 keys with 1,024 holds, {kind}");
                bench.case_on(&name, copies, smallest, || vec![request]);
            }
            bench.now_us += 3_601_000_000;
            let name = format!("check that charges 1,024 expired holds, {kind}");
            bench.case_cut_short(&name, copies, beside, checks);
            let name = format!("refused check beside 1,024 expired holds, {kind}");
            bench.case_cut_short(&name, copies, beside, refusals);
            bench.now_us -= 3_601_000_000;
            redis::cmd("FLUSHALL").exec(&mut bench.connection).unwrap();
        }
    }
}
