//! Waiting until a request is admitted.
//!
//! - `acquiring`: the steps of one waiter, as a future
//! - `forecast`: how long a waiter at some position in a queue will wait
//! - `gate`: a further condition that holds back a whole queue

mod acquiring;
mod forecast;
mod gate;

use std::future::IntoFuture;
use std::time::Duration;

use tollgate_core::{Cost, CostError};

use crate::decision::Decision;
use crate::receipt::Receipt;
use crate::scope::Scope;
pub use acquiring::AcquireFuture;
pub use gate::Gate;

/// A request that waits until it is admitted; await it.
///
/// Waiters for one key of one name in this process are admitted in the order in which they were first polled.
/// A plain [`check`](Scope::check) does not queue, and may take units that the first waiter is waiting for.
///
/// When the limit of the name changes, a waiter keeps the limit of the [`Scope`] that it was started with, and its
/// position ahead of later waiters under the new limit. No waiter is refused because of the change, and none is
/// overtaken.
///
/// Dropping the future at any point leaves the queue, and refunds a charge that was made and not yet delivered: in
/// memory at once, on Redis when the server has answered. A charge to a shaping limit stays spent if a later request
/// of the key has been charged. [`refunded_if_dropped`](crate::Check::refunded_if_dropped) lists what else can stay
/// spent on Redis.
///
/// When the store fails, waiters are admitted by this process on its share of the limit, unless another
/// [`OnFailure`](crate::OnFailure) was set for the limiter or the scope: an outage adds at most one burst of all processes
/// together, and the rate stays the same. If the store has not counted the processes, each one admits the whole limit. With
/// [`OnFailure::Open`](crate::OnFailure::Open) requests do not wait while the store fails. A
/// charge that was made without the store cannot be refunded.
///
/// Waiting uses tokio's timers, which have a resolution of 1 ms: a request may be admitted up to 1 ms late,
/// never early. A request that does not have to wait takes one check and no timer.
///
/// # Panics
///
/// When it has to wait outside a tokio runtime with time enabled.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{AcquireOutcome, Clock, Limiter};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::builder().clock(Clock::tokio(0)).build();
/// let mail = limiter.scope("mail", "token-bucket capacity=2 refill=1/s")?;
/// mail.acquire("smtp").cost(2).await?;
/// match mail.acquire("smtp").max_wait(Duration::from_secs(5)).await? {
///     AcquireOutcome::Admitted { waited, .. } => assert_eq!(waited, Duration::from_secs(1)),
///     AcquireOutcome::Refused { would_wait, .. } => println!("not within 5 s, but {would_wait:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is acquired until this is awaited"]
pub struct Acquire<'a> {
    scope: &'a Scope,
    key: &'a [u8],
    cost: Result<Cost, CostError>,
    max_wait_us: Option<u64>,
    gate: Option<&'a dyn Gate>,
}

impl Scope {
    /// Waits until one request of `key` is admitted, in order with the other waiters for the key. The cost is
    /// 1 unless [set](Acquire::cost).
    ///
    /// The key is a reference to text or bytes. For an IP address, make a
    /// [`ClientAddress`](crate::ClientAddress) and pass a reference to it.
    pub fn acquire<'a, K: AsRef<[u8]> + ?Sized>(&'a self, key: &'a K) -> Acquire<'a> {
        Acquire::new(self, key.as_ref())
    }
}

impl<'a> Acquire<'a> {
    fn new(scope: &'a Scope, key: &'a [u8]) -> Acquire<'a> {
        Acquire { scope, key, cost: Ok(Cost::ONE), max_wait_us: None, gate: None }
    }

    /// Sets the cost, which is 1 by default. At least 1, below 2^53.
    pub fn cost(self, units: u64) -> Acquire<'a> {
        Acquire { cost: Cost::new(units), ..self }
    }

    /// Sets the longest time that the caller waits: in the queue and for a shaping limit's delay together.
    ///
    /// If the wait would be longer, counting the waiters ahead, the request is refused at once and charged
    /// nothing. If the wait becomes longer later, because plain checks took the units, the request is refused
    /// as soon as that is known.
    pub fn max_wait(self, max_wait: Duration) -> Acquire<'a> {
        let max_wait_us = u64::try_from(max_wait.as_micros()).unwrap_or(u64::MAX);
        Acquire { max_wait_us: Some(max_wait_us), ..self }
    }

    /// Admits and charges the request only while the gate is open. While the gate is closed, the first waiter waits for
    /// it to open, and the others wait behind the first.
    pub fn through(self, gate: &'a dyn Gate) -> Acquire<'a> {
        Acquire { gate: Some(gate), ..self }
    }
}

impl<'a> IntoFuture for Acquire<'a> {
    type Output = <AcquireFuture<'a> as Future>::Output;
    type IntoFuture = AcquireFuture<'a>;

    fn into_future(self) -> AcquireFuture<'a> {
        AcquireFuture::new(self)
    }
}

/// The outcome of an [`Acquire`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a refused request must not proceed"]
pub enum AcquireOutcome {
    /// The request may proceed now. It is charged.
    Admitted {
        /// The decision that charged it; its delay has already passed.
        decision: Decision,
        /// How long the request waited, including the delay.
        waited: Duration,
    },
    /// The request is refused, and charged nothing.
    Refused {
        /// The decision for its key at that time. It may be "allowed", because it does not count the waiters
        /// ahead.
        decision: Decision,
        /// How long it would have waited in total, at least; `None` if waiting cannot help, because it costs
        /// more than the limit.
        would_wait: Option<Duration>,
    },
}

impl AcquireOutcome {
    /// Whether the request was admitted.
    pub fn is_admitted(&self) -> bool {
        matches!(self, AcquireOutcome::Admitted { .. })
    }

    /// Returns the decision that charged the request, or the state of its key when it was refused.
    pub fn decision(&self) -> &Decision {
        match self {
            AcquireOutcome::Admitted { decision, .. }
            | AcquireOutcome::Refused { decision, .. } => decision,
        }
    }

    /// Takes the receipt, with which the charge can be refunded; `None` if the request was refused.
    pub fn into_receipt(self) -> Option<Receipt> {
        match self {
            AcquireOutcome::Admitted { decision, .. } => decision.into_receipt(),
            AcquireOutcome::Refused { .. } => None,
        }
    }
}
