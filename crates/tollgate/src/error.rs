//! What can go wrong; a denial is not among it.

use tollgate_core::CostError;

/// Why there is no decision. The quota being spent is a decision, never an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A cost of 0, or of 2^53 and more.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// The name is taken by a limit with other numbers.
    #[error("limit `{name}` exists with other numbers, as `{existing}`; choose another name")]
    NameTaken {
        /// The name.
        name: String,
        /// The limit it stands for.
        existing: String,
    },
    /// A limiter holds at most 2^22 named limits.
    #[error("there are {count} limits already; put more keys under one limit instead")]
    TooManyLimits {
        /// How many.
        count: usize,
    },
    /// A limiter lets [65,536](crate::Builder::max_waiting) wait, and 4,096 behind one key's first.
    #[error("{waiting} are waiting already; give `acquire` a `max_wait`, or raise `max_waiting`")]
    TooManyWaiting {
        /// How many, for all keys together.
        waiting: usize,
    },
    /// A peek among the checks of several limits, which are charged together.
    #[error("a peek cannot be charged with others; use `check`, or `check(…).shadow()`")]
    PeekAmongChecks,
    /// Charges of one check belong to different limiters.
    #[error("the limits of one check belong to different limiters; make them on one")]
    DifferentLimiters,
}
