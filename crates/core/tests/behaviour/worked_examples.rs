//! Worked examples from the literature, with every field of every decision.

use std::time::Duration;

use serde::Deserialize;
use tollgate_core::{Algorithm, Cost, Limit, SlidingWindowCounter, UnitRequest, WindowPair};

#[derive(Deserialize)]
struct Examples {
    examples: Vec<Example>,
    sliding_counter_estimates: Vec<Estimate>,
}

#[derive(Deserialize)]
struct Example {
    name: String,
    limit: String,
    requests: Vec<Row>,
}

/// `at_us, key, cost, allowed, remaining, retry_after_us, reset_after_us, delay_us`
type Row = (u64, String, u64, bool, u64, Option<u64>, u64, u64);

#[derive(Deserialize)]
struct Estimate {
    previous: u64,
    current: u64,
    elapsed_s: u64,
    window_s: u64,
    limit: u64,
    estimate: f64,
    allowed: bool,
}

fn examples() -> Examples {
    serde_json::from_str(include_str!("data/worked-examples.json")).unwrap()
}

#[test]
fn every_decision_equals_the_worked_example() {
    for Example { name, limit, requests } in examples().examples {
        let limit: Limit = limit.parse().unwrap();
        let mut states = std::collections::HashMap::new();
        for (line, expected) in requests.into_iter().enumerate() {
            let (at_us, key, cost, ..) = &expected;
            let state = states.entry(key.clone()).or_insert_with(|| limit.fresh());
            let request = UnitRequest::new(Cost::new(*cost).unwrap());
            let got = limit.check(state, *at_us, request).decision;
            let row: Row = (
                *at_us,
                key.clone(),
                *cost,
                got.is_allowed(),
                got.remaining,
                got.retry_after_us(),
                got.reset_after_us,
                got.delay_us(),
            );
            assert_eq!(row, expected, "{name}, request {line}");
        }
    }
}

#[test]
fn counter_estimates_as_the_articles_do() {
    for example in examples().sliding_counter_estimates {
        let window = Duration::from_secs(example.window_s);
        let limit = SlidingWindowCounter::new(example.limit, window).unwrap();
        let start_us = 60 * limit.window_us();
        let windows = WindowPair { start_us, current: example.current, previous: example.previous };
        let now_us = start_us + example.elapsed_s * 1_000_000;
        let decision = limit.peek(&windows, now_us, UnitRequest::new(Cost::ONE));
        assert_eq!(decision.is_allowed(), example.allowed);
        // The articles' estimates are small multiples of a quarter: exact as floats.
        let whole = example.estimate.floor() as u64;
        assert_eq!(decision.remaining, example.limit.saturating_sub(whole));
    }
}
