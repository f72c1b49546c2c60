//! A layer that paces the requests of a client.
//!
//! - `layer`, `service`, `future`: tower's own shape
//! - `hints`: how long a response asks the client to wait
//! - `delays`: the keys that have to wait, and until when

mod delays;
mod future;
mod hints;
mod keys;
mod layer;
mod service;

use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use ::http::{Extensions, HeaderMap, StatusCode};
use tollgate_limiter::{AcquireOutcome, Error, Receipt, Scope};

use self::delays::ServerDelays;
pub use future::PaceFuture;
pub use layer::PaceLayer;
pub use service::Pace;

/// The head of a response: its status and its headers.
pub trait ResponseHead {
    /// The status.
    fn status(&self) -> StatusCode;

    /// The header fields.
    fn headers(&self) -> &HeaderMap;

    /// The extensions, such as a value that a handler has put into its response. None unless implemented.
    fn extensions(&self) -> &Extensions {
        static NONE: LazyLock<Extensions> = LazyLock::new(Extensions::new);
        &NONE
    }
}

impl<B> ResponseHead for ::http::Response<B> {
    fn status(&self) -> StatusCode {
        self.status()
    }

    fn headers(&self) -> &HeaderMap {
        self.headers()
    }

    fn extensions(&self) -> &Extensions {
        self.extensions()
    }
}

// Uses types of reqwest.
#[cfg(feature = "reqwest")]
impl ResponseHead for reqwest::Response {
    fn status(&self) -> StatusCode {
        self.status()
    }

    fn headers(&self) -> &HeaderMap {
        self.headers()
    }

    fn extensions(&self) -> &Extensions {
        self.extensions()
    }
}

/// An error of any type, as in tower's own layers.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a paced request has no response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PaceError {
    /// The client failed. If it failed before the request was sent, nothing is charged. The error is boxed, because
    /// clients inside a buffer or a timeout return a boxed error; `downcast_ref` gives the original error:
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
    /// The request was not sent, and is charged nothing: it would have to wait longer than `max_wait`.
    #[error("would have to wait {would_wait:?}; try again later, or raise `max_wait`")]
    TooLong {
        /// How long it would have waited in all, at least.
        would_wait: Duration,
    },
    /// The request was not sent: it costs more than the limit ever admits, so waiting cannot help.
    #[error(
        "costs {cost}, which is more than the limit of {limit}; lower the cost, or raise the limit"
    )]
    TooCostly {
        /// The request's cost.
        cost: u64,
        /// The limit's size.
        limit: u64,
    },
    /// The request was not sent: the limiter failed.
    #[error(transparent)]
    Limiter(Error),
}

/// The state that all clones of a layer, and of the services it made, share.
#[derive(Clone, Debug)]
struct Pacer {
    scope: Scope,
    delays: Arc<ServerDelays>,
    max_wait: Option<Duration>,
    max_delay: Duration,
}

impl Pacer {
    /// Waits in the key's queue until one request may be sent. `waited` is how long the request has waited already.
    async fn turn(
        self: Arc<Pacer>,
        key: Arc<str>,
        cost: u64,
        waited: Duration,
    ) -> Result<PaceCharge, PaceError> {
        let delay = self.delays.on(&key);
        let mut acquire = self.scope.acquire(&*key).cost(cost).through(&delay);
        if let Some(max_wait) = self.max_wait {
            acquire = acquire.max_wait(max_wait.saturating_sub(waited));
        }
        match acquire.await.map_err(PaceError::Limiter)? {
            AcquireOutcome::Admitted { decision, .. } => {
                let receipt = decision.into_receipt();
                Ok(PaceCharge { pacer: Arc::clone(&self), key: Arc::clone(&key), receipt })
            }
            AcquireOutcome::Refused { would_wait: Some(would_wait), .. } => {
                Err(PaceError::TooLong { would_wait: waited.saturating_add(would_wait) })
            }
            AcquireOutcome::Refused { decision, would_wait: None } => {
                Err(PaceError::TooCostly { cost, limit: decision.limit() })
            }
        }
    }

    /// Whether the key's requests may be sent: true unless the server has asked the client to wait.
    fn is_open(&self, key: &str) -> bool {
        self.delays.remaining(key).is_zero()
    }

    /// Makes the key's next requests wait as long as a response demands.
    fn apply_hint(&self, key: &Arc<str>, response: &impl ResponseHead) {
        let hint = hints::delay(response.status(), response.headers(), SystemTime::now());
        let Some(delay) =
            hint.map(|delay| delay.min(self.max_delay)).filter(|delay| !delay.is_zero())
        else {
            return;
        };
        tracing::debug!(scope = self.scope.name(), ?delay, "the server asks to wait");
        self.delays.extend(key, delay);
        self.scope.wake_waiters(key.as_bytes());
    }
}

/// The charge of a request that was not sent yet. Dropping it refunds the charge.
#[derive(Debug)]
struct PaceCharge {
    pacer: Arc<Pacer>,
    key: Arc<str>,
    receipt: Option<Receipt>,
}

impl PaceCharge {
    /// Keeps the charge: the request is sent.
    fn spend(mut self) {
        self.receipt = None;
    }
}

impl Drop for PaceCharge {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            // Nothing awaits the answer; on Redis the refund is sent all the same.
            drop(self.pacer.scope.refund(&*self.key, receipt));
        }
    }
}
