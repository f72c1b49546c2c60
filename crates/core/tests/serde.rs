//! Limits, decisions and receipts in JSON.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::{Value, from_str, from_value, json, to_value};
use tollgate_conformance::any;
use tollgate_core::{
    ChargePlace, ChargeReceipt, Cost, Limit, LimitDecision, MAX_UNITS, Retry, UnitRequest, Verdict,
};

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..20_u64, any::<u64>(), Just(MAX_UNITS), Just(u64::MAX)]
}

fn place() -> impl Strategy<Value = ChargePlace> {
    prop_oneof![
        (number(), number())
            .prop_map(|(start_us, window_us)| ChargePlace::Window { start_us, window_us }),
        number().prop_map(|at_us| ChargePlace::Entry { at_us }),
        (number(), number())
            .prop_map(|(charged, over_us)| ChargePlace::Bucket { charged, over_us }),
        (number(), any::<u32>(), number()).prop_map(|(lease, settlement, until_us)| {
            ChargePlace::Lease { lease, settlement, until_us }
        }),
    ]
}

fn retry() -> impl Strategy<Value = Retry> {
    prop_oneof![number().prop_map(Retry::AfterUs), Just(Retry::Never)]
}

fn decision() -> impl Strategy<Value = LimitDecision> {
    let verdict = prop_oneof![
        number().prop_map(|delay_us| Verdict::Allowed { delay_us }),
        retry().prop_map(|retry| Verdict::Denied { retry }),
    ];
    (verdict, number(), number(), number(), number()).prop_map(
        |(verdict, limit, remaining, reset_after_us, first_back_us)| LimitDecision {
            verdict,
            limit,
            remaining,
            reset_after_us,
            first_back_us,
        },
    )
}

/// The error message of reading `value` as a `T`.
fn problem<T: serde::de::DeserializeOwned + std::fmt::Debug>(value: Value) -> String {
    from_value::<T>(value).unwrap_err().to_string()
}

#[test]
fn limit_is_its_text() {
    let limit: Limit = Limit::per_second(1).burst(60).into();
    let text = json!("token-bucket capacity=60 refill=1/s");
    assert_eq!(to_value(limit).unwrap(), text);
    assert_eq!(from_value::<Limit>(text).unwrap(), limit);
}

#[test]
fn limit_is_refused_with_the_same_message_as_its_text() {
    let text = "token-bucket capacity=0 refill=1/s";
    assert_eq!(problem::<Limit>(json!(text)), text.parse::<Limit>().unwrap_err().to_string());
    let expected = "a limit like `token-bucket capacity=60 refill=1/s`";
    assert!(problem::<Limit>(json!(7)).contains(expected));
}

#[test]
fn decision_has_the_field_names_of_replay() {
    let limit: Limit = "token-bucket capacity=10 refill=1/s".parse().unwrap();
    let mut state = limit.fresh();
    let allowed = limit.check(&mut state, 0, UnitRequest::new(Cost::ONE)).decision;
    let fields = json!({
        "allowed": true, "limit": 10, "remaining": 9, "retry_after_us": null,
        "reset_after_us": 1_000_000, "delay_us": 0, "first_back_us": 0,
    });
    assert_eq!(to_value(allowed).unwrap(), fields);
    let denied = limit.check(&mut state, 0, UnitRequest::new(Cost::new(10).unwrap())).decision;
    assert_eq!(to_value(denied).unwrap()["retry_after_us"], json!(1_000_000));
    let never = limit.check(&mut state, 0, UnitRequest::new(Cost::new(11).unwrap())).decision;
    assert_eq!(to_value(never).unwrap()["retry_after_us"], Value::Null);
}

#[test]
fn line_of_replay_reads_as_a_decision() {
    let line = r#"{"at_us":0,"key":"a","cost":1,"allowed":true,"limit":10,"remaining":9,"retry_after_us":null,"reset_after_us":1000000,"delay_us":0}"#;
    let limit: Limit = "token-bucket capacity=10 refill=1/s".parse().unwrap();
    let decision = limit.check(&mut limit.fresh(), 0, UnitRequest::new(Cost::ONE)).decision;
    assert_eq!(from_str::<LimitDecision>(line).unwrap(), decision);
}

#[test]
fn contradicting_verdict_is_refused() {
    let allowed = json!({ "allowed": true, "retry_after_us": 5 });
    assert!(problem::<Verdict>(allowed).contains("`retry_after_us` of an allowed request"));
    let denied = json!({ "allowed": false, "delay_us": 5 });
    assert!(problem::<Verdict>(denied).contains("`delay_us` of a denied request"));
}

#[test]
fn receipt_has_a_cost_and_a_place() {
    let place = ChargePlace::Bucket { charged: 7, over_us: 9 };
    let receipt = ChargeReceipt::of(Cost::ONE, place);
    let fields = json!({ "cost": 1, "place": { "bucket": { "charged": 7, "over_us": 9 } } });
    assert_eq!(to_value(receipt).unwrap(), fields);
    let window = json!({ "window": { "start_us": 1, "window_us": 2 } });
    assert_eq!(
        from_value::<ChargePlace>(window).unwrap(),
        ChargePlace::Window { start_us: 1, window_us: 2 }
    );
    assert_eq!(
        from_value::<ChargePlace>(json!({ "entry": { "at_us": 3 } })).unwrap(),
        ChargePlace::Entry { at_us: 3 }
    );
}

#[test]
fn cost_out_of_range_is_refused() {
    assert_eq!(problem::<Cost>(json!(0)), "cost is 0; use at least 1");
    let fields = json!({ "cost": MAX_UNITS + 1, "place": { "entry": { "at_us": 3 } } });
    assert!(problem::<ChargeReceipt>(fields).starts_with("cost is 9007199254740992; use at most"));
}

proptest! {
    #[test]
    fn every_limit_survives_a_round_trip(limit in any::limit()) {
        let text = to_value(limit).unwrap();
        prop_assert_eq!(&text, &json!(limit.to_string()));
        prop_assert_eq!(from_value::<Limit>(text).unwrap(), limit);
    }

    #[test]
    fn every_decision_survives_a_round_trip(decision in decision()) {
        prop_assert_eq!(from_value::<LimitDecision>(to_value(decision).unwrap()).unwrap(), decision);
        let verdict = decision.verdict;
        prop_assert_eq!(from_value::<Verdict>(to_value(verdict).unwrap()).unwrap(), verdict);
    }

    #[test]
    fn every_retry_survives_a_round_trip(retry in retry()) {
        prop_assert_eq!(from_value::<Retry>(to_value(retry).unwrap()).unwrap(), retry);
    }

    #[test]
    fn every_receipt_survives_a_round_trip(cost in 1..=MAX_UNITS, place in place()) {
        let cost = Cost::new(cost).unwrap();
        let written = to_value(ChargeReceipt::of(cost, place)).unwrap();
        prop_assert_eq!(from_value::<ChargeReceipt>(written).unwrap(), ChargeReceipt::of(cost, place));
    }
}
