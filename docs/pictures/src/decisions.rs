//! The decisions on a trace, and counts of units.

use serde::Deserialize;
use tollgate_core::{Cost, Limit, UnitRequest};

use crate::traffic::TraceRequest;

/// A decision: the drawn fields of a line that `tollgate replay` prints.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub struct ReplayedDecision {
    /// When the request was made.
    pub at_us: u64,
    /// The cost of the request.
    pub cost: u64,
    /// Whether the request is allowed.
    pub allowed: bool,
    /// The largest cost that would be allowed now.
    pub remaining: u64,
    /// How long an allowed request waits before it proceeds.
    pub delay_us: u64,
}

/// Makes the decisions that `tollgate replay` would print for this trace, with the library.
pub fn decide(limit: &Limit, requests: &[TraceRequest]) -> anyhow::Result<Vec<ReplayedDecision>> {
    let mut state = limit.fresh();
    let decide = |&TraceRequest { at_us, cost }: &TraceRequest| {
        let ask = UnitRequest::new(Cost::new(cost)?);
        let decision = limit.check(&mut state, at_us, ask).decision;
        Ok(ReplayedDecision {
            at_us,
            cost,
            allowed: decision.is_allowed(),
            remaining: decision.remaining,
            delay_us: decision.delay_us(),
        })
    };
    requests.iter().map(decide).collect()
}

/// Units that pass at an instant.
#[derive(Clone, Copy)]
pub(crate) struct PassedUnits {
    pub(crate) at_us: u64,
    pub(crate) units: u64,
}

/// Returns the admitted units, at the times of their requests.
pub(crate) fn admitted(decisions: &[ReplayedDecision]) -> Vec<PassedUnits> {
    let allowed = decisions.iter().filter(|it| it.allowed);
    allowed.map(|it| PassedUnits { at_us: it.at_us, units: it.cost }).collect()
}

/// Returns the admitted units, at the times at which their requests leave.
pub(crate) fn leaving(decisions: &[ReplayedDecision]) -> Vec<PassedUnits> {
    let allowed = decisions.iter().filter(|it| it.allowed);
    allowed.map(|it| PassedUnits { at_us: it.at_us + it.delay_us, units: it.cost }).collect()
}

/// A time, and the value that holds from that time on.
pub(crate) type LevelStep = (u64, u64);

/// Returns the units that passed in the window before each instant, as the steps at which the number changes.
pub(crate) fn trailing(passing: &[PassedUnits], window_us: u64) -> Vec<LevelStep> {
    let changes = |passing: &PassedUnits| [passing.at_us, passing.at_us + window_us];
    let mut instants: Vec<u64> = passing.iter().flat_map(changes).collect();
    instants.sort_unstable();
    instants.dedup();
    let in_window = |end_us: u64| {
        let counts = |it: &&PassedUnits| it.at_us <= end_us && end_us < it.at_us + window_us;
        passing.iter().filter(counts).map(|it| it.units).sum()
    };
    std::iter::once((0, 0)).chain(instants.into_iter().map(|at| (at, in_window(at)))).collect()
}

/// Returns the most units that passed in any `interval_us` consecutive microseconds.
pub(crate) fn most_in(passing: &[PassedUnits], interval_us: u64) -> u64 {
    let from = |first: &PassedUnits| -> u64 {
        let counts =
            |it: &&PassedUnits| first.at_us <= it.at_us && it.at_us < first.at_us + interval_us;
        passing.iter().filter(counts).map(|it| it.units).sum()
    };
    passing.iter().map(from).max().unwrap_or(0)
}

/// Returns the values of `remaining`, as the steps at which it changes.
pub(crate) fn remaining(decisions: &[ReplayedDecision]) -> Vec<LevelStep> {
    let mut steps: Vec<LevelStep> = decisions.iter().map(|it| (it.at_us, it.remaining)).collect();
    steps.dedup_by_key(|(_, remaining)| *remaining);
    steps
}
