//! The table: one row for each decider, one column for each scenario.

use std::str::FromStr;

use anyhow::{Context, Error, Result};

use Scenario::{Allowed, Denied, Peek};

/// A row of the table.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// The subject for [`work::run`](crate::work::run): a limit, or the name of another loop.
    usual: &'static str,
    scenarios: &'static [Scenario],
    /// The same with products past 64 bits, if the algorithm multiplies.
    wide: Option<&'static str>,
}

impl Row {
    /// Returns the subject to run in this scenario; `None` if there is nothing to measure.
    pub(crate) fn subject(&self, scenario: Scenario) -> Option<&'static str> {
        match scenario {
            Scenario::Wide => self.wide,
            _ => self.scenarios.contains(&scenario).then_some(self.usual),
        }
    }
}

/// A column of the table. Every key has 2,000 requests behind it, 50 ms apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// Each request fits; 50 ms between them.
    Allowed,
    /// The key is spent and no time passes.
    Denied,
    /// A look at a key that has room, while no time passes.
    Peek,
    /// [`Scenario::Allowed`], under a limit that needs 128-bit arithmetic.
    Wide,
}

impl Scenario {
    pub(crate) const ALL: [Scenario; 4] = [Allowed, Denied, Peek, Scenario::Wide];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Scenario::Allowed => "allowed",
            Scenario::Denied => "denied",
            Scenario::Peek => "peek",
            Scenario::Wide => "wide",
        }
    }
}

impl FromStr for Scenario {
    type Err = Error;

    fn from_str(text: &str) -> Result<Scenario> {
        let found = Scenario::ALL.into_iter().find(|scenario| scenario.name() == text);
        found.with_context(|| {
            format!("unknown scenario `{text}`; use allowed, denied, peek or wide")
        })
    }
}

const EVERY: &[Scenario] = &[Allowed, Denied, Peek];
const CHECKS: &[Scenario] = &[Allowed, Denied];

/// The limits admit 20 requests a second for the ten minutes a run takes, the buckets by filling
/// slowly. The wide ones are a petabyte in 30 days, counted in bytes.
pub(crate) const ROWS: &[Row] = &[
    Row { name: "loop alone", usual: "loop", scenarios: EVERY, wide: None },
    Row {
        name: "fixed-window",
        usual: "fixed-window limit=2000 window=60s",
        scenarios: EVERY,
        wide: None,
    },
    Row {
        name: "sliding-window-log, 1,200 to 2,000 entries",
        usual: "sliding-window-log limit=2000 window=60s",
        scenarios: EVERY,
        wide: None,
    },
    Row {
        name: "sliding-window-log, 65,536 entries",
        usual: "sliding-window-log limit=65536 window=60s",
        scenarios: &[Denied],
        wide: None,
    },
    Row {
        name: "sliding-window-counter",
        usual: "sliding-window-counter limit=2000 window=60s",
        scenarios: EVERY,
        wide: Some("sliding-window-counter limit=1000000000000000 window=30d"),
    },
    Row {
        name: "token-bucket",
        usual: "token-bucket capacity=1000 refill=19/s",
        scenarios: EVERY,
        wide: Some("token-bucket capacity=1000000000000000 refill=999999999999989/30d"),
    },
    Row {
        name: "leaky-bucket, policing",
        usual: "leaky-bucket capacity=1000 leak=19/s mode=policing",
        scenarios: EVERY,
        wide: Some("leaky-bucket capacity=1000000000000000 leak=999999999999989/30d mode=policing"),
    },
    Row {
        name: "leaky-bucket, shaping",
        usual: "leaky-bucket capacity=1000 leak=19/s mode=shaping",
        scenarios: EVERY,
        wide: Some("leaky-bucket capacity=1000000000000000 leak=999999999999989/30d mode=shaping"),
    },
    Row {
        name: "loop and governor's fake clock",
        usual: "governor-clock",
        scenarios: CHECKS,
        wide: None,
    },
    Row { name: "governor, yes or no", usual: "governor", scenarios: CHECKS, wide: None },
    Row {
        name: "governor, remaining or wait",
        usual: "governor-informed",
        scenarios: CHECKS,
        wide: None,
    },
];
