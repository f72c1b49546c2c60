//! `/v1/authorize`: decides for a proxy, which calls it before it passes a request on.
//!
//! - `params`: the domain and the proxy's settings, from the path; `original`: the request that the proxy received
//!
//! The rules get the same attributes of the original request as the middleware would give them.

mod original;
mod params;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::{Path, Request, State, rejection::PathRejection};
use axum::response::{IntoResponse, Response};
use hyper::body::Body as _;
use hyper::header::{CONNECTION, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use tollgate::http::{
    HeaderFamilies, Outcome, Peer, Refusal, RefusalReason, RequestHead, TokenRefusal,
};
use utoipa::openapi::OpenApi;

pub(super) use self::params::AuthorizeSettings;
use self::params::{Params, PathParts};
use super::ApiProblem;
use super::openapi::AuthorizeAnswers;
use crate::delays::{DelayPermit, DelayedRequest, DelayedRequests};
use crate::lifecycle::Lifecycle;
use crate::listener::ClientWatch;
use crate::logs::LogThrottle;
use crate::metrics::Metrics;
use crate::pipeline::{Pipeline, ProxiedRuling};

/// The header that gives the reason of a refusal in one word. Proxies can distinguish the reasons by it, whatever the
/// status.
const REASON: HeaderName = HeaderName::from_static("x-tollgate-reason");

/// Decides requests for proxies.
#[derive(Debug)]
pub(super) struct Authorizer {
    pipeline: Arc<Pipeline>,
    metrics: Arc<Metrics>,
    delayed: Arc<DelayedRequests>,
    lifecycle: Lifecycle,
    /// Logs calls of peers that are not trusted.
    untrusted: LogThrottle,
}

impl Authorizer {
    pub(super) fn new(
        pipeline: Arc<Pipeline>,
        metrics: Arc<Metrics>,
        delayed: Arc<DelayedRequests>,
        lifecycle: Lifecycle,
    ) -> Authorizer {
        Authorizer { pipeline, metrics, delayed, lifecycle, untrusted: LogThrottle::default() }
    }

    /// Refuses the call of a peer that is not trusted. Counts the call, and logs at most one call a second.
    fn refuse(&self, peer: Option<IpAddr>) -> Response {
        self.metrics.count_untrusted_proxy();
        if let (Some(left_out), Some(peer)) = (self.untrusted.admit(Instant::now()), peer) {
            tracing::warn!(
                %peer,
                left_out,
                "refused a call of /v1/authorize: its address is not among identity.trusted_proxies"
            );
        }
        with_reason("untrusted-proxy", ApiProblem::untrusted_proxy().into_response())
    }

    /// Sends the check of a call, unless the call is refused at once.
    fn start(&self, params: &Params, parts: Parts) -> Result<AuthorizeStart, ApiProblem> {
        let rules = self.pipeline.snapshot();
        let peer = parts.extensions.get().map(|Peer(peer)| peer.ip());
        let trusted = rules.identity().filter(|own| peer.is_some_and(|peer| own.trusts(peer)));
        let Some(identity) = trusted else {
            return Ok(AuthorizeStart::UntrustedPeer(self.refuse(peer)));
        };
        let domain = params.domain(&rules)?;
        let original = original::request(params.proxy(), parts)?;
        let head = RequestHead::new(&original, identity);
        if let Some(refusal) = head.token_refusal() {
            return Ok(AuthorizeStart::TokenRefusal(refusal));
        }
        let attributes = rules.attributes(&head);
        let mut check = rules.check(&domain, &attributes);
        let mut permit = None;
        if rules.is_shaping() {
            permit = self.delayed.reserve();
            check =
                check.max_wait(if permit.is_some() { params.max_wait() } else { Duration::ZERO });
        }
        if head.is_preflight() {
            check = check.of_preflight();
        }
        Ok(AuthorizeStart::Pending(self.pipeline.send_proxied(check), permit))
    }

    /// Waits for the ruling, and makes the response.
    async fn respond(
        &self,
        params: &Params,
        pending: ProxiedRuling,
        permit: Option<DelayPermit>,
    ) -> TimedResponse {
        let ruling = match self.pipeline.ruling(pending).await {
            Ok(ruling) => ruling,
            Err(error) => {
                return TimedResponse::Now(params.refused(RefusalReason::Undecided(&error)));
            }
        };
        let outcome = Outcome::of_rules(&ruling);
        if !outcome.is_allowed() {
            return TimedResponse::Now(params.refused(RefusalReason::Quota(outcome)));
        }
        let (response, delay) = (allowed(&outcome), outcome.delay());
        match delay.is_zero() {
            true => TimedResponse::Now(response),
            false => {
                let delayed = Box::new(DelayedRequest::new(ruling, permit));
                TimedResponse::Later { response, delay, delayed }
            }
        }
    }
}

/// The longest body that may be left unread without closing the connection. After a longer one the server closes the
/// connection, and announces that with `Connection: close`, because the next request on it would get no answer.
const MAX_UNREAD_BYTES: u64 = 4 << 10;

/// The paths that proxies may call.
pub(super) const PATHS: [&str; 3] =
    ["/v1/authorize", "/v1/authorize/{domain}", "/v1/authorize/{domain}/{settings}"];

/// Decides a request that a proxy received, by the rules of the only domain
///
/// For nginx's `auth_request`, Caddy's `forward_auth`, Traefik's ForwardAuth and similar. An allowed request is
/// charged. The headers `X-Forwarded-Method`, `-Uri` and `-Host`, or nginx's `X-Original-…`, describe the original
/// request, and the forwarding header of the configuration has its client's address. Both are accepted from
/// `identity.trusted_proxies` only. The query of this call is ignored, because some proxies append their client's
/// query. Every method is answered in the same way, and a body is not read. If a shaping limit delays the request, the
/// answer is delayed.
#[utoipa::path(get, path = "/v1/authorize", tag = "decisions", responses(AuthorizeAnswers))]
pub(super) async fn authorize(
    State(authorizer): State<Arc<Authorizer>>,
    path: Result<Path<PathParts>, PathRejection>,
    request: Request,
) -> Result<Response, ApiProblem> {
    let (parts, body) = request.into_parts();
    let is_closing = body.size_hint().upper().is_none_or(|bytes| bytes > MAX_UNREAD_BYTES);
    drop(body);
    let mut response = answer(&authorizer, path, parts).await?;
    if is_closing {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

async fn answer(
    authorizer: &Authorizer,
    path: Result<Path<PathParts>, PathRejection>,
    parts: Parts,
) -> Result<Response, ApiProblem> {
    let params = Params::new(path)?;
    let client = parts.extensions.get::<ClientWatch>().cloned();
    let answer = match authorizer.start(&params, parts)? {
        AuthorizeStart::UntrustedPeer(response) => return Ok(response),
        AuthorizeStart::TokenRefusal(refusal) => {
            return Ok(params.refused(RefusalReason::from(&refusal)));
        }
        AuthorizeStart::Pending(pending, permit) => {
            authorizer.respond(&params, pending, permit).await
        }
    };
    match answer {
        TimedResponse::Now(response) => Ok(response),
        TimedResponse::Later { response, delay, delayed } => {
            let _watch = client.as_ref().map(ClientWatch::begin);
            match delayed.wait(delay, &authorizer.lifecycle).await {
                Ok(()) => Ok(response),
                Err(left) => Ok(params.stopping(left)),
            }
        }
    }
}

/// Decides a request that a proxy received, by the rules of a domain
///
/// Answers as `/v1/authorize` does.
#[utoipa::path(
    get,
    path = "/v1/authorize/{domain}",
    tag = "decisions",
    params(("domain" = String, Path, description = "The domain whose rules decide.", example = "api")),
    responses(AuthorizeAnswers),
)]
pub(super) async fn authorize_by_domain(
    authorizer: State<Arc<Authorizer>>,
    path: Result<Path<PathParts>, PathRejection>,
    request: Request,
) -> Result<Response, ApiProblem> {
    authorize(authorizer, path, request).await
}

/// Decides a request that a proxy received, by the rules of a domain, and answers as the proxy needs it
///
/// Answers as `/v1/authorize` does, except for the settings.
#[utoipa::path(
    get,
    path = "/v1/authorize/{domain}/{settings}",
    tag = "decisions",
    params(
        ("domain" = String, Path, description = "The domain whose rules decide.", example = "api"),
        (
            "settings" = AuthorizeSettings, Path, style = Simple, explode,
            description = "The proxy's settings: `proxy=nginx,deny_status=403`."
        ),
    ),
    responses(AuthorizeAnswers),
)]
pub(super) async fn authorize_with_settings(
    authorizer: State<Arc<Authorizer>>,
    path: Result<Path<PathParts>, PathRejection>,
    request: Request,
) -> Result<Response, ApiProblem> {
    authorize(authorizer, path, request).await
}

/// Documents POST like GET. The router accepts any method, which OpenAPI cannot express.
pub(super) fn document_posts(document: &mut OpenApi) {
    for path in PATHS {
        if let Some(item) = document.paths.paths.get_mut(path) {
            item.post = item.get.clone();
            if let Some(id) = item.post.as_mut().and_then(|post| post.operation_id.as_mut()) {
                id.push_str("_posted");
            }
        }
    }
}

/// The result of starting a call: a refusal, or a check that was sent.
enum AuthorizeStart {
    /// The peer is not a trusted proxy.
    UntrustedPeer(Response),
    TokenRefusal(TokenRefusal),
    /// The check was sent. The permit is for a shaping limit, which may delay the answer.
    Pending(ProxiedRuling, Option<DelayPermit>),
}

/// A response, and when to send it.
enum TimedResponse {
    Now(Response),
    Later { response: Response, delay: Duration, delayed: Box<DelayedRequest> },
}

/// Makes the response to an allowed request.
fn allowed(outcome: &Outcome<'_>) -> Response {
    let mut response = Response::new(Body::empty());
    HeaderFamilies::ALL.add_headers(outcome, wall_us(), response.headers_mut());
    response
}

impl Params {
    /// Makes the response to a refused request, with the status that the proxy needs. A 401 stays a 401, which every
    /// proxy understands.
    fn refused(&self, reason: RefusalReason<'_>) -> Response {
        let word = reason.word();
        let mut refusal = Refusal::new(reason);
        if let (Some(status), false) =
            (self.deny_status(), matches!(reason, RefusalReason::Token(_)))
        {
            refusal = refusal.with_status(status);
        }
        let mut response = refusal.response().map(Body::from);
        HeaderFamilies::ALL.add_refusal_headers(&refusal, wall_us(), response.headers_mut());
        with_reason(word, response)
    }

    /// Makes the response to a delayed request when the server closes before the delay has passed.
    fn stopping(&self, left: Duration) -> Response {
        let problem = ApiProblem::stopping(left);
        let problem = match self.deny_status() {
            Some(status) => problem.with_status(status),
            None => problem,
        };
        with_reason("stopping", problem.into_response())
    }
}

/// Adds the header with the reason of a refusal.
fn with_reason(word: &'static str, mut response: Response) -> Response {
    response.headers_mut().insert(REASON, HeaderValue::from_static(word));
    response
}

/// Returns the wall clock's time, in microseconds since the Unix epoch.
pub(super) fn wall_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}
