//! The traffic as holds: each request reserves units, and settles them when it ends. Under a concurrency limit a request is a
//! job, which holds a place until it ends.

use std::collections::VecDeque;

use tollgate_core::{
    Cost, HoldId, HoldReference, HoldTime, HoldUse, Holds, Limit, Reservation, Settlement, State,
};

/// The units of each request.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestUnits {
    pub(super) reserved: Cost,
    /// Used when the request ends; may be 0, or more than was reserved.
    pub(super) used: u64,
}

impl RequestUnits {
    /// A place of a concurrency limit.
    pub(super) const PLACE: RequestUnits = RequestUnits { reserved: Cost::ONE, used: 0 };
}

/// Units that were charged at a time, in microseconds from the beginning of the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TracedCharge {
    pub(super) at_us: u64,
    pub(super) units: u64,
}

/// How a limit decided the traffic.
#[derive(Debug, Default)]
pub(super) struct JobTrace {
    /// For each job, whether it was started.
    pub(super) is_started: Vec<bool>,
    /// The largest number of jobs that held a place at the same time.
    pub(super) most: usize,
    /// When that number was reached.
    pub(super) most_at_ms: u64,
    /// The charges of the settlements, in order of time.
    pub(super) charges: Vec<TracedCharge>,
    /// How many of the charged units were beyond the holds.
    pub(super) excess_units: u64,
}

/// A limit with its state, and the jobs that hold its units.
struct JobRun<'l> {
    limit: &'l Limit,
    state: State,
    holds: Holds,
    start_us: u64,
    used: u64,
    /// The jobs, each with the time of its end. All take the same time, so they end in the order in which they were started.
    under_way: VecDeque<(HoldReference, u64)>,
    trace: JobTrace,
}

impl JobRun<'_> {
    /// Settles the jobs that have ended by this time.
    fn end_until(&mut self, now_us: u64) {
        while let Some((hold, ends_us)) =
            self.under_way.pop_front_if(|(_, ends_us)| *ends_us <= now_us)
        {
            let used = HoldUse { units: self.used, is_last: true };
            let (state, holds) = (&mut self.state, &mut self.holds);
            let settled = self.limit.settle_hold(state, holds, ends_us, hold, used);
            if let Settlement::Done { charged_units: units, excess_units, .. } = settled.settlement
            {
                // OK because no job ends before the traffic begins.
                let at_us = ends_us - self.start_us;
                self.trace.charges.push(TracedCharge { at_us, units });
                self.trace.excess_units += excess_units;
            }
        }
    }
}

/// Starts a job at each of these times, if its units fit. Each job holds its units for `holds_us`; under a concurrency limit,
/// for at most the limit's own hold time.
pub(super) fn run(
    limit: &Limit,
    start_us: u64,
    at_ms: &[u64],
    holds_us: u64,
    units: RequestUnits,
) -> JobTrace {
    let mut run = JobRun {
        limit,
        state: limit.fresh(),
        holds: Holds::default(),
        start_us,
        used: units.used,
        under_way: VecDeque::new(),
        trace: JobTrace::default(),
    };
    for (id, at_ms) in (0..).map(HoldId).zip(at_ms) {
        // OK because the traffic is at most an hour long.
        let now_us = start_us + at_ms * 1_000;
        run.end_until(now_us);
        // Longer than the job, so that the hold is open when the job ends.
        let hold_for = limit.hold_for().or(HoldTime::from_us(holds_us + 1).ok());
        let reserved = hold_for.and_then(|hold_for| {
            let reservation = Reservation { id, cost: units.reserved, hold_for };
            limit.reserve(&mut run.state, &mut run.holds, now_us, reservation).ok()?.hold
        });
        run.trace.is_started.push(reserved.is_some());
        run.under_way.extend(reserved.map(|hold| (hold, now_us + holds_us)));
        if run.under_way.len() > run.trace.most {
            (run.trace.most, run.trace.most_at_ms) = (run.under_way.len(), *at_ms);
        }
    }
    run.end_until(u64::MAX);
    run.trace
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(limit: &str, at_ms: &[u64], holds_ms: u64) -> (Vec<bool>, usize, u64) {
        let (limit, holds_us) = (limit.parse().unwrap(), holds_ms * 1_000);
        let trace = run(&limit, 1_800_000_000_000_000, at_ms, holds_us, RequestUnits::PLACE);
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
    fn units_are_held_while_a_request_runs_and_charged_when_it_ends() {
        let limit = "fixed-window limit=10 window=1h".parse().unwrap();
        let at_ms = [0, 100, 999, 1_000, 1_001];
        for (used, started, excess) in [
            (2, [true, true, false, true, false], 0),
            (4, [true, true, false, false, false], 0),
            (6, [true, true, false, false, false], 4),
        ] {
            let units = RequestUnits { reserved: Cost::new(4).unwrap(), used };
            let trace = run(&limit, 1_800_000_000_000_000, &at_ms, 1_000_000, units);
            assert_eq!((&*trace.is_started, trace.excess_units), (&started[..], excess));
            let charge = |at_us| TracedCharge { at_us, units: used };
            assert_eq!(trace.charges[..2], [charge(1_000_000), charge(1_100_000)]);
        }
    }

    #[test]
    fn job_that_outlives_its_hold_frees_its_place_at_the_expiry() {
        let at_ms = [0, 99, 100];
        let want = vec![true, false, true];
        assert_eq!(started("concurrency limit=1 for=100ms", &at_ms, 100), (want, 1, 0));
    }
}
