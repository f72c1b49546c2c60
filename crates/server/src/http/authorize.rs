//! `/v1/authorize`: decides for a proxy that asks before it passes a request on.
//!
//! - `params`: the proxy's configuration, from the path; `original`: the request that it was sent
//!
//! The rules see what the middleware would see of the original request.

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
use super::Problem;
use super::openapi::AuthorizeAnswers;
use crate::held::{HeldRequest, HeldRequests, Place};
use crate::lifecycle::Lifecycle;
use crate::listener::ClientWatch;
use crate::logs::Sparingly;
use crate::metrics::Metrics;
use crate::pipeline::{Pipeline, SentRuling};

/// Says why a request is not let through, in a word: proxies tell one reason from another by it, whatever the status.
const REASON: HeaderName = HeaderName::from_static("x-tollgate-reason");

/// Decides for proxies.
#[derive(Debug)]
pub(super) struct Authorizer {
    pipeline: Arc<Pipeline>,
    metrics: Arc<Metrics>,
    held: Arc<HeldRequests>,
    lifecycle: Lifecycle,
    /// Requests of peers that are not trusted, for the log.
    untrusted: Sparingly,
}

impl Authorizer {
    pub(super) fn new(
        pipeline: Arc<Pipeline>,
        metrics: Arc<Metrics>,
        held: Arc<HeldRequests>,
        lifecycle: Lifecycle,
    ) -> Authorizer {
        Authorizer { pipeline, metrics, held, lifecycle, untrusted: Sparingly::default() }
    }

    /// Refuses a peer that is not trusted: counted, and logged once a second at most.
    fn refuse(&self, peer: Option<IpAddr>) -> Response {
        self.metrics.count_untrusted_proxy();
        if let (Some(left_out), Some(peer)) = (self.untrusted.again(Instant::now()), peer) {
            tracing::warn!(
                %peer,
                left_out,
                "not authorized: asked by an address that is not among identity.trusted_proxies"
            );
        }
        because("untrusted-proxy", Problem::untrusted_proxy().into_response())
    }

    fn begin(&self, params: &Params, parts: Parts) -> Result<Begun, Problem> {
        let now = self.pipeline.snapshot();
        let peer = parts.extensions.get().map(|Peer(peer)| peer.ip());
        let trusted = now.identity().filter(|own| peer.is_some_and(|peer| own.trusts(peer)));
        let Some(identity) = trusted else {
            return Ok(Begun::Refused(self.refuse(peer)));
        };
        let domain = params.domain(&now)?;
        let original = original::request(params.proxy(), parts)?;
        let head = RequestHead::new(&original, identity);
        if let Some(unwelcome) = head.token_refusal() {
            return Ok(Begun::TokenRefusal(unwelcome));
        }
        let attributes = now.attributes(&head);
        let mut check = now.check(&domain, &attributes);
        let mut place = None;
        if now.is_shaping() {
            place = self.held.join();
            check =
                check.max_wait(if place.is_some() { params.max_wait() } else { Duration::ZERO });
        }
        if head.is_preflight() {
            check = check.of_preflight();
        }
        Ok(Begun::Sent(self.pipeline.send_check(check), place))
    }

    /// Waits for the ruling, and says what comes of it.
    async fn decided(&self, params: &Params, sent: SentRuling, place: Option<Place>) -> Answer {
        let ruling = match self.pipeline.ruling(sent).await {
            Ok(ruling) => ruling,
            Err(error) => return Answer::Now(params.refused(RefusalReason::Undecided(&error))),
        };
        let outcome = Outcome::of_rules(&ruling);
        if !outcome.is_allowed() {
            return Answer::Now(params.refused(RefusalReason::Quota(outcome)));
        }
        let (response, delay) = (allowed(&outcome), outcome.delay());
        match delay.is_zero() {
            true => Answer::Now(response),
            false => Answer::Later { response, delay, held: HeldRequest::new(ruling, place) },
        }
    }
}

/// The longest body that may be left unread without closing the connection. The server closes the connection after a longer
/// one, and says so, because a client that sends its next request there gets no answer.
const MAX_UNREAD_BYTES: u64 = 4 << 10;

/// Each path at which a proxy may ask.
pub(super) const PATHS: [&str; 3] =
    ["/v1/authorize", "/v1/authorize/{domain}", "/v1/authorize/{domain}/{settings}"];

/// Decides a request that a proxy was sent, by the rules of the only domain
///
/// For nginx's `auth_request`, Caddy's `forward_auth`, Traefik's ForwardAuth and the like. The request is charged if it
/// may go. It is described by the headers `X-Forwarded-Method`, `-Uri` and `-Host`, or by nginx's `X-Original-…`; the
/// forwarding header of the configuration names its client. Both are believed of `identity.trusted_proxies` alone.
/// The query is ignored, because it may be the client's. Every method is answered in the same way, and a body is not
/// read. If a shaping limit delays the request, the answer is delayed.
#[utoipa::path(get, path = "/v1/authorize", tag = "decisions", responses(AuthorizeAnswers))]
pub(super) async fn authorize(
    State(authorizer): State<Arc<Authorizer>>,
    path: Result<Path<PathParts>, PathRejection>,
    request: Request,
) -> Result<Response, Problem> {
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
) -> Result<Response, Problem> {
    let params = Params::new(path)?;
    let hold = parts.extensions.get::<ClientWatch>().cloned();
    let answer = match authorizer.begin(&params, parts)? {
        Begun::Refused(response) => return Ok(response),
        Begun::TokenRefusal(unwelcome) => {
            return Ok(params.refused(RefusalReason::from(&unwelcome)));
        }
        Begun::Sent(sent, place) => authorizer.decided(&params, sent, place).await,
    };
    match answer {
        Answer::Now(response) => Ok(response),
        Answer::Later { response, delay, held } => {
            let _held_open = hold.as_ref().map(ClientWatch::begin);
            match held.until_its_turn(delay, &authorizer.lifecycle).await {
                Ok(()) => Ok(response),
                Err(left) => Ok(params.stopping(left)),
            }
        }
    }
}

/// Decides a request that a proxy was sent, by the rules of a domain
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
) -> Result<Response, Problem> {
    authorize(authorizer, path, request).await
}

/// Decides a request that a proxy was sent, by the rules of a domain, and answers as the proxy needs it
///
/// Answers as `/v1/authorize` does, but for the settings.
#[utoipa::path(
    get,
    path = "/v1/authorize/{domain}/{settings}",
    tag = "decisions",
    params(
        ("domain" = String, Path, description = "The domain whose rules decide.", example = "api"),
        (
            "settings" = AuthorizeSettings, Path, style = Simple, explode,
            description = "What the proxy needs: `proxy=nginx,deny_status=403`."
        ),
    ),
    responses(AuthorizeAnswers),
)]
pub(super) async fn authorize_with_settings(
    authorizer: State<Arc<Authorizer>>,
    path: Result<Path<PathParts>, PathRejection>,
    request: Request,
) -> Result<Response, Problem> {
    authorize(authorizer, path, request).await
}

/// Documents that POST answers as GET does. The router takes any method, and OpenAPI has no word for that.
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

/// How far a question is at once.
enum Begun {
    Refused(Response),
    TokenRefusal(TokenRefusal),
    /// With a place among those that wait, if that may be the answer.
    Sent(SentRuling, Option<Place>),
}

/// What is answered, and when.
enum Answer {
    Now(Response),
    Later { response: Response, delay: Duration, held: HeldRequest },
}

fn allowed(outcome: &Outcome<'_>) -> Response {
    let mut response = Response::new(Body::empty());
    HeaderFamilies::ALL.add_headers(outcome, wall_us(), response.headers_mut());
    response
}

impl Params {
    /// A request that does not go, as the proxy understands it. A 401 stays one: all of them know it.
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
        because(word, response)
    }

    /// The server does not stay for as long as the request has to wait: another may.
    fn stopping(&self, left: Duration) -> Response {
        let problem = Problem::stopping(left);
        let problem = match self.deny_status() {
            Some(status) => problem.with_status(status),
            None => problem,
        };
        because("stopping", problem.into_response())
    }
}

fn because(word: &'static str, mut response: Response) -> Response {
    response.headers_mut().insert(REASON, HeaderValue::from_static(word));
    response
}

pub(super) fn wall_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}
