//! A Redis and a Valkey that play the traces that the core has played.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Instant;

use proptest::prelude::*;
use redis::{Connection, Pipeline, Value};
use tollgate_core::store::LogStorage;
use tollgate_core::{
    ChargePlace, ChargeReceipt, Cost, Limit, Log, SettleAnswer, Settlement, State,
};
use tollgate_launcher::{Flavour, Launch, Server};
use tollgate_limiter::Decision;

use super::super::fault::Fault;
use super::super::script::Script;
use super::super::wire::{Arguments, Reply, RequestOutcome, ScriptReply, StoreRequest};
use super::model::{ExpectedReply, Key, PlayedBatch, Spare};

const S: u64 = 1_000_000;

/// The time to live that the test gives every key: 200 years, which no script sets. If a key still has it after a
/// batch, the batch has not changed the key's expiry. No key expires during a test, although a trace takes years.
const MARK_MS: u64 = 200 * 366 * 86_400 * 1_000;

/// One server of each flavour.
pub(super) struct Servers {
    each: Vec<RefCell<Player>>,
}

struct Player {
    flavour: Flavour,
    connection: Connection,
    _server: Server,
    /// The hashes of the scripts that use the trace's time, by the hash of the original script.
    scripts: HashMap<&'static str, String>,
    expiries: HashMap<Vec<u8>, KeyExpiry>,
    /// The number of answers from scripts for plain checks, from the other scripts, and from the one that carries over.
    decided: [u64; 3],
}

/// When a key expires, by the server's clock, and how long it is kept after it is no longer needed.
#[derive(Clone, Copy, Debug)]
struct KeyExpiry {
    at_us: u64,
    /// How much too early `at_us` may be: real time passes while the script runs.
    early_us: u64,
    spare: Spare,
}

impl Servers {
    pub(super) fn start() -> Servers {
        let start = |flavour| {
            let server = Launch::new(flavour).start().unwrap_or_else(|error| panic!("{error}"));
            let client = redis::Client::open(server.unix_url()).unwrap();
            RefCell::new(Player {
                flavour,
                connection: client.get_connection().unwrap(),
                _server: server,
                scripts: HashMap::new(),
                expiries: HashMap::new(),
                decided: [0; 3],
            })
        };
        Servers { each: Flavour::ALL.map(start).into() }
    }

    /// Removes all keys.
    pub(super) fn forget(&self) {
        for player in &self.each {
            let mut player = player.borrow_mut();
            player.expiries.clear();
            redis::cmd("FLUSHALL").exec(&mut player.connection).unwrap();
        }
    }

    pub(super) fn play(&self, played: &PlayedBatch, keys: &[Key]) -> Result<(), TestCaseError> {
        self.each.iter().try_for_each(|player| player.borrow_mut().play(played, keys))
    }

    /// Describes how many decisions there were.
    pub(super) fn decided(&self) -> String {
        let sum = |kind: usize| -> u64 {
            self.each.iter().map(|player| player.borrow().decided[kind]).sum()
        };
        format!(
            "{} answers of plain scripts, {} of others, {} carried over",
            sum(0),
            sum(1),
            sum(2)
        )
    }
}

impl Player {
    /// Plays a batch, and then reads the state of every key.
    fn play(&mut self, played: &PlayedBatch, keys: &[Key]) -> Result<(), TestCaseError> {
        let looks: Vec<StoreRequest> = keys
            .iter()
            .map(|key| StoreRequest::State { charge: key.charge(Cost::ONE.into()), at_us: None })
            .collect();
        let began = Instant::now();
        let replies = self.replies(&played.requests, played.now_us);
        let mut pipeline = Pipeline::new();
        for key in keys {
            pipeline.cmd("PTTL").arg(&key.name);
            pipeline.cmd("PEXPIRE").arg(&key.name).arg(MARK_MS).ignore();
        }
        let values: Vec<Value> = pipeline.query(&mut self.connection).unwrap();
        let took_us = began.elapsed().as_micros() as u64;
        let states = self.replies(&looks, played.now_us);
        self.compare_answers(played, replies)?;
        self.compare_states(played.now_us, keys, states)?;
        for (key, ttl_ms) in keys.iter().zip(values) {
            let Value::Int(ttl_ms) = ttl_ms else { panic!("{ttl_ms:?}") };
            self.compare_expiry(played, key, ttl_ms, took_us)?;
        }
        Ok(())
    }

    /// The replies to a batch. Requests that are put off are sent again, to the script that carries over, and requests
    /// that are left for later are sent again after that.
    fn replies(&mut self, requests: &[StoreRequest], now_us: u64) -> Vec<Result<Reply, Fault>> {
        let mut replies: Vec<_> = requests.iter().map(|_| None).collect();
        let mut left: Vec<usize> = (0..requests.len()).collect();
        while !left.is_empty() {
            let all: Vec<&StoreRequest> = left.iter().map(|&index| &requests[index]).collect();
            let arguments = Arguments::of(all.iter().copied());
            let kind = if arguments.abilities.is_plain() { 0 } else { 1 };
            let (mut put_off, mut have_holds, mut later) = (Vec::new(), Vec::new(), Vec::new());
            for (index, outcome) in left.into_iter().zip(self.run(&arguments, &all, now_us)) {
                match outcome {
                    RequestOutcome::Reply(reply) => replies[index] = Some(reply),
                    RequestOutcome::PutOff => put_off.push(index),
                    RequestOutcome::PutOffForHolds => have_holds.push(index),
                    RequestOutcome::Later => later.push(index),
                }
            }
            let undecided = put_off.len() + have_holds.len() + later.len();
            self.decided[kind] += (all.len() - undecided) as u64;
            if !have_holds.is_empty() {
                let again: Vec<&StoreRequest> =
                    have_holds.iter().map(|&index| &requests[index]).collect();
                let arguments = Arguments::of(again.iter().copied()).beside_holds();
                let outcomes = self.run(&arguments, &again, now_us);
                for (index, outcome) in have_holds.into_iter().zip(outcomes) {
                    match outcome {
                        RequestOutcome::Reply(reply) => replies[index] = Some(reply),
                        RequestOutcome::Later => later.push(index),
                        _ => put_off.push(index),
                    }
                }
            }
            if !put_off.is_empty() {
                let again: Vec<&StoreRequest> =
                    put_off.iter().map(|&index| &requests[index]).collect();
                let arguments = Arguments::of(again.iter().copied()).carrying_over();
                for (index, outcome) in
                    put_off.into_iter().zip(self.run(&arguments, &again, now_us))
                {
                    match outcome {
                        RequestOutcome::Reply(reply) => {
                            replies[index] = Some(reply);
                            self.decided[2] += 1;
                        }
                        RequestOutcome::Later => later.push(index),
                        RequestOutcome::PutOff | RequestOutcome::PutOffForHolds => {
                            panic!("put off again")
                        }
                    }
                }
            }
            later.sort_unstable();
            left = later;
        }
        replies.into_iter().map(|reply| reply.unwrap_or_else(|| panic!("no reply"))).collect()
    }

    fn run(
        &mut self,
        arguments: &Arguments<'_>,
        requests: &[&StoreRequest],
        now_us: u64,
    ) -> Vec<RequestOutcome> {
        let script = self.script(arguments.abilities.script());
        let mut command = arguments.command("EVALSHA", &script);
        let mut answers =
            ScriptReply::of(command.arg(now_us).query(&mut self.connection).unwrap()).unwrap();
        requests.iter().map(|request| answers.next(request)).collect()
    }

    fn script(&mut self, script: &'static Script) -> String {
        let connection = &mut self.connection;
        let load = || {
            // Seconds and microseconds: the whole time is in the microseconds.
            let text = script.text.replace(r#"redis.call("TIME")"#, "{ 0, ARGV[3] }");
            assert_ne!(text, script.text);
            let text = with_small_numbers(text);
            redis::cmd("SCRIPT").arg("LOAD").arg(text).query(connection).unwrap()
        };
        self.scripts.entry(&script.hash).or_insert_with(load).clone()
    }

    fn compare_answers(
        &self,
        played: &PlayedBatch,
        replies: Vec<Result<Reply, Fault>>,
    ) -> Result<(), TestCaseError> {
        let asked = played.requests.iter().zip(&played.expected);
        for ((request, expected), reply) in asked.zip(replies) {
            let is_same = match (&reply, expected) {
                (Ok(Reply::Decision(own)), ExpectedReply::CheckResult(expected)) => {
                    let receipt = own.receipt().map(|own| (own.cost(), rounded(own.place())));
                    *own.decided() == expected.decision
                        && receipt == expected.receipt.as_ref().map(comparable_receipt)
                }
                (Ok(Reply::Decision(own)), ExpectedReply::Peeked(expected)) => {
                    own.decided() == expected
                }
                (Ok(Reply::JointDecision(joint)), ExpectedReply::Peeked(expected)) => {
                    let (is_allowed, each) = (joint.is_allowed(), joint.each());
                    let is_own =
                        |own: &Decision| own.decided() == expected && own.receipt().is_none();
                    is_allowed == expected.is_allowed() && each.iter().all(is_own)
                }
                (Ok(Reply::Refunded(own)), ExpectedReply::Refunded(expected)) => own == expected,
                (Ok(Reply::JointDecision(joint)), ExpectedReply::Reserved(expected)) => {
                    let own = joint.each()[0].decided();
                    *own == expected.decision && joint.hold(0) == expected.hold
                }
                (Ok(Reply::Settled(own)), ExpectedReply::Settled(expected)) => {
                    own.len() == 1 && is_same_settlement(&own[0], expected)
                }
                (Ok(Reply::Extended(own)), ExpectedReply::Extended(expected)) => {
                    own[..] == [*expected]
                }
                (Ok(Reply::Leased(own)), ExpectedReply::Leased(expected)) => {
                    let receipt = own.receipt.as_ref().map(comparable_receipt);
                    (own.decision, own.lease) == (expected.decision, expected.lease)
                        && receipt == expected.receipt.as_ref().map(comparable_receipt)
                }
                (Ok(Reply::Reset), ExpectedReply::Reset) => true,
                _ => false,
            };
            let (flavour, now_us) = (self.flavour, played.now_us);
            prop_assert!(
                is_same,
                "{flavour} at {now_us}: {request:?}\n is {reply:?}\nnot {expected:?}"
            );
        }
        Ok(())
    }

    fn compare_states(
        &self,
        now_us: u64,
        keys: &[Key],
        states: Vec<Result<Reply, Fault>>,
    ) -> Result<(), TestCaseError> {
        for (key, state) in keys.iter().zip(states) {
            let Ok(Reply::State { limit, state, holds, .. }) = state else {
                panic!("{state:?} of {key:?}")
            };
            let expected = key.decides(now_us, Cost::ONE);
            prop_assert_eq!(limit, expected.0, "{} of {:?}", self.flavour, key);
            prop_assert_eq!(holds, expected.2, "{} of {:?}", self.flavour, key);
            let (own, expected) = (comparable(&limit, *state), comparable(&limit, expected.1));
            prop_assert_eq!(own, expected, "{} of {:?}", self.flavour, key);
        }
        Ok(())
    }

    /// Compares when the key expires with when it should, if it was written.
    fn compare_expiry(
        &mut self,
        played: &PlayedBatch,
        key: &Key,
        ttl_ms: i64,
        took_us: u64,
    ) -> Result<(), TestCaseError> {
        let context = format!("{} at {}: {key:?}", self.flavour, played.now_us);
        if !key.is_kept {
            self.expiries.remove(&key.name);
            prop_assert_eq!(ttl_ms, -2, "there is a key: {}", context);
            return Ok(());
        }
        prop_assert!(ttl_ms >= 0, "{ttl_ms}: {context}");
        let ttl_s = (ttl_ms as u64).div_ceil(1_000);
        let is_as_before = ttl_s > MARK_MS / 1_000 / 2;
        if let Some(spare) = key.written.filter(|_| !is_as_before) {
            let expiry = KeyExpiry { at_us: played.now_us + ttl_s * S, early_us: took_us, spare };
            self.expiries.insert(key.name.clone(), expiry);
        }
        prop_assert!(is_as_before || key.written.is_some(), "it was not written: {context}");
        prop_assert!(!is_as_before || key.written.is_none() || played.is_plain, "{context}");
        let Some(expiry) = self.expiries.get(&key.name) else { panic!("no expiry: {context}") };
        let expires_us = key.expires_us(played.now_us);
        // Times beyond 2^53 round.
        if key.written.is_none() || expires_us >= 1 << 53 {
            return Ok(());
        }
        let spare_us = expiry.at_us as i64 - expires_us as i64;
        let is_enough =
            expiry.spare == Spare::Unknown || spare_us + expiry.early_us as i64 > 10 * S as i64;
        let is_too_much = expiry.spare == Spare::Seconds && spare_us > 11 * S as i64;
        prop_assert!(is_enough && !is_too_much, "{spare_us} us to spare, {expiry:?}, {context}");
        Ok(())
    }
}

/// Makes the script leave holes in short logs and compact a few slots at a time, so that traces of hundreds of steps
/// reach the states that take thousands of charges otherwise.
fn with_small_numbers(mut text: String) -> String {
    for (marker, long, short) in [
        (
            "holes",
            "COMPACT_SLOTS, GROW_SLOTS = 512, 128, 512, 16",
            "COMPACT_SLOTS, GROW_SLOTS = 512, 3, 5, 2",
        ),
        ("ring.remove", "local NEAR = 64", "local NEAR = 3"),
        ("is_to_grow", "log.capacity > 4096", "log.capacity > 24"),
    ] {
        let shorter = text.replace(long, short);
        assert_eq!(shorter != text, text.contains(marker), "{long}");
        text = shorter;
    }
    text
}

/// Returns the parts of a receipt that can be compared.
fn comparable_receipt(receipt: &ChargeReceipt) -> (Cost, ChargePlace) {
    (receipt.cost(), rounded(receipt.place()))
}

/// Returns a place whose times beyond 2^53 are 2^53: on the server they round.
fn rounded(place: ChargePlace) -> ChargePlace {
    match place {
        ChargePlace::Bucket { charged, over_us } => {
            ChargePlace::Bucket { charged, over_us: over_us.min(1 << 53) }
        }
        place => place,
    }
}

fn is_same_settlement(own: &SettleAnswer, expected: &SettleAnswer) -> bool {
    let parts = |answer: &SettleAnswer| match &answer.settlement {
        Settlement::Done { charged_units, excess_units, cut_units, freed_units, receipt } => {
            let units = [*charged_units, *excess_units, *cut_units, *freed_units];
            Ok((units, receipt.as_ref().map(comparable_receipt)))
        }
        Settlement::Ended(ended) => Err(*ended),
    };
    own.decision == expected.decision && parts(own) == parts(expected)
}

/// Returns a state that can be compared: a log's running sums may begin anywhere, so only its charges within a window
/// of the last one count.
fn comparable(limit: &Limit, state: State) -> State {
    match &state {
        State::Log(log) => {
            let entries = limit.entries(&state, 0).unwrap();
            State::Log(Log::of(log.coarsened().charged_us, entries))
        }
        _ => state,
    }
}
