//! Traces with operations on holds.

use std::collections::HashMap;
use std::io::{Read, Write};

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use serde_json::{Value, json};
use tollgate_core::{
    Cost, EndedHold, Extension, HoldGrowth, HoldId, HoldReference, HoldTime, HoldUse, Holds, Limit,
    LimitDecision, MAX_TIME_US, Reservation, Settlement, State, UnitRequest,
};
use tollgate_launcher::{Flavour, Launch};

use crate::command::{BUCKET, replay, replay_on, stderr, stdout, tollgate};

const HEADER: &str = "at_us,key,cost,op,hold,for_us\n";

fn lines(output: &std::process::Output) -> Vec<Value> {
    let lines = stdout(output).lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Replays lines below a header with all columns, and returns the fields of each decision that these tests look at.
fn decided(limit: &str, trace: &str) -> Vec<(bool, u64, Option<u64>, Option<String>)> {
    let output = replay(limit, format!("{HEADER}{trace}").as_bytes());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let fields = |line: &Value| {
        let state = line.get("hold_state").map(|state| state.as_str().unwrap().to_owned());
        let allowed = line["allowed"].as_bool().unwrap();
        (allowed, line["remaining"].as_u64().unwrap(), line["retry_after_us"].as_u64(), state)
    };
    lines(&output).iter().map(fields).collect()
}

#[test]
fn operations_on_holds_are_printed_as_documented() {
    let trace = "0,a,6,reserve,h1,60000000\n0,a,5,check,,\n0,a,2,settle,h1,\n0,a,2,settle,h1,\n";
    let output = replay(BUCKET, format!("{HEADER}{trace}").as_bytes());
    assert_eq!(
        stdout(&output),
        r#"{"at_us":0,"key":"a","cost":6,"op":"reserve","hold":"h1","allowed":true,"limit":10,"remaining":4,"retry_after_us":null,"reset_after_us":66000000,"delay_us":0}
{"at_us":0,"key":"a","cost":5,"op":"check","hold":null,"allowed":false,"limit":10,"remaining":4,"retry_after_us":61000000,"reset_after_us":66000000,"delay_us":0}
{"at_us":0,"key":"a","cost":2,"op":"settle","hold":"h1","allowed":true,"limit":10,"remaining":8,"retry_after_us":null,"reset_after_us":2000000,"delay_us":0}
{"at_us":0,"key":"a","cost":2,"op":"settle","hold":"h1","allowed":false,"limit":10,"remaining":8,"retry_after_us":null,"reset_after_us":2000000,"delay_us":0,"hold_state":"unknown"}
"#
    );
    assert!(stderr(&output).starts_with("requests: 4, allowed: 2, denied: 2, "));
}

#[test]
fn op_and_hold_are_printed_only_where_the_trace_has_them() {
    let keys = |trace: &str| -> Vec<Vec<String>> {
        let output = replay(BUCKET, trace.as_bytes());
        let keys = |line: &Value| line.as_object().unwrap().keys().cloned().collect();
        lines(&output).iter().map(keys).collect()
    };
    let has = |trace: &str, name: &str| keys(trace)[0].iter().any(|key| key == name);
    let with_op = "at_us,key,op\n0,a,check\n";
    assert!(has(with_op, "op") && !has(with_op, "hold"));
    let with_both = "hold,at_us,for_us,key,op\n,0,,a,\n";
    assert!(has(with_both, "op") && has(with_both, "hold"));
    let plain = "at_us,key,cost\n0,a,1\n";
    assert!(!has(plain, "op") && !has(plain, "hold") && !has(plain, "hold_state"));
}

#[test]
fn hold_is_charged_at_its_expiry_and_a_late_settlement_says_expired() {
    let trace = "0,a,10,reserve,h1,1000000\n999999,a,0,extend,h1,1000000\n1999998,a,1,check,,\n\
                 1999999,a,0,settle,h1,\n1999999,a,1,extend,h1,5\n2999999,a,1,check,,\n";
    let expired = Some("expired".to_owned());
    assert_eq!(
        decided(BUCKET, trace),
        [
            (true, 0, None, None),
            (true, 0, None, None),
            (false, 0, Some(1_000_001), None),
            (false, 0, None, expired.clone()),
            (false, 0, None, expired),
            (true, 0, None, None),
        ]
    );
}

#[test]
fn settlement_of_a_hold_that_was_not_admitted_says_unknown() {
    let unknown = Some("unknown".to_owned());
    // The hold of `b` with the same name is another one.
    let trace = "0,a,11,reserve,h1,5\n0,a,0,settle,h1,\n0,b,3,reserve,h1,5\n0,a,0,extend,h1,5\n\
                 9007199254740991,a,1,settle,h1,\n";
    assert_eq!(
        decided(BUCKET, trace),
        [
            (false, 10, None, None),
            (false, 10, None, unknown.clone()),
            (true, 7, None, None),
            (false, 10, None, unknown.clone()),
            (false, 10, None, unknown),
        ]
    );
}

#[test]
fn units_used_beyond_a_hold_are_a_debt() {
    let trace = "0,a,4,reserve,h1,9\n0,a,25,settle,h1,\n0,a,1,check,,\n";
    // 4 were held, 10 more are charged, and 11 are cut: 14 are spent.
    let want = [(true, 0, None, None), (false, 0, Some(5_000_000), None)];
    assert_eq!(decided(BUCKET, trace)[1..], want);
}

#[test]
fn places_of_a_concurrency_limit_return_at_their_expiry_or_settlement() {
    let trace = "0,a,1,reserve,h1,\n0,a,1,reserve,h2,500000\n0,a,1,reserve,h3,\n499999,a,0,settle,h1,\n\
                 499999,a,1,reserve,h4,\n499999,a,1,reserve,h5,\n500000,a,1,reserve,h6,\n";
    assert_eq!(
        decided("concurrency limit=2 for=60s", trace),
        [
            (true, 1, None, None),
            (true, 0, None, None),
            (false, 0, Some(500_000), None),
            (true, 1, None, None),
            (true, 0, None, None),
            (false, 0, Some(1), None),
            (true, 0, None, None),
        ]
    );
}

#[test]
fn bad_operation_is_refused_with_its_column_and_a_remedy() {
    let mut report = String::new();
    for (name, line) in [
        ("unknown operation", "0,a,1,release,h1,"),
        ("reserve without a hold", "0,a,1,reserve,,5"),
        ("settle without a hold", "0,a,1,settle"),
        ("check with a hold", "0,a,1,check,h1,"),
        ("no operation, with a hold", "0,a,1,,h1,"),
        ("reserve without a time", "0,a,1,reserve,h1,"),
        ("extend without a time", "0,a,1,extend,h1"),
        ("time that is a word", "0,a,1,reserve,h1,30s"),
        ("time of 0", "0,a,1,reserve,h1,0"),
        ("time above 366 days", "0,a,1,reserve,h1,31622400000001"),
        ("settle with a time", "0,a,1,settle,h1,5"),
        ("check with a time", "0,a,1,check,,5"),
        ("reserve of 0", "0,a,0,reserve,h1,5"),
        ("settle of 2^53", "0,a,9007199254740992,settle,h1,"),
        ("extend by -1", "0,a,-1,extend,h1,5"),
        ("no key", "0,,1,check,,"),
        ("no time", ",a,1,check,,"),
        ("one column", "0"),
        ("seven columns", "0,a,1,check,,,"),
        ("open quote", "0,a,1,reserve,\"h1,5"),
    ] {
        let trace = format!("{HEADER}0,first,1,check,,\n{line}\n9,after,1,check,,\n");
        let output = replay(BUCKET, trace.as_bytes());
        assert_eq!((output.status.code(), stdout(&output).lines().count()), (Some(2), 1), "{name}");
        report += &format!("{name}\n  {}", stderr(&output));
    }
    for (name, header) in [
        ("column twice", "at_us,key,op,op"),
        ("no key", "at_us,op,hold"),
        ("hold without op", "at_us,key,hold"),
        ("time without op", "at_us,key,cost,for_us"),
        ("unknown column", "at_us,key,op,hold,for_s"),
    ] {
        let output = replay(BUCKET, format!("{header}\n").as_bytes());
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""), "{name}");
        report += &format!("{name}\n  {}", stderr(&output));
    }
    let shaping = "leaky-bucket capacity=10 leak=1/s mode=shaping";
    let output = replay(shaping, format!("{HEADER}0,a,1,settle,h1,\n").as_bytes());
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""));
    report += &format!("shaping limit\n  {}", stderr(&output));
    let concurrency = "concurrency limit=10 for=1s";
    let output = replay(concurrency, format!("{HEADER}0,a,1,check,,\n").as_bytes());
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""));
    report += &format!("check of a concurrency limit\n  {}", stderr(&output));
    insta::assert_snapshot!(report);
}

/// Every hold has a name of its own, of 1 KB, and is left to expire.
#[test]
fn memory_is_bounded_when_a_trace_reserves_without_end() {
    const MAX_RESIDENT_KIB: u64 = 40 * 1024;
    let mut child = tollgate(&["replay", "--limit", BUCKET, "-"]).spawn().unwrap();
    let (mut trace, mut decisions) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while decisions.read(&mut buffer).unwrap() > 0 {}
    });
    trace.write_all(HEADER.as_bytes()).unwrap();
    let padding = "x".repeat(1_000);
    for number in 0..300_000_u64 {
        let at_us = number * 1_000_000;
        writeln!(trace, "{at_us},user:{},1,reserve,{padding}{number},500000", number % 10).unwrap();
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    drop(trace);
    assert!(child.wait().unwrap().success());
    reader.join().unwrap();
    assert!(peak_kib < MAX_RESIDENT_KIB, "{peak_kib} KiB resident");
}

/// A line of a trace.
#[derive(Clone, Debug)]
struct Line {
    at_us: u64,
    key: &'static str,
    cost: u64,
    op: &'static str,
    hold: &'static str,
    for_us: u64,
}

impl Line {
    fn text(&self) -> String {
        let Line { at_us, key, cost, op, hold, for_us } = self;
        match *op {
            "check" => format!("{at_us},{key},{},check,,\n", cost.max(&1)),
            "reserve" => format!("{at_us},{key},{},reserve,{hold},{for_us}\n", cost.max(&1)),
            "settle" => format!("{at_us},{key},{cost},settle,{hold},\n"),
            _ => format!("{at_us},{key},{cost},extend,{hold},{for_us}\n"),
        }
    }
}

fn traces() -> impl Strategy<Value = Vec<Line>> {
    let steps_us = prop_oneof![
        4 => Just(0),
        8 => 0..10_i64,
        8 => 0..1_000_000_i64,
        2 => 0..100_000_000_i64,
        1 => -9_999_999..0_i64,
    ];
    let costs = prop_oneof![1 => Just(0), 6 => Just(1), 3 => 1..25_u64];
    let keys = prop::sample::select(vec!["a", "b"]);
    let ops = prop::sample::select(vec!["check", "reserve", "settle", "extend"]);
    let holds = prop::sample::select(vec!["h1", "h2", "h3"]);
    let for_us = prop_oneof![1..20_u64, 1..3_000_000_u64];
    let lines = prop::collection::vec((steps_us, keys, costs, ops, holds, for_us), 0..200);
    lines.prop_map(|lines| {
        let mut now_us = 1_700_000_000_000_000_i64;
        let line = |(step_us, key, cost, op, hold, for_us)| {
            now_us += step_us;
            Line { at_us: now_us as u64, key, cost, op, hold, for_us }
        };
        lines.into_iter().map(line).collect()
    })
}

const LIMITS: [&str; 6] = [
    "concurrency limit=10 for=1s",
    "fixed-window limit=10 window=1s",
    "sliding-window-log limit=10 window=1s",
    "sliding-window-counter limit=10 window=1s",
    "token-bucket capacity=10 refill=3/s",
    "leaky-bucket capacity=10 leak=3/s mode=policing",
];

/// Makes the checks of a trace reservations, if its limit cannot be checked.
fn checkable(limit: &str, mut trace: Vec<Line>) -> Vec<Line> {
    if limit.starts_with("concurrency") {
        trace.iter_mut().filter(|line| line.op == "check").for_each(|line| line.op = "reserve");
    }
    trace
}

/// Decides a trace with the pure functions of the core.
#[derive(Default)]
struct Model {
    keys: HashMap<&'static str, (Option<State>, Holds)>,
    references: HashMap<(&'static str, &'static str), HoldReference>,
    reserved: u64,
}

impl Model {
    fn decide(&mut self, limit: &Limit, line: &Line) -> Value {
        let (state, holds) = self.keys.entry(line.key).or_default();
        let state = state.get_or_insert_with(|| limit.fresh());
        let name = (line.key, line.hold);
        let never = HoldReference { id: HoldId(0), expires_us: MAX_TIME_US };
        let reference = self.references.get(&name).copied().unwrap_or(never);
        let cost = || Cost::new(line.cost.max(1)).unwrap();
        let hold_for = HoldTime::from_us(line.for_us).unwrap();
        let (decision, ended) = match line.op {
            "check" => {
                let request = UnitRequest::new(cost());
                (limit.check_beside(state, holds, line.at_us, request).decision, None)
            }
            "reserve" => {
                self.reserved += 1;
                let reservation = Reservation { id: HoldId(self.reserved), cost: cost(), hold_for };
                let answer = limit.reserve(state, holds, line.at_us, reservation).unwrap();
                if let Some(hold) = answer.hold {
                    self.references.insert(name, hold);
                }
                (answer.decision, None)
            }
            "settle" => {
                let used = HoldUse { units: line.cost, is_last: true };
                let answer = limit.settle_hold(state, holds, line.at_us, reference, used);
                let ended = match answer.settlement {
                    Settlement::Ended(ended) => Some(ended),
                    Settlement::Done { .. } => None,
                };
                (answer.decision, ended)
            }
            _ => {
                let growth = HoldGrowth { more: Cost::new(line.cost).ok(), hold_for };
                let answer = limit.extend_hold(state, holds, line.at_us, reference, growth);
                let ended = match answer.extension {
                    Extension::Granted { expires_us, .. } => {
                        let granted = HoldReference { expires_us, ..reference };
                        self.references.insert(name, granted);
                        None
                    }
                    Extension::Refused => None,
                    Extension::Ended(ended) => Some(ended),
                };
                (answer.decision, ended)
            }
        };
        self.line(line, &decision, ended)
    }

    fn line(&self, line: &Line, decision: &LimitDecision, ended: Option<EndedHold>) -> Value {
        let is_check = line.op == "check";
        let cost = if is_check || line.op == "reserve" { line.cost.max(1) } else { line.cost };
        let mut printed = json!({
            "at_us": line.at_us, "key": line.key, "cost": cost, "op": line.op,
            "hold": (!is_check).then_some(line.hold),
            "allowed": decision.is_allowed(), "limit": decision.limit,
            "remaining": decision.remaining, "retry_after_us": decision.retry_after_us(),
            "reset_after_us": decision.reset_after_us, "delay_us": decision.delay_us(),
        });
        if let Some(ended) = ended {
            let state = if ended == EndedHold::Expired { "expired" } else { "unknown" };
            printed["hold_state"] = json!(state);
        }
        printed
    }
}

fn assert_decides_as_the_core(store: &str, limit: &str, trace: &[Line]) -> TestCaseResult {
    let text: String = trace.iter().map(Line::text).collect();
    let output = replay_on(store, limit, format!("{HEADER}{text}").as_bytes());
    prop_assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let (limit, mut model) = (limit.parse::<Limit>().unwrap(), Model::default());
    let printed = lines(&output);
    prop_assert_eq!(printed.len(), trace.len());
    for (line, printed) in trace.iter().zip(printed) {
        prop_assert_eq!(printed, model.decide(&limit, line), "{:?}", line);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_trace_with_holds_is_decided_as_by_the_core(
        limit in prop::sample::select(&LIMITS),
        trace in traces(),
    ) {
        assert_decides_as_the_core("memory", limit, &checkable(limit, trace))?;
    }
}

#[test]
fn any_trace_with_holds_is_decided_as_by_the_core_on_redis() {
    for flavour in Flavour::ALL {
        let server = Launch::new(flavour).start().unwrap();
        let cases = (prop::sample::select(&LIMITS), traces());
        proptest!(ProptestConfig::with_cases(12), |((limit, trace) in cases)| {
            assert_decides_as_the_core(&server.url(), limit, &checkable(limit, trace))?;
        });
    }
}
