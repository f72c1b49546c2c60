//! Waiting for a turn.
//!
//! - `acquiring`: one caller's way through its line, as a future
//! - `forecast`: how long a place in a line will take
//! - `gate`: what may close the way for everybody in a line

mod acquiring;
mod forecast;
mod gate;

use std::future::IntoFuture;
use std::time::Duration;

use tollgate_core::{Cost, CostError};

use crate::decision::Decision;
use crate::receipt::Receipt;
use crate::scope::Scope;
pub use acquiring::Acquiring;
pub use gate::Gate;

/// A request that waits until it may go; await it.
///
/// Those that acquire one key of one name in this process go in the order in which they were first
/// polled. A plain [`check`](Scope::check) does not stand in line, and may take units that the first
/// in line is waiting for.
///
/// When the name's limit changes, whoever waits goes on under the limit of the [`Scope`] that it waits
/// with, ahead of those that come later with the new one: nobody is sent away, and nobody overtakes.
///
/// Dropping the future at any point leaves the line, and gives back what was charged and not yet
/// delivered: in memory at once, on Redis when the server has answered. A place in a shaping limit with others
/// behind it stays spent. [`refunded_if_dropped`](crate::Check::refunded_if_dropped) says what else can
/// stay spent on Redis.
///
/// When the store fails and no [`OnFailure`](crate::OnFailure) was set for the limiter or the scope, turns are
/// given in this process, under the whole limit: an outage adds at most one burst, and the
/// pace stays. Several processes then have the whole limit each; [`OnFailure::Local`](crate::OnFailure::Local)
/// gives them shares. With [`OnFailure::Open`](crate::OnFailure::Open), set explicitly, requests do not wait while
/// the store fails. A turn that was given without the store cannot be given back.
///
/// Sleeping is tokio's, to its millisecond: a turn may come up to 1 ms late, never early. With
/// nothing to wait for, there is one check and no timer.
///
/// # Panics
///
/// When it has to wait outside a tokio runtime with time enabled.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Acquired, Clock, Limiter};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::builder().clock(Clock::tokio(0)).build();
/// let mail = limiter.scope("mail", "token-bucket capacity=2 refill=1/s")?;
/// mail.acquire("smtp").cost(2).await?;
/// match mail.acquire("smtp").max_wait(Duration::from_secs(5)).await? {
///     Acquired::Admitted { waited, .. } => assert_eq!(waited, Duration::from_secs(1)),
///     Acquired::Refused { would_wait, .. } => println!("not within 5 s, but {would_wait:?}"),
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
    /// Waits until one request of `key` may go, in order with the others that acquire it; a cost of 1
    /// unless said.
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

    /// What the request spends, instead of 1. At least 1, below 2^53.
    pub fn cost(self, units: u64) -> Acquire<'a> {
        Acquire { cost: Cost::new(units), ..self }
    }

    /// The longest that the caller waits, in line and for a shaping limit's delay together.
    ///
    /// If it would take longer, those ahead included, the request is refused at once, and charged
    /// nothing. If it comes to take longer, because plain checks took what it waited for, it is
    /// refused as soon as that is known.
    pub fn max_wait(self, max_wait: Duration) -> Acquire<'a> {
        let max_wait_us = u64::try_from(max_wait.as_micros()).unwrap_or(u64::MAX);
        Acquire { max_wait_us: Some(max_wait_us), ..self }
    }

    /// Goes only while the gate is open, and is charged only then: the first in line waits for it,
    /// and the others behind it.
    pub fn through(self, gate: &'a dyn Gate) -> Acquire<'a> {
        Acquire { gate: Some(gate), ..self }
    }
}

impl<'a> IntoFuture for Acquire<'a> {
    type Output = <Acquiring<'a> as Future>::Output;
    type IntoFuture = Acquiring<'a>;

    fn into_future(self) -> Acquiring<'a> {
        Acquiring::new(self)
    }
}

/// What came of an [`Acquire`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a refused request must not go"]
pub enum Acquired {
    /// The request may go, now. It is charged.
    Admitted {
        /// The answer that charged it; its delay has passed already.
        decision: Decision,
        /// How long it took, the delay included.
        waited: Duration,
    },
    /// The request may not go, and is charged nothing.
    Refused {
        /// How its key stood then. It may say that the request fits: those ahead come first.
        decision: Decision,
        /// How long it would have waited in all, at least; `None` if waiting cannot help, because
        /// it costs more than the limit.
        would_wait: Option<Duration>,
    },
}

impl Acquired {
    /// Whether the request may go.
    pub fn is_admitted(&self) -> bool {
        matches!(self, Acquired::Admitted { .. })
    }

    /// The answer that charged it, or how its key stood when it was refused.
    pub fn decision(&self) -> &Decision {
        match self {
            Acquired::Admitted { decision, .. } | Acquired::Refused { decision, .. } => decision,
        }
    }

    /// Takes the receipt, with which the charge can be refunded; `None` if it was refused.
    pub fn into_receipt(self) -> Option<Receipt> {
        match self {
            Acquired::Admitted { decision, .. } => decision.into_receipt(),
            Acquired::Refused { .. } => None,
        }
    }
}
