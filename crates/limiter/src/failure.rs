//! The decision on a request that the store across the network failed to decide.

mod share;
mod terms;

pub(crate) use share::share_of;
pub(crate) use terms::{StoreTerms, bounded_deadline};

/// The policy for a check when the store fails: it cannot be reached, is too slow, or answers with an error.
/// Every decision that is made without the store is marked [degraded](crate::Decision::is_degraded).
///
/// The policy applies to checks, peeks and acquires. A refund, a reset or a listing that fails is an error.
///
/// A limiter may have a policy (`Redis::on_failure`), and a scope may have its own
/// ([`Scope::on_failure`](crate::Scope::on_failure)). Without any, checks and peeks are open, and an
/// [`acquire`](crate::Acquire) is local with one process: it still waits until it is admitted.
///
/// In a check of several limits, the strictest policy of the enforced limits applies to all of them: closed
/// before local, local before open, and among local policies the one with the smallest share. A check that
/// has only shadow limits never fails: closed counts as open there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// The request is allowed, as if its key had spent nothing. There is no bound on what is admitted while
    /// the store fails. An acquire under this policy, set explicitly, does not wait.
    #[default]
    Open,
    /// The check is an [error](crate::Error::Store): for logins and payments. An HTTP service answers it with
    /// 503 instead of 429, because no quota is spent.
    Closed,
    /// This process decides the request on its share of the limit: a limit of 100 for 4 processes is 25 in
    /// each, at a quarter of the rate.
    ///
    /// While the store fails, all processes together then admit no more than the limit, in addition to what
    /// the store admitted before. A share is at least 1: with more processes than the limit has units, each
    /// process admits one unit. A request that costs more than the share is refused. Charges to the
    /// share are remembered for the next failure, and cannot be refunded.
    Local {
        /// The number of processes; 0 counts as 1.
        processes: u32,
    },
}
