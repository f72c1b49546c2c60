//! What was decided about a request, by a limit or by rules, or why nothing was.

use tollgate_core::Verdict;
use tollgate_identity::Unwelcome;
use tollgate_limiter::{Decision, Error};
use tollgate_rules::Ruling;

/// What was decided about a request.
pub(super) enum StoreAnswer {
    Limit {
        decision: Decision,
        cost: u64,
        /// If it may have to be given back.
        key: Option<Box<[u8]>>,
    },
    Rules(Ruling),
    Undecided(Error),
    /// Its token is not genuine, and such requests are not wanted.
    Unwelcome(Unwelcome),
}

impl StoreAnswer {
    /// Whether the request waits before it goes.
    pub(super) fn is_delayed(&self) -> bool {
        let verdict = match self {
            StoreAnswer::Limit { decision, .. } => decision.verdict(),
            StoreAnswer::Rules(ruling) => ruling.verdict(),
            StoreAnswer::Undecided(_) => return false,
            StoreAnswer::Unwelcome(_) => return false,
        };
        matches!(verdict, Verdict::Allowed { delay_us: 1.. })
    }
}
