//! The loops whose instructions are counted.

use std::hint::black_box;

use anyhow::Result;
use tollgate_core::{Algorithm, Cost, Limit, UnitRequest};

use crate::peer;
use crate::scenario::{REQUESTS_BEFORE, STEP_US, Scenario};

/// The time of the first request: 50 s before windows of 60 s and of 30 days begin, so that the measured requests have a
/// previous window.
const START_US: u64 = 660 * 30 * 86_400_000_000 - 50_000_000;

/// Makes `count` requests of one subject, and calls `see` with the outcome of each: whether it was allowed.
pub(crate) fn run(
    subject: &str,
    scenario: Scenario,
    count: u64,
    see: impl FnMut(bool),
) -> Result<()> {
    match subject {
        "loop" => loop_alone(scenario, count),
        "governor-clock" => peer::clock_alone(scenario, count),
        "governor" => peer::yes_or_no(scenario, count, see)?,
        "governor-informed" => peer::remaining_or_wait(scenario, count, see)?,
        limit => match limit.parse()? {
            Limit::FixedWindow(limit) => decide(&limit, scenario, count, see)?,
            Limit::SlidingWindowLog(limit) => decide(&limit, scenario, count, see)?,
            Limit::SlidingWindowCounter(limit) => decide(&limit, scenario, count, see)?,
            Limit::TokenBucket(limit) => decide(&limit, scenario, count, see)?,
            Limit::LeakyBucket(limit) => decide(&limit, scenario, count, see)?,
            limit @ Limit::Concurrency(_) => anyhow::bail!("`{limit}` is reserved, not checked"),
        },
    }
    Ok(())
}

/// Runs the loop of [`decide`] without a decision.
fn loop_alone(scenario: Scenario, count: u64) {
    let ask = UnitRequest::new(Cost::ONE);
    each_request(START_US, scenario.step_us(), count, |_| {
        black_box(&());
        black_box(&mut ());
        black_box(&ask);
        black_box(&());
    });
}

/// Decides as stores do: through the algorithm's own type, with inputs that the compiler does not know.
fn decide<A: Algorithm>(
    limit: &A,
    scenario: Scenario,
    count: u64,
    mut see: impl FnMut(bool),
) -> Result<()> {
    let mut state = A::State::default();
    // Large costs: the products of the wide limits exceed 64 bits only after much of the limit is spent.
    let before = UnitRequest::new(Cost::new((limit.size() / 100_000).max(1))?);
    let mut now_us = each_request(START_US, STEP_US, REQUESTS_BEFORE, |now_us| {
        limit.check(&mut state, now_us, before);
    });
    let ask = UnitRequest::new(Cost::ONE);
    if scenario == Scenario::Denied {
        while limit.check(&mut state, now_us, ask).decision.is_allowed() {
            now_us += 1;
        }
    }
    let step_us = scenario.step_us();
    if scenario == Scenario::Peek {
        each_request(now_us, step_us, count, |now_us| {
            let decision = black_box(limit).peek(black_box(&state), now_us, *black_box(&ask));
            see(black_box(&decision).is_allowed());
        });
    } else {
        each_request(now_us, step_us, count, |now_us| {
            let checked = black_box(limit).check(black_box(&mut state), now_us, *black_box(&ask));
            see(black_box(&checked).decision.is_allowed());
        });
    }
    Ok(())
}

/// Calls `request` with the times of `count` requests, and returns the last time. The first one is one step after
/// `from_us`.
fn each_request(from_us: u64, step_us: u64, count: u64, mut request: impl FnMut(u64)) -> u64 {
    // Hidden from the compiler, so that a step of 0 takes the same instructions as any other step.
    let step_us = black_box(step_us);
    let mut now_us = from_us;
    for _ in 0..count {
        now_us += step_us;
        request(black_box(now_us));
    }
    now_us
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::ROWS;

    #[test]
    fn every_scenario_allows_or_denies_as_its_name_says() {
        for row in ROWS {
            for scenario in Scenario::ALL {
                let Some(subject) = row.subject(scenario) else { continue };
                let want = scenario != Scenario::Denied;
                let see = |allowed| assert_eq!(allowed, want, "{subject}, {scenario:?}");
                run(subject, scenario, 11_000, see).unwrap();
            }
        }
    }
}
