//! The errors of the playground.

use std::time::Duration;

/// Why the playground did not answer. Not `#[non_exhaustive]`, because a server has to turn every error into a response.
#[derive(Debug, thiserror::Error)]
pub enum PlaygroundError {
    /// A value is out of range. The message names the value and the range.
    #[error("{0}")]
    Invalid(String),
    /// Too many sessions are active at the moment, or they make too many requests.
    #[error("too many sessions are active; try again later")]
    Busy {
        /// How long to wait, if that is known.
        retry_after: Option<Duration>,
    },
    /// The session has as many open holds as it can have.
    #[error(
        "this session has {most} open holds, and cannot have more; settle one, or wait until one expires"
    )]
    TooManyHolds {
        /// The largest number of open holds of a session.
        most: usize,
        /// How long to wait until a hold has expired.
        retry_after: Duration,
    },
    /// The limiter failed, because its store did.
    #[error(transparent)]
    Limiter(#[from] tollgate::Error),
}
