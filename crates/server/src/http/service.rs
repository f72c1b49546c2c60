//! The API as one service, which observes every request and answers `POST /v1/check` without the router.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::Router;
use axum::body::Body;
use axum::extract::FromRequest;
use axum::response::IntoResponse;
use axum::routing::future::RouteFuture;
use hyper::{Method, Request, Response};
use pin_project_lite::pin_project;
use tower::Service;

use super::ApiProblem;
use super::api::Api;
use super::body::JsonBody;
use super::check::{MAX_BYTES, decide};
use super::host::problem_with_host;
use crate::endpoint::RequestEndpoint;
use crate::observe::{Observation, Observer};

/// Returns the whole API, as a service of HTTP requests.
pub(crate) fn service(
    api: Api,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
+ Clone
+ Send
+ Sync
+ 'static {
    ObservedApi::new(super::router(api.clone()), check, api)
}

/// Answers `POST /v1/check` without a router.
async fn check(api: Api, request: Request<Body>) -> Response<Body> {
    let decided = match JsonBody::<MAX_BYTES>::from_request(request, &api).await {
        Ok(JsonBody(body)) => decide(api.pipeline(), api.budget(), &body).await,
        Err(problem) => Err(problem),
    };
    decided.unwrap_or_else(ApiProblem::into_response)
}

/// The API, with every request observed.
#[derive(Clone)]
struct ObservedApi<C> {
    router: Router,
    /// Answers `POST /v1/check` instead of the router. The router would take a sixth of the time of such a request.
    check: C,
    api: Api,
}

impl<C> ObservedApi<C> {
    fn new(router: Router, check: C, api: Api) -> ObservedApi<C> {
        ObservedApi { router, check, api }
    }
}

impl<C, F> Service<Request<Body>> for ObservedApi<C>
where
    C: Fn(Api, Request<Body>) -> F,
    F: Future<Output = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ObservedResponse<F>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> ObservedResponse<F> {
        let endpoint = RequestEndpoint::of(request.uri().path());
        let observer = Arc::clone(self.api.observer());
        let observation = observer.begin(endpoint, &request);
        let problem = problem_with_host(request.headers(), request.version());
        let answer = match (endpoint, request.method()) {
            _ if problem.is_some() => ApiFuture::Refused { problem },
            (RequestEndpoint::Check, &Method::POST) => {
                ApiFuture::Check { answer: (self.check)(self.api.clone(), request) }
            }
            _ => ApiFuture::Routed { answer: self.router.call(request) },
        };
        ObservedResponse { answer, observer, observation }
    }
}

pin_project! {
    /// The future of an observed response. If the client goes away before it is ready, the request is not counted.
    struct ObservedResponse<F> {
        #[pin]
        answer: ApiFuture<F>,
        observer: Arc<Observer>,
        observation: Observation,
    }
}

pin_project! {
    #[project = ApiFutureProj]
    enum ApiFuture<F> {
        Check { #[pin] answer: F },
        Routed { #[pin] answer: RouteFuture<Infallible> },
        // Refused before any route; `None` after the response.
        Refused { problem: Option<ApiProblem> },
    }
}

impl<F: Future<Output = Response<Body>>> Future for ApiFuture<F> {
    type Output = Response<Body>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response<Body>> {
        match self.project() {
            ApiFutureProj::Check { answer } => answer.poll(context),
            ApiFutureProj::Routed { answer } => match ready!(answer.poll(context)) {
                Ok(answer) => Poll::Ready(answer),
                Err(never) => match never {},
            },
            ApiFutureProj::Refused { problem } => match problem.take() {
                Some(problem) => Poll::Ready(problem.into_response()),
                None => Poll::Pending,
            },
        }
    }
}

impl<F: Future<Output = Response<Body>>> Future for ObservedResponse<F> {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let entered = this.observation.enter();
        let answer = ready!(this.answer.poll(context));
        drop(entered);
        this.observer.answered(this.observation, answer.status());
        Poll::Ready(Ok(answer))
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use hyper::header::{CONTENT_TYPE, HOST};

    use super::*;

    fn api() -> Api {
        let rules = "limits: { two: fixed-window limit=2 window=1d }";
        Api::new(crate::parts::tests::in_memory(rules).api)
    }

    /// Returns the status, the content type and the body of a response.
    async fn contents(answer: Response<Body>) -> (u16, String, String) {
        let kind = answer.headers().get(CONTENT_TYPE).map(|kind| kind.to_str().unwrap().to_owned());
        let status = answer.status().as_u16();
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        (status, kind.unwrap_or_default(), String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn only_posted_checks_bypass_the_router() {
        let router = Router::new().fallback(async || "routed");
        let check = |_, _| async { Response::new(Body::from("decided")) };
        let mut observed = ObservedApi::new(router, check, api());
        for (method, path, want) in [
            (Method::POST, "/v1/check", "decided"),
            (Method::POST, "/v1/check?a=b", "decided"),
            (Method::GET, "/v1/check", "routed"),
            (Method::POST, "/v1/check/", "routed"),
            (Method::POST, "/v1/check/batch", "routed"),
        ] {
            let request = Request::builder().method(&method).uri(path).header(HOST, "localhost");
            let request = request.body(Body::empty());
            let answer = observed.call(request.unwrap()).await.unwrap();
            assert_eq!(contents(answer).await.2, want, "{method} {path}");
        }
    }

    #[tokio::test]
    async fn check_has_the_same_response_with_and_without_the_router() {
        let api = api();
        let mut router = crate::http::router(api.clone());
        let json = "application/json";
        for (kind, body, want) in [
            (json, r#"{"limit":"two","key":"a","cost":3}"#.to_owned(), 200),
            (json, r#"{"limit":"three","key":"a"}"#.to_owned(), 404),
            (json, r#"{"limit":"two"}"#.to_owned(), 400),
            (json, "a".repeat(100_000), 413),
            ("text/plain", r#"{"limit":"two","key":"a"}"#.to_owned(), 415),
        ] {
            let request = || {
                let request = Request::post("/v1/check").header(CONTENT_TYPE, kind);
                request.body(Body::from(body.clone())).unwrap()
            };
            let routed = contents(router.call(request()).await.unwrap()).await;
            let direct = contents(check(api.clone(), request()).await).await;
            assert_eq!(direct, routed);
            assert_eq!(direct.0, want, "{direct:?}");
        }
    }
}
