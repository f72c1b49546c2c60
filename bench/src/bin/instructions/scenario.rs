//! The scenario of a column: the properties that its requests share.

use std::str::FromStr;

use anyhow::{Context, Error, Result};

/// The number of requests before the counted ones.
pub(crate) const REQUESTS_BEFORE: u64 = 2_000;

/// The time between these requests.
pub(crate) const STEP_US: u64 = 50_000;

/// A column of the table. Before the requests that are counted, the key has 2,000 requests, 50 ms apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// Each request is allowed. They are 50 ms apart.
    Allowed,
    /// The key's quota is spent, and no time passes.
    Denied,
    /// A check without a charge, of a key whose quota is not spent, while no time passes.
    Peek,
    /// [`Scenario::Allowed`], under a limit that needs 128-bit arithmetic.
    Wide,
}

impl Scenario {
    pub(crate) const ALL: [Scenario; 4] =
        [Scenario::Allowed, Scenario::Denied, Scenario::Peek, Scenario::Wide];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Scenario::Allowed => "allowed",
            Scenario::Denied => "denied",
            Scenario::Peek => "peek",
            Scenario::Wide => "wide",
        }
    }

    /// Returns the time between two requests that are counted.
    pub(crate) const fn step_us(self) -> u64 {
        match self {
            Scenario::Allowed | Scenario::Wide => STEP_US,
            Scenario::Denied | Scenario::Peek => 0,
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
