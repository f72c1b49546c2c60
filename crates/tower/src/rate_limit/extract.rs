//! Extractors of a request's key.

use tollgate_identity::RequestHead;

/// Finds the key of a request. The request is limited by this key instead of its client's address.
///
/// Pass an extractor to [`key_extractor`](super::RateLimitLayer::key_extractor). Closures implement this trait, and
/// [`key`](super::RateLimitLayer::key) is the short form for them. A type that implements the trait can be named,
/// shared and tested.
///
/// ```
/// use tollgate::http::RequestHead;
/// use tollgate::tower::{KeyExtractor, RateLimitLayer};
///
/// /// The tenant, as an outer authentication layer has found it.
/// #[derive(Clone)]
/// struct Tenant(String);
///
/// struct TenantKeyExtractor;
///
/// impl KeyExtractor for TenantKeyExtractor {
///     fn extract(&self, request: &RequestHead<'_>) -> Option<String> {
///         Some(request.extensions().get::<Tenant>()?.0.clone())
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let layer = RateLimitLayer::per_ip("token-bucket capacity=60 refill=1/s")?
///     .key_extractor(TenantKeyExtractor);
/// # Ok(())
/// # }
/// ```
pub trait KeyExtractor: Send + Sync + 'static {
    /// Returns the key of a request, or `None` to limit it by its client's address.
    ///
    /// Build the key from verified data only: a client that can choose its key can have any number of quotas.
    fn extract(&self, request: &RequestHead<'_>) -> Option<String>;
}

impl<F> KeyExtractor for F
where
    F: Fn(&RequestHead<'_>) -> Option<String> + Send + Sync + 'static,
{
    fn extract(&self, request: &RequestHead<'_>) -> Option<String> {
        self(request)
    }
}

/// One key for all requests: the limit applies to the whole service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalKeyExtractor;

impl KeyExtractor for GlobalKeyExtractor {
    fn extract(&self, _: &RequestHead<'_>) -> Option<String> {
        Some("global".into())
    }
}
