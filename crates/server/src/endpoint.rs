//! What a request asks for, in words of ours: of a fixed set, whatever clients send.

use hyper::Method;

/// Envoy's rate limit service, on the gRPC port.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// What a request asks for: one of a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Check,
    Batch,
    Authorize,
    Limits,
    Limit,
    Keys,
    Refund,
    Operations,
    Playground,
    Page,
    Healthz,
    Readyz,
    Metrics,
    Openapi,
    RateLimit,
    Other,
}

impl Endpoint {
    /// In the order in which they are declared.
    pub(crate) const ALL: [Endpoint; 16] = [
        Endpoint::Check,
        Endpoint::Batch,
        Endpoint::Authorize,
        Endpoint::Limits,
        Endpoint::Limit,
        Endpoint::Keys,
        Endpoint::Refund,
        Endpoint::Operations,
        Endpoint::Playground,
        Endpoint::Page,
        Endpoint::Healthz,
        Endpoint::Readyz,
        Endpoint::Metrics,
        Endpoint::Openapi,
        Endpoint::RateLimit,
        Endpoint::Other,
    ];

    pub(crate) fn of(path: &str) -> Endpoint {
        match path {
            "/v1/check" => Endpoint::Check,
            "/v1/check/batch" => Endpoint::Batch,
            "/v1/authorize" => Endpoint::Authorize,
            "/v1/limits" => Endpoint::Limits,
            "/v1/refund" => Endpoint::Refund,
            "/v1/operations" => Endpoint::Operations,
            "/" => Endpoint::Page,
            "/healthz" => Endpoint::Healthz,
            "/readyz" => Endpoint::Readyz,
            "/metrics" => Endpoint::Metrics,
            "/openapi.json" => Endpoint::Openapi,
            SHOULD_RATE_LIMIT => Endpoint::RateLimit,
            _ if path.starts_with("/page/") => Endpoint::Page,
            _ if path.starts_with("/api/rate-limit/") => Endpoint::Playground,
            _ if is_authorize(path) => Endpoint::Authorize,
            _ => Endpoint::of_a_limit(path).unwrap_or(Endpoint::Other),
        }
    }

    /// `/v1/limits/free`, and `/v1/limits/free/keys/user:42`.
    fn of_a_limit(path: &str) -> Option<Endpoint> {
        let mut parts = path.strip_prefix("/v1/limits/")?.split('/');
        match [parts.next(), parts.next(), parts.next(), parts.next()] {
            [Some(name), None, None, None] if !name.is_empty() => Some(Endpoint::Limit),
            [Some(name), Some("keys"), Some(_), None] if !name.is_empty() => Some(Endpoint::Keys),
            _ => None,
        }
    }

    /// What metrics call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Endpoint::Check => "check",
            Endpoint::Batch => "batch",
            Endpoint::Authorize => "authorize",
            Endpoint::Limits => "limits",
            Endpoint::Limit => "limit",
            Endpoint::Keys => "keys",
            Endpoint::Refund => "refund",
            Endpoint::Operations => "operations",
            Endpoint::Playground => "playground",
            Endpoint::Page => "page",
            Endpoint::Healthz => "healthz",
            Endpoint::Readyz => "readyz",
            Endpoint::Metrics => "metrics",
            Endpoint::Openapi => "openapi",
            Endpoint::RateLimit => "rls",
            Endpoint::Other => "other",
        }
    }

    /// Its path, in which a part in braces stands for any; `None` if it is none of the API's.
    pub(crate) fn route(self) -> Option<&'static str> {
        Some(match self {
            Endpoint::Check => "/v1/check",
            Endpoint::Batch => "/v1/check/batch",
            Endpoint::Authorize => "/v1/authorize",
            Endpoint::Limits => "/v1/limits",
            Endpoint::Limit => "/v1/limits/{name}",
            Endpoint::Keys => "/v1/limits/{name}/keys/{key}",
            Endpoint::Refund => "/v1/refund",
            Endpoint::Operations => "/v1/operations",
            Endpoint::Playground => "/api/rate-limit/{algorithm}",
            Endpoint::Page => "/",
            Endpoint::Healthz => "/healthz",
            Endpoint::Readyz => "/readyz",
            Endpoint::Metrics => "/metrics",
            Endpoint::Openapi => "/openapi.json",
            Endpoint::RateLimit => SHOULD_RATE_LIMIT,
            Endpoint::Other => return None,
        })
    }
}

/// Whether a path is `/v1/authorize/{domain}` or `/v1/authorize/{domain}/{settings}`.
fn is_authorize(path: &str) -> bool {
    path.strip_prefix("/v1/authorize/").is_some_and(|rest| {
        !rest.is_empty() && !rest.ends_with('/') && rest.matches('/').count() < 2
    })
}

/// The method, if it is a common one.
pub(crate) fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PATCH => "PATCH",
        Method::TRACE => "TRACE",
        Method::CONNECT => "CONNECT",
        _ => "_OTHER",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_of_one_of_the_endpoints() {
        let table = [
            ("/v1/check", Endpoint::Check),
            ("/v1/check/", Endpoint::Other),
            ("/v1/check/batch", Endpoint::Batch),
            ("/v1/authorize", Endpoint::Authorize),
            ("/v1/authorize/", Endpoint::Other),
            ("/v1/authorize/web", Endpoint::Authorize),
            ("/v1/authorize/web/", Endpoint::Other),
            ("/v1/authorize//proxy=nginx", Endpoint::Authorize),
            ("/v1/authorize/a%2Fb/proxy=nginx", Endpoint::Authorize),
            ("/v1/authorize/web/proxy=nginx/", Endpoint::Other),
            ("/v1/limits", Endpoint::Limits),
            ("/v1/limits/", Endpoint::Other),
            ("/v1/limits/free", Endpoint::Limit),
            ("/v1/limits/free/", Endpoint::Other),
            ("/v1/limits/free/keys", Endpoint::Other),
            ("/v1/limits/free/keys/", Endpoint::Keys),
            ("/v1/limits/free/keys/user:42", Endpoint::Keys),
            ("/v1/limits/free/keys/a%2Fb", Endpoint::Keys),
            ("/v1/limits/free/keys/a/b", Endpoint::Other),
            ("/v1/limits//keys/a", Endpoint::Other),
            ("/v1/refund", Endpoint::Refund),
            ("/healthz", Endpoint::Healthz),
            ("/readyz", Endpoint::Readyz),
            ("/metrics", Endpoint::Metrics),
            ("/openapi.json", Endpoint::Openapi),
            (SHOULD_RATE_LIMIT, Endpoint::RateLimit),
            ("/v1/operations", Endpoint::Operations),
            ("/", Endpoint::Page),
            ("/page/main.js", Endpoint::Page),
            ("/page", Endpoint::Other),
            ("/api/rate-limit/reset", Endpoint::Playground),
            ("/api/rate-limit/token-bucket/burst", Endpoint::Playground),
            ("/api/rate-limit", Endpoint::Other),
            ("", Endpoint::Other),
            ("*", Endpoint::Other),
        ];
        for (path, want) in table {
            assert_eq!(Endpoint::of(path), want, "{path}");
        }
    }

    #[test]
    fn the_route_of_an_endpoint_is_one_of_it() {
        for endpoint in Endpoint::ALL {
            let route = endpoint.route().unwrap_or("/nowhere");
            assert_eq!(Endpoint::of(route), endpoint);
        }
    }

    #[test]
    fn an_invented_method_is_none_of_ours() {
        assert_eq!(method(&Method::POST), "POST");
        assert_eq!(method(&Method::from_bytes(b"STEAL").unwrap()), "_OTHER");
    }

    #[test]
    fn every_endpoint_is_at_its_place() {
        for (place, endpoint) in Endpoint::ALL.into_iter().enumerate() {
            assert_eq!(endpoint as usize, place, "{endpoint:?}");
        }
    }
}
