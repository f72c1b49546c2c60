//! The traffic under a concurrency limit: each request is a job, which holds a place until it ends.

use std::collections::VecDeque;

use tollgate_core::{Cost, HoldId, HoldReference, HoldTime, HoldUse, Holds, Limit, Reservation};

/// How a concurrency limit decided the traffic.
#[derive(Debug, Default)]
pub(super) struct JobTrace {
    /// For each job, whether it was started.
    pub(super) is_started: Vec<bool>,
    /// The largest number of jobs that held a place at the same time.
    pub(super) most: usize,
    /// When that number was reached.
    pub(super) most_at_ms: u64,
}

/// Starts a job at each of these times, if a place is free. Each job holds its place for `holds_us`, at most the limit's
/// own hold time.
pub(super) fn run(limit: &Limit, start_us: u64, at_ms: &[u64], holds_us: u64) -> JobTrace {
    let (mut state, mut holds) = (limit.fresh(), Holds::default());
    // All jobs hold their places for the same time, so they end in the order in which they were started.
    let mut under_way = VecDeque::<(HoldReference, u64)>::new();
    let mut trace = JobTrace::default();
    for (id, at_ms) in (0..).map(HoldId).zip(at_ms) {
        // OK because the traffic is at most an hour long.
        let now_us = start_us + at_ms * 1_000;
        while let Some((hold, _)) = under_way.pop_front_if(|(_, ends_us)| *ends_us <= now_us) {
            let used = HoldUse { units: 1, is_last: true };
            limit.settle_hold(&mut state, &mut holds, now_us, hold, used);
        }
        let hold_for = limit.hold_for().or(HoldTime::from_us(holds_us).ok());
        let reserved = hold_for.and_then(|hold_for| {
            let reservation = Reservation { id, cost: Cost::ONE, hold_for };
            limit.reserve(&mut state, &mut holds, now_us, reservation).ok()?.hold
        });
        trace.is_started.push(reserved.is_some());
        under_way.extend(reserved.map(|hold| (hold, now_us + holds_us)));
        if under_way.len() > trace.most {
            (trace.most, trace.most_at_ms) = (under_way.len(), *at_ms);
        }
    }
    trace
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(limit: &str, at_ms: &[u64], holds_ms: u64) -> (Vec<bool>, usize, u64) {
        let trace = run(&limit.parse().unwrap(), 1_800_000_000_000_000, at_ms, holds_ms * 1_000);
        (trace.is_started, trace.most, trace.most_at_ms)
    }

    #[test]
    fn job_is_started_at_the_instant_at_which_another_ends() {
        let limit = "concurrency limit=2 for=1m";
        let at_ms = [0, 500, 999, 1_000, 1_400, 1_500, 9_000];
        let want = vec![true, true, false, true, false, true, true];
        assert_eq!(started(limit, &at_ms, 1_000), (want, 2, 500));
    }

    #[test]
    fn job_that_outlives_its_hold_frees_its_place_at_the_expiry() {
        let at_ms = [0, 99, 100];
        let want = vec![true, false, true];
        assert_eq!(started("concurrency limit=1 for=100ms", &at_ms, 100), (want, 1, 0));
    }
}
