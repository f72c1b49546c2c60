//! The layer: what is paced, by which key, at what cost.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate_limiter::Scope;
use tower_layer::Layer;

use super::hold::Holds;
use super::keys::PaceKeys;
use super::{Pace, Pacer};

/// An hour: the longest window that public APIs commonly have.
const MAX_HOLD: Duration = Duration::from_secs(60 * 60);

/// Paces the requests of a client: they wait their turn instead of being refused, and obey what the
/// server says.
///
/// A request waits in order for the limit of a [`Scope`] ([`Scope::acquire`]), and while the server
/// has asked not to be asked. How long that is, responses tell; the first of these that says something
/// holds:
///
/// - `Retry-After` on a 429, a 503 and a 403: seconds, or a date.
/// - `RateLimit: "default";r=0;t=5`: nothing remains, for 5 s. With `r` above 0 there is nothing to wait
///   for. Older drafts too: `limit=100, remaining=0, reset=5`, and `RateLimit-Remaining` with
///   `RateLimit-Reset`.
/// - `X-RateLimit-Remaining: 0` with `X-RateLimit-Reset` (or `X-Rate-Limit-…`). Some servers send
///   seconds there, others a time: above 1,000,000,000 it is Unix seconds, above 10^12 milliseconds.
///
/// Nothing is charged while the server has asked to wait. Dropping a response's future before it went
/// leaves the line, and gives back what was charged.
///
/// When the scope's store fails, requests keep their pace: unless an [`OnFailure`](tollgate_limiter::OnFailure) was set, turns
/// are given in this process, under the whole limit ([`Acquire`](tollgate_limiter::Acquire) says more).
///
/// Clones of the layer, and all services that they make, know the same holds. At most 10,000 keys are
/// held at a time; with one more, the hold that would end first is forgotten.
///
/// The client must be `Clone`: each request that waits has one of its own. One that is not goes into a `tower::buffer`
/// first, `ServiceBuilder::new().layer(pace).buffer(8).service(client)`.
///
/// Nothing is retried: whoever was told to wait gets that response, and the next request waits. With
/// `tower::retry` around it, what was refused goes again when the server said:
///
/// ```no_run
/// use std::future::{Ready, ready};
/// use tollgate::tower::{PaceError, PaceLayer};
/// use tollgate::Limiter;
/// use tower::retry::{Policy, RetryLayer};
/// use tower::{Layer, ServiceExt};
///
/// /// Again for as long as the server is busy; `PaceLayer` does the waiting.
/// #[derive(Clone)]
/// struct WhileBusy;
///
/// type Outcome = Result<reqwest::Response, PaceError>;
///
/// impl Policy<reqwest::Request, reqwest::Response, PaceError> for WhileBusy {
///     type Future = Ready<()>;
///
///     fn retry(&mut self, _: &mut reqwest::Request, outcome: &mut Outcome) -> Option<Ready<()>> {
///         outcome.as_ref().is_ok_and(|response| response.status() == 429).then(|| ready(()))
///     }
///
///     fn clone_request(&mut self, request: &reqwest::Request) -> Option<reqwest::Request> {
///         request.try_clone()
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pace = PaceLayer::new(Limiter::memory().scope("github", "token-bucket capacity=5 refill=10/s")?);
/// let client = reqwest::Client::new();
/// let paced = RetryLayer::new(WhileBusy).layer(pace.layer(client.clone()));
///
/// let request = client.get("https://api.github.com/rate_limit").build()?;
/// let response = paced.oneshot(request).await?;
/// # Ok(())
/// # }
/// ```
pub struct PaceLayer<R> {
    pacer: Pacer,
    keys: PaceKeys<R>,
}

impl<R> PaceLayer<R> {
    /// One line, one key and a cost of 1 for everything that goes through.
    pub fn new(scope: Scope) -> PaceLayer<R> {
        let holds = Arc::new(Holds::default());
        let pacer = Pacer { scope, holds, max_wait: None, max_hold: MAX_HOLD };
        PaceLayer { pacer, keys: PaceKeys { key: None, cost: None } }
    }

    /// A line for each key, instead of one for all: the limit and what the server says are the key's.
    ///
    /// ```
    /// # use tollgate::{Limiter, tower::PaceLayer};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let scope = Limiter::memory().scope("apis", "token-bucket capacity=5 refill=10/s")?;
    /// let per_host = PaceLayer::new(scope).key(|request: &reqwest::Request| {
    ///     request.url().host_str().unwrap_or_default().to_owned()
    /// });
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn key(mut self, key: impl Fn(&R) -> String + Send + Sync + 'static) -> PaceLayer<R> {
        self.keys.key = Some(Arc::new(key));
        self
    }

    /// What each request spends, instead of 1. At least 1, below 2^53.
    #[must_use]
    pub fn cost(mut self, cost: impl Fn(&R) -> u64 + Send + Sync + 'static) -> PaceLayer<R> {
        self.keys.cost = Some(Arc::new(cost));
        self
    }

    /// The longest that a request waits; without, as long as it takes.
    ///
    /// If it would take longer, for those ahead, the limit or the server, it fails at once with
    /// [`PaceError::TooLong`](super::PaceError::TooLong), and is charged nothing.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> PaceLayer<R> {
        self.pacer.max_wait = Some(max_wait);
        self
    }

    /// The longest that one response can make a key wait, instead of an hour; what asks for longer is
    /// cut to it.
    ///
    /// It is there for servers that are wrong about the time. One that meant it is asked again after that while: by
    /// as many requests as the limit lets go before the first of their responses says to wait once more, such as a
    /// bucket's whole capacity.
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> PaceLayer<R> {
        self.pacer.max_hold = max_hold;
        self
    }
}

impl<S, R> Layer<S> for PaceLayer<R> {
    type Service = Pace<S, R>;

    fn layer(&self, inner: S) -> Pace<S, R> {
        Pace::new(inner, Arc::new(self.pacer.clone()), self.keys.clone())
    }
}

// By hand: neither needs anything of `R`.
impl<R> Clone for PaceLayer<R> {
    fn clone(&self) -> PaceLayer<R> {
        PaceLayer { pacer: self.pacer.clone(), keys: self.keys.clone() }
    }
}

impl<R> fmt::Debug for PaceLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PaceLayer").field("pacer", &self.pacer).finish_non_exhaustive()
    }
}
