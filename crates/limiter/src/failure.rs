//! What a decision is when the store across the network gives none.

mod share;
mod terms;

pub(crate) use share::share_of;
pub(crate) use terms::{Terms, bounded_deadline};

/// What a check comes to when the store fails: cannot be reached, is too slow, or answers with an
/// error. Whatever is decided without the store is marked [degraded](crate::Decision::is_degraded).
///
/// It holds for checks, peeks and acquires. A refund, a reset or a listing that fails is an error.
///
/// A limiter may have one (`Redis::on_failure`), and a scope may have its own
/// ([`Scope::on_failure`](crate::Scope::on_failure)). Where neither has one, checks and peeks are open,
/// and an [`acquire`](crate::Acquire) is local with one process: it still waits for its turn.
///
/// In a check of several limits the strictest of the enforced ones holds for all: closed, then local,
/// of several the smallest share, then open. A check of nothing but shadows never fails: closed is
/// taken for open there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// The request is allowed, as if its key had spent nothing. How much goes through while the
    /// store is away has no bound. An acquire under this policy, set explicitly, does not wait.
    #[default]
    Open,
    /// The check is an [error](crate::Error::Store): for logins and payments. An HTTP service
    /// answers it with 503, not with 429: nobody's quota is spent.
    Closed,
    /// The request is decided in this process, on its share of the limit: a limit of 100 for 4
    /// processes is 25 in each, at a quarter of the rate.
    ///
    /// So while the store is away, all processes together admit no more than the limit, beside what the
    /// store has admitted before. A share is at least 1: with more processes than the limit has
    /// units, they admit one each. A request that costs more than the share is refused. What the share
    /// has spent is kept for the next time. It cannot be refunded.
    Local {
        /// How many processes there are; 0 is taken for 1.
        processes: u32,
    },
}
