//! A layer that paces the requests of a client.
//!
//! - `layer`, `service`, `future`: tower's own shape
//! - `hints`: how long a response asks to wait
//! - `hold`: which keys are to wait, and until when

mod future;
mod hints;
mod hold;
mod keys;
mod layer;
mod service;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ::http::{HeaderMap, StatusCode};
use tollgate_limiter::{Acquired, Error, Receipt, Scope};

use self::hold::Holds;
pub use future::PaceFuture;
pub use layer::PaceLayer;
pub use service::Pace;

/// A response, as far as it tells how long to wait.
pub trait ResponseHead {
    /// The status.
    fn status(&self) -> StatusCode;

    /// The header fields.
    fn headers(&self) -> &HeaderMap;
}

impl<B> ResponseHead for ::http::Response<B> {
    fn status(&self) -> StatusCode {
        self.status()
    }

    fn headers(&self) -> &HeaderMap {
        self.headers()
    }
}

// The types of reqwest.
#[cfg(feature = "reqwest")]
impl ResponseHead for reqwest::Response {
    fn status(&self) -> StatusCode {
        self.status()
    }

    fn headers(&self) -> &HeaderMap {
        self.headers()
    }
}

/// An error of any type, as tower's own layers have it.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a paced request has no response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PaceError {
    /// The client failed: before the request went, and then nothing is charged, or after. Boxed, as clients inside a buffer or a timeout have no other error;
    /// which it was, `downcast_ref` says:
    ///
    /// ```
    /// # use tollgate::tower::PaceError;
    /// fn is_timeout(error: &PaceError) -> bool {
    ///     let PaceError::Inner(inner) = error else { return false };
    ///     inner.downcast_ref().is_some_and(reqwest::Error::is_timeout)
    /// }
    /// ```
    #[error(transparent)]
    Inner(BoxError),
    /// It did not go, and is charged nothing: its turn would come too late.
    #[error("would have to wait {would_wait:?}; try again later, or raise `max_wait`")]
    TooLong {
        /// How long it would have waited in all, at least.
        would_wait: Duration,
    },
    /// It did not go: waiting cannot help.
    #[error(
        "costs {cost}, and the limit never lets more than {limit} go; lower the cost, or raise the limit"
    )]
    TooCostly {
        /// What it costs.
        cost: u64,
        /// The limit's size.
        limit: u64,
    },
    /// It did not go: the limiter cannot tell when it may.
    #[error(transparent)]
    Limiter(Error),
}

/// What all clones of a layer, and of the services it made, have in common.
#[derive(Clone, Debug)]
struct Pacer {
    scope: Scope,
    holds: Arc<Holds>,
    max_wait: Option<Duration>,
    max_hold: Duration,
}

impl Pacer {
    /// Waits in the key's line until one request may go. `waited` is how long it did so before.
    async fn turn(
        self: Arc<Pacer>,
        key: Arc<str>,
        cost: u64,
        waited: Duration,
    ) -> Result<Charge, PaceError> {
        let hold = self.holds.on(&key);
        let mut acquire = self.scope.acquire(&*key).cost(cost).through(&hold);
        if let Some(max_wait) = self.max_wait {
            acquire = acquire.max_wait(max_wait.saturating_sub(waited));
        }
        match acquire.await.map_err(PaceError::Limiter)? {
            Acquired::Admitted { decision, .. } => {
                let receipt = decision.into_receipt();
                Ok(Charge { pacer: Arc::clone(&self), key: Arc::clone(&key), receipt })
            }
            Acquired::Refused { would_wait: Some(would_wait), .. } => {
                Err(PaceError::TooLong { would_wait: waited.saturating_add(would_wait) })
            }
            Acquired::Refused { decision, would_wait: None } => {
                Err(PaceError::TooCostly { cost, limit: decision.limit() })
            }
        }
    }

    /// Whether the server lets the key's requests come.
    fn is_open(&self, key: &str) -> bool {
        self.holds.remaining(key).is_zero()
    }

    /// Does as a response says: the key's next request waits for as long.
    fn heed(&self, key: &Arc<str>, response: &impl ResponseHead) {
        let hint = hints::hold(response.status(), response.headers(), SystemTime::now());
        let Some(hold) = hint.map(|hold| hold.min(self.max_hold)).filter(|hold| !hold.is_zero())
        else {
            return;
        };
        tracing::debug!(scope = self.scope.name(), ?hold, "the server asks to wait");
        self.holds.extend(key, hold);
        self.scope.wake_waiters(key.as_bytes());
    }
}

/// What a request is charged that has not gone. Dropping it gives that back.
#[derive(Debug)]
struct Charge {
    pacer: Arc<Pacer>,
    key: Arc<str>,
    receipt: Option<Receipt>,
}

impl Charge {
    /// The request goes.
    fn spend(mut self) {
        self.receipt = None;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            // Nobody is left to tell. On Redis it is on its way all the same.
            drop(self.pacer.scope.refund(&*self.key, receipt));
        }
    }
}
