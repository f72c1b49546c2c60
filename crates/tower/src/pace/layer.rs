//! The layer: its scope, and the key and the cost of requests.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate_limiter::Scope;
use tower_layer::Layer;

use super::delays::ServerDelays;
use super::keys::PaceKeys;
use super::{Pace, Pacer};

/// An hour: the longest window that public APIs commonly have.
const MAX_DELAY: Duration = Duration::from_secs(60 * 60);

/// Paces the requests of a client: they wait their turn instead of being refused, and wait as long as the
/// server asks for.
///
/// Requests wait in order for the limit of a [`Scope`] ([`Scope::acquire`]), and for as long as the server has
/// asked the client to wait. That time is read from responses; the first of these fields that gives a wait is used:
///
/// - `Retry-After` on a 429, a 503 and a 403: seconds, or a date.
/// - `RateLimit: "default";r=0;t=5`: nothing remains for 5 s. With `r` above 0 there is no wait. Older drafts are
///   read too: `limit=100, remaining=0, reset=5`, and `RateLimit-Remaining` with `RateLimit-Reset`.
/// - `X-RateLimit-Remaining: 0` with `X-RateLimit-Reset` (or `X-Rate-Limit-…`). Some servers send
///   seconds there, others a time: above 1,000,000,000 it is Unix seconds, above 10^12 milliseconds.
///
/// Nothing is charged while the server has asked the client to wait. Dropping a response's future before the request
/// was sent leaves the queue, and refunds the charge.
///
/// When the scope's store fails, requests are still paced, on this process's share of the limit, unless another
/// [`OnFailure`](tollgate_limiter::OnFailure) was set; see [`Acquire`](tollgate_limiter::Acquire).
///
/// Clones of the layer, and all services that they make, share the delays that the server asked for. At most 10,000
/// keys are delayed at a time; one more removes the delay that would end first.
///
/// The client must be `Clone`: each request that waits has its own clone. Put a client that is not `Clone` into a
/// `tower::buffer` first: `ServiceBuilder::new().layer(pace).buffer(8).service(client)`.
///
/// Nothing is retried: a response that asks the client to wait is returned to the caller, and the next request waits.
/// With `tower::retry` around the layer, refused requests are sent again when the server allows it:
///
/// ```no_run
/// use std::future::{Ready, ready};
/// use tollgate::tower::{PaceError, PaceLayer};
/// use tollgate::Limiter;
/// use tower::retry::{Policy, RetryLayer};
/// use tower::{Layer, ServiceExt};
///
/// /// Retries while the server is busy; `PaceLayer` does the waiting.
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
    /// Paces all requests in one queue, with one key and a cost of 1.
    pub fn new(scope: Scope) -> PaceLayer<R> {
        let delays = Arc::new(ServerDelays::default());
        let pacer = Pacer { scope, delays, max_wait: None, max_delay: MAX_DELAY };
        PaceLayer { pacer, keys: PaceKeys { key: None, cost: None } }
    }

    /// Sets the key of a request. Each key has its own queue and limit, and waits only for the server's responses to
    /// that key.
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

    /// Sets what each request costs, instead of 1. The cost is at least 1 and below 2^53.
    #[must_use]
    pub fn cost(mut self, cost: impl Fn(&R) -> u64 + Send + Sync + 'static) -> PaceLayer<R> {
        self.keys.cost = Some(Arc::new(cost));
        self
    }

    /// Sets the longest time that a request waits. By default there is no such bound.
    ///
    /// A request that would wait longer, because of the requests ahead, the limit or the server, fails at once with
    /// [`PaceError::TooLong`](super::PaceError::TooLong), and is charged nothing.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> PaceLayer<R> {
        self.pacer.max_wait = Some(max_wait);
        self
    }

    /// Sets the longest time that one response can delay a key, instead of an hour. Longer delays are cut to it.
    ///
    /// The bound protects against servers with a wrong clock. A server that did mean a longer wait gets requests again
    /// when the bound has passed: as many as the limit admits, such as a bucket's whole capacity, before the first of
    /// their responses asks to wait once more.
    #[must_use]
    pub fn max_delay(mut self, max_delay: Duration) -> PaceLayer<R> {
        self.pacer.max_delay = max_delay;
        self
    }
}

impl<S, R> Layer<S> for PaceLayer<R> {
    type Service = Pace<S, R>;

    fn layer(&self, inner: S) -> Pace<S, R> {
        Pace::new(inner, Arc::new(self.pacer.clone()), self.keys.clone())
    }
}

// Not derived: `derive` would require traits of `R`, here and below.
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
