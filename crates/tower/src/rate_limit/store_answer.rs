//! The answer to a check, by a limit or by rules, or why there is no decision.

use tollgate_core::Verdict;
use tollgate_identity::TokenRefusal;
use tollgate_limiter::{Decision, Error, Hold, HoldDecision};
use tollgate_rules::Ruling;

/// The answer to a check.
pub(super) enum StoreAnswer {
    Limit {
        decision: Decision,
        /// The hold of a reservation that was admitted.
        hold: Option<Hold>,
        cost: u64,
        /// The request's key, if it has a hold, or if its charge may be refunded.
        key: Option<Box<[u8]>>,
    },
    Rules(Ruling),
    Undecided(Error),
    /// The request's token is not valid, and the settings refuse such requests.
    TokenRefusal(TokenRefusal),
}

impl StoreAnswer {
    /// Returns the answer to the reservation of a limit.
    pub(super) fn reserved(reserved: HoldDecision, cost: u64, key: Box<[u8]>) -> StoreAnswer {
        let (decision, hold) = reserved.into_parts();
        StoreAnswer::Limit { decision, hold, cost, key: Some(key) }
    }

    /// Whether units are held for the request.
    pub(super) fn is_held(&self) -> bool {
        match self {
            StoreAnswer::Limit { hold, .. } => hold.is_some(),
            StoreAnswer::Rules(ruling) => ruling.hold().is_some_and(|hold| !hold.is_empty()),
            StoreAnswer::Undecided(_) | StoreAnswer::TokenRefusal(_) => false,
        }
    }

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
