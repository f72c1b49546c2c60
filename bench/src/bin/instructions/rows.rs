//! The table: one row for each decider, one column for each scenario.

use crate::scenario::Scenario::{self, Allowed, Denied, Peek};

/// A row of the table.
pub(crate) struct DeciderRow {
    pub(crate) name: &'static str,
    /// The subject for [`work::run`](crate::work::run): a limit, or the name of another loop.
    usual: &'static str,
    scenarios: &'static [Scenario],
    /// A subject whose products exceed 64 bits, if the algorithm multiplies.
    wide: Option<&'static str>,
}

impl DeciderRow {
    /// Returns the subject to run in this scenario; `None` if there is nothing to measure.
    pub(crate) fn subject(&self, scenario: Scenario) -> Option<&'static str> {
        match scenario {
            Scenario::Wide => self.wide,
            _ => self.scenarios.contains(&scenario).then_some(self.usual),
        }
    }
}

const EVERY: &[Scenario] = &[Allowed, Denied, Peek];
const CHECKS: &[Scenario] = &[Allowed, Denied];

/// The rows. Each limit admits 20 requests a second for the ten minutes of a run; a bucket fills slowly in that time. The
/// wide limits are a petabyte in 30 days, counted in bytes.
pub(crate) const ROWS: &[DeciderRow] = &[
    DeciderRow { name: "loop alone", usual: "loop", scenarios: EVERY, wide: None },
    DeciderRow {
        name: "fixed-window",
        usual: "fixed-window limit=2000 window=60s",
        scenarios: EVERY,
        wide: None,
    },
    DeciderRow {
        name: "sliding-window-log, 1,200 to 2,000 entries",
        usual: "sliding-window-log limit=2000 window=60s",
        scenarios: EVERY,
        wide: None,
    },
    DeciderRow {
        name: "sliding-window-log, 65,536 entries",
        usual: "sliding-window-log limit=65536 window=60s",
        scenarios: &[Denied],
        wide: None,
    },
    DeciderRow {
        name: "sliding-window-counter",
        usual: "sliding-window-counter limit=2000 window=60s",
        scenarios: EVERY,
        wide: Some("sliding-window-counter limit=1000000000000000 window=30d"),
    },
    DeciderRow {
        name: "token-bucket",
        usual: "token-bucket capacity=1000 refill=19/s",
        scenarios: EVERY,
        wide: Some("token-bucket capacity=1000000000000000 refill=999999999999989/30d"),
    },
    DeciderRow {
        name: "leaky-bucket, policing",
        usual: "leaky-bucket capacity=1000 leak=19/s mode=policing",
        scenarios: EVERY,
        wide: Some("leaky-bucket capacity=1000000000000000 leak=999999999999989/30d mode=policing"),
    },
    DeciderRow {
        name: "leaky-bucket, shaping",
        usual: "leaky-bucket capacity=1000 leak=19/s mode=shaping",
        scenarios: EVERY,
        wide: Some("leaky-bucket capacity=1000000000000000 leak=999999999999989/30d mode=shaping"),
    },
    DeciderRow {
        name: "loop and governor's fake clock",
        usual: "governor-clock",
        scenarios: CHECKS,
        wide: None,
    },
    DeciderRow { name: "governor, yes or no", usual: "governor", scenarios: CHECKS, wide: None },
    DeciderRow {
        name: "governor, remaining or wait",
        usual: "governor-informed",
        scenarios: CHECKS,
        wide: None,
    },
];
