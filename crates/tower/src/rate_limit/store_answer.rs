//! The answer to a check, by a limit or by rules, or why there is no decision.

use tollgate_core::Verdict;
use tollgate_identity::TokenRefusal;
use tollgate_limiter::{Decision, Error};
use tollgate_rules::Ruling;

/// The answer to a check.
pub(super) enum StoreAnswer {
    Limit {
        decision: Decision,
        cost: u64,
        /// The request's key, if its charge may be refunded.
        key: Option<Box<[u8]>>,
    },
    Rules(Ruling),
    Undecided(Error),
    /// The request's token is not valid, and the settings refuse such requests.
    TokenRefusal(TokenRefusal),
}

impl StoreAnswer {
    /// Whether the request is delayed.
    pub(super) fn is_delayed(&self) -> bool {
        let verdict = match self {
            StoreAnswer::Limit { decision, .. } => decision.verdict(),
            StoreAnswer::Rules(ruling) => ruling.verdict(),
            StoreAnswer::Undecided(_) => return false,
            StoreAnswer::TokenRefusal(_) => return false,
        };
        matches!(verdict, Verdict::Allowed { delay_us: 1.. })
    }
}
