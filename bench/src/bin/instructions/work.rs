//! The loops whose instructions are counted.

use std::hint::black_box;

use anyhow::Result;
use tollgate_core::{Algorithm, Cost, Limit, UnitRequest};

use crate::peer;
use crate::rows::Scenario;

/// 50 s before a window of 60 s and one of 30 days begin, so that both have one before them.
const START_US: u64 = 660 * 30 * 86_400_000_000 - 50_000_000;
pub(crate) const STEP_US: u64 = 50_000;
pub(crate) const REQUESTS_BEFORE: u64 = 2_000;

/// Makes `count` requests of one subject, and calls `see` with whether each was allowed.
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
        },
    }
    Ok(())
}

/// The loop of [`decide`], with nothing to decide.
fn loop_alone(scenario: Scenario, count: u64) {
    let ask = UnitRequest::new(Cost::ONE);
    each_request(START_US, step_us(scenario), count, |_| {
        black_box(&());
        black_box(&mut ());
        black_box(&ask);
        black_box(&());
    });
}

/// Decides as stores do: through the algorithm's own type, everything around it unknown.
fn decide<A: Algorithm>(
    limit: &A,
    scenario: Scenario,
    count: u64,
    mut see: impl FnMut(bool),
) -> Result<()> {
    let mut state = A::State::default();
    // The wide limits are large enough to multiply past 64 bits only once much of them is spent.
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
    let step_us = step_us(scenario);
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

/// Calls `request` with the times of `count` requests, the first one step after `from_us`; returns
/// the last.
fn each_request(from_us: u64, step_us: u64, count: u64, mut request: impl FnMut(u64)) -> u64 {
    // Hidden from the compiler, so that a step of 0 takes the same instructions as any other.
    let step_us = black_box(step_us);
    let mut now_us = from_us;
    for _ in 0..count {
        now_us += step_us;
        request(black_box(now_us));
    }
    now_us
}

pub(crate) fn step_us(scenario: Scenario) -> u64 {
    match scenario {
        Scenario::Allowed | Scenario::Wide => STEP_US,
        Scenario::Denied | Scenario::Peek => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::ROWS;

    #[test]
    fn every_scenario_is_what_its_column_says() {
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
