//! The errors. A denial is not an error.

use std::convert::Infallible;
use std::time::Duration;

use tollgate_core::{CostError, HoldError, LimitError};
use tollgate_lease::TermsError;

/// Why there is no decision. A spent quota is a decision, never an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A cost of 0, or of 2^53 and more.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// An invalid limit.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// Units that cannot be held: the time is 0 or above 366 days, or the limit is shaping. A concurrency limit cannot be
    /// leased.
    #[error(transparent)]
    Hold(#[from] HoldError),
    /// A limit that cannot be leased in this way.
    #[error(transparent)]
    Lease(#[from] TermsError),
    /// A check of a concurrency limit, whose units are only ever held.
    #[error(
        "the limit `{scope}` counts what runs at the same time, so it cannot be checked; reserve a unit, and release \
         it at the end"
    )]
    MustReserve {
        /// The name of the limit, or of the rule and its domain.
        scope: String,
    },
    /// A reservation, a settlement or an extension on a [store](crate::store::RemoteStore::has_holds) that has no holds.
    #[error(
        "this store has no holds, so units cannot be reserved, settled or extended; use a limiter in memory or on Redis"
    )]
    HoldsUnsupported,
    /// The numbers that a request brings for a rule's limit are not valid for that limit.
    #[error("the request's numbers do not fit the limit `{scope}`: {problem}")]
    LimitedTo {
        /// The rule, and its domain: `api/per-client`.
        scope: String,
        /// The problem, and what to do.
        problem: LimitError,
    },
    /// A limiter in memory holds at most 32,768 limits at a time; other numbers under the same name count as another
    /// limit. Dropped limits make room, unless they have keys that no other limit of their name can take
    /// over. A limiter on a store across the network holds at most 32,768 names.
    #[error("there are {count} limits already; put more keys under one limit instead")]
    TooManyLimits {
        /// The number of limits.
        count: usize,
    },
    /// Too many requests wait in `acquire`: at most [65,536](crate::Builder::max_waiting) may wait on one limiter,
    /// and at most 4,096 of them behind the first waiter of one key.
    #[error(
        "{waiting} requests are waiting already; give `acquire` a `max_wait`, or raise `max_waiting`"
    )]
    TooManyWaiting {
        /// The number of waiters for all keys together.
        waiting: usize,
    },
    /// Charges of one check belong to different limiters.
    #[error("the limits of one check belong to different limiters; make them on one")]
    DifferentLimiters,
    /// Two holds that are joined are of the same key under the same name.
    #[error("two of the holds are of one key under `{scope}`; settle them one by one")]
    SameKeyTwice {
        /// The name of the scope.
        scope: String,
    },
    /// One check has more limits than a store across the network accepts.
    #[error("{count} limits in one check; use at most {most}")]
    TooManyCharges {
        /// The number of limits in the check.
        count: usize,
        /// The largest number.
        most: usize,
    },
    /// The limits of one check need more work than one call to Redis may take.
    #[error(
        "the limits of one check come to {weight} units of work for Redis: 64 for a sliding window log above 4096 units, \
         16 for one above 64 units, 2 for a smaller one, 1 for any other limit; a hold counts as 64 under a log above 4096 \
         units and as 16 under any other limit; use at most {most}"
    )]
    TooMuchWork {
        /// The units of work.
        weight: usize,
        /// The most units of work.
        most: usize,
    },
    /// A key is longer than 1 MiB. Refused by its length alone: no byte of it is read.
    #[error("the key has {bytes} bytes; use at most {most}, for example a hash of it")]
    KeyTooLong {
        /// The length of the key.
        bytes: usize,
        /// The largest length.
        most: usize,
    },
    /// The name of a limit is longer than 4 KiB.
    #[error("the name of the limit has {bytes} bytes; use at most {most}")]
    NameTooLong {
        /// The length of the name.
        bytes: usize,
        /// The largest length.
        most: usize,
    },
    /// The receipt belongs to another key, or to a limit with another name. Nothing was refunded.
    #[error(
        "the receipt is not of this key under `{scope}`; refund it with the key and through the scope that were charged"
    )]
    ReceiptMismatch {
        /// The name of the scope that the receipt was given to.
        scope: String,
    },
    /// The keys that rules make of one request are too long.
    #[error("{bytes} bytes of keys for one request; send shorter attributes, at most {most}")]
    KeysTooLong {
        /// The length of the keys together. Keys after the one that exceeded the bound are not counted.
        bytes: usize,
        /// The largest length.
        most: usize,
    },
    /// The new rules leave domains that are in use without a rule. Requests of these domains would no longer be
    /// limited.
    #[error(
        "no rules for {domains}, which is in use: its requests would not be limited; keep rules for it, or list it \
         under `retired_domains`"
    )]
    DomainsInUse {
        /// The names of the domains, at most five.
        domains: String,
    },
    /// The state is on a store across the network, where no decision can be made without waiting.
    #[error(
        "this limiter is on a store across the network, such as Redis; await the check instead"
    )]
    MustWait,
    /// An answer was polled again after it was ready. A future must not be polled after it is ready.
    #[error("the answer was taken already; do not poll a future again after it is ready")]
    AnswerTaken,
    /// An invalid address or setting of a store.
    #[error("{setting}: {problem}")]
    Setting {
        /// The name of the setting.
        setting: &'static str,
        /// The problem, and what to do.
        problem: String,
    },
    /// The store failed: it is unknown whether the request would have been allowed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Error {
    pub(crate) fn receipt_mismatch(scope: &str) -> Error {
        Error::ReceiptMismatch { scope: scope.to_owned() }
    }
}

/// For conversions that cannot fail: `impl TryInto<Limit>` accepts a limit as well as its text.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Error {
        match never {}
    }
}

/// Why a store across the network gave no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no connection, or it broke. Requests in flight may have been charged.
    #[error("no connection to {server}: {problem}")]
    Unreachable {
        /// The server's address, without user and password.
        server: String,
        /// The problem.
        problem: String,
    },
    /// The server did not answer in time. The request may have been charged, if it was sent.
    #[error("{server} did not answer within {} ms", .after.as_micros().div_ceil(1_000))]
    Timeout {
        /// The server's address, without user and password.
        server: String,
        /// The deadline.
        after: Duration,
    },
    /// The server answered with an error, and nothing was charged; or its reply has an unexpected format.
    #[error("the server refused: {problem}")]
    Refused {
        /// The server's message.
        problem: String,
    },
    /// The value that the server has under the key is not a state of this limit. Nothing was charged, and the
    /// value is unchanged.
    #[error(
        "the value under `{key}` is not a state of this limit; reset the key, or use another prefix"
    )]
    Corrupt {
        /// The key, as it is on the server.
        key: String,
    },
    /// The tokio runtime that the limiter was built in ended while the request was in flight. The
    /// request may have been charged. Later requests are sent from a thread of the library's own.
    #[error("the runtime that the limiter was built in ended before the answer came; try again")]
    Gone,
    /// The server failed again and again, and gets no requests for a moment. Nothing was charged.
    #[error(
        "{server} keeps failing; next request in {} ms; last failure: {failure}",
        .again_in.as_millis().max(1)
    )]
    BreakerOpen {
        /// The server's address, without user and password.
        server: String,
        /// How long until the next request is sent to it.
        again_in: Duration,
        /// The last failure.
        failure: String,
    },
    /// The queue for the server is so long, or so slow, that this request could not be sent in time: the
    /// server is too slow for the load, or hangs. Nothing was charged.
    #[error("not sent in time: {waiting} units of work wait for the server")]
    Overloaded {
        /// The work in the queue: 1 for each charge, and more for requests on logs of more than 64 units.
        waiting: usize,
    },
}

impl StoreError {
    /// Every [kind](Self::kind).
    pub const KINDS: [&'static str; 7] =
        ["unreachable", "timeout", "refused", "corrupt", "gone", "breaker_open", "overloaded"];

    /// Whether the request may have been charged.
    pub(crate) fn may_have_charged(&self) -> bool {
        matches!(
            self,
            StoreError::Unreachable { .. } | StoreError::Timeout { .. } | StoreError::Gone
        )
    }

    /// Returns the kind of the error in a word, for example `timeout`. Stable, for counting.
    pub fn kind(&self) -> &'static str {
        match self {
            StoreError::Unreachable { .. } => "unreachable",
            StoreError::Timeout { .. } => "timeout",
            StoreError::Refused { .. } => "refused",
            StoreError::Corrupt { .. } => "corrupt",
            StoreError::Gone => "gone",
            StoreError::BreakerOpen { .. } => "breaker_open",
            StoreError::Overloaded { .. } => "overloaded",
        }
    }
}

impl StoreError {
    /// Returns the error of a server that answered with this problem, in one line of at most 200 characters.
    pub fn refused(problem: &str) -> StoreError {
        StoreError::Refused { problem: in_one_line(problem) }
    }

    /// Returns the error of a server that could not be reached, with the problem in one line of at most 200 characters.
    pub fn unreachable(server: &str, problem: &str) -> StoreError {
        StoreError::Unreachable { server: server.to_owned(), problem: in_one_line(problem) }
    }
}

/// Turns foreign text into one line of bounded length.
fn in_one_line(text: &str) -> String {
    let printable = |letter: char| if letter.is_control() { ' ' } else { letter };
    text.trim().chars().map(printable).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_list_every_store_error() {
        let (server, problem) = (String::from("a"), String::from("b"));
        let (after, again_in) = (Duration::from_millis(10), Duration::from_millis(10));
        let errors = [
            StoreError::Unreachable { server: server.clone(), problem: problem.clone() },
            StoreError::Timeout { server: server.clone(), after },
            StoreError::Refused { problem: problem.clone() },
            StoreError::Corrupt { key: server.clone() },
            StoreError::Gone,
            StoreError::BreakerOpen { server, again_in, failure: problem },
            StoreError::Overloaded { waiting: 1 },
        ];
        assert_eq!(errors.map(|error| error.kind()), StoreError::KINDS);
    }
}
