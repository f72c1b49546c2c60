//! The decision on a request that the store across the network failed to decide.
//!
//! - `terms`: the deadline and the policy of a request
//! - `share`: the limit that one of several processes decides on
//! - `last_seen`: what the store last answered about a key; `starting_point`: the state that a share begins with

mod last_seen;
mod share;
mod starting_point;
mod terms;

pub(crate) use last_seen::{LastSeen, SeenKeys};
pub(crate) use share::share_of;
pub(crate) use starting_point::{Spending, SpentUnits, starting_point};
pub(crate) use terms::{StoreTerms, bounded_deadline};

/// The policy for a check when the store fails: it cannot be reached, is too slow, or answers with an error.
/// Every decision that is made without the store is marked [degraded](crate::Decision::is_degraded).
///
/// The policy applies to checks, peeks and acquires. A refund, a reset or a listing that fails is an error.
///
/// A limiter may have a policy (`Redis::on_failure`), and a scope may have its own
/// ([`Scope::on_failure`](crate::Scope::on_failure)). The default is [`Local`](Self::Local), on the share of one of the
/// processes that the store knows.
///
/// In a check of several limits, the strictest policy of the enforced limits applies to all of them: closed
/// before local, local before open. Among local policies the one with the smallest share applies; a number of processes
/// that was set takes precedence over the number that the store knows. A check that
/// has only shadow limits never fails: closed counts as open there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// The request is allowed, as if its key had spent nothing. There is no bound on what is admitted while
    /// the store fails. An acquire under this policy does not wait.
    Open,
    /// The check is an [error](crate::Error::Store): for logins and payments. An HTTP service answers it with
    /// 503 instead of 429, because no quota is spent.
    Closed,
    /// This process decides the request on its share of the limit: a limit of 100 for 4 processes is 25 in
    /// each, at a quarter of the rate.
    ///
    /// The share begins with the state of the key that the store last answered to this process. A key that was spent
    /// stays spent, and gets units back as its limit says. A key of which a quarter remained has a quarter of each share.
    /// A key that this process has not seen begins with the whole share.
    ///
    /// While the store fails, all processes together then admit no more than the limit, in addition to what
    /// the store admitted before. A share is at least 1: with more processes than the limit has units, each
    /// process admits one unit. A request that costs more than the share is refused. Charges to the
    /// share are remembered for the next failure, and cannot be refunded.
    Local {
        /// The number of processes; 0 counts as 1. With `None` this is the number of limiters that the store knew when
        /// it last answered ([`Limiter::live_processes`](crate::Limiter::live_processes)); 1 if the store does not
        /// count them, or has not answered yet.
        processes: Option<u32>,
    },
}

impl Default for OnFailure {
    fn default() -> OnFailure {
        OnFailure::Local { processes: None }
    }
}
