//! The endpoints of both ports, as metrics, logs and traces name them: a fixed set, whatever paths clients send.

use hyper::Method;

/// Envoy's rate limit service, on the gRPC port.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The endpoint that a request is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestEndpoint {
    Check,
    Batch,
    Reserve,
    ReserveBatch,
    Settle,
    SettleBatch,
    Extend,
    ExtendBatch,
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

impl RequestEndpoint {
    /// All endpoints, in the order of their declaration.
    pub(crate) const ALL: [RequestEndpoint; 22] = [
        RequestEndpoint::Check,
        RequestEndpoint::Batch,
        RequestEndpoint::Reserve,
        RequestEndpoint::ReserveBatch,
        RequestEndpoint::Settle,
        RequestEndpoint::SettleBatch,
        RequestEndpoint::Extend,
        RequestEndpoint::ExtendBatch,
        RequestEndpoint::Authorize,
        RequestEndpoint::Limits,
        RequestEndpoint::Limit,
        RequestEndpoint::Keys,
        RequestEndpoint::Refund,
        RequestEndpoint::Operations,
        RequestEndpoint::Playground,
        RequestEndpoint::Page,
        RequestEndpoint::Healthz,
        RequestEndpoint::Readyz,
        RequestEndpoint::Metrics,
        RequestEndpoint::Openapi,
        RequestEndpoint::RateLimit,
        RequestEndpoint::Other,
    ];

    /// Returns the endpoint of a path.
    pub(crate) fn of(path: &str) -> RequestEndpoint {
        match path {
            "/v1/check" => RequestEndpoint::Check,
            "/v1/check/batch" => RequestEndpoint::Batch,
            "/v1/reserve" => RequestEndpoint::Reserve,
            "/v1/reserve/batch" => RequestEndpoint::ReserveBatch,
            "/v1/settle" => RequestEndpoint::Settle,
            "/v1/settle/batch" => RequestEndpoint::SettleBatch,
            "/v1/extend" => RequestEndpoint::Extend,
            "/v1/extend/batch" => RequestEndpoint::ExtendBatch,
            "/v1/authorize" => RequestEndpoint::Authorize,
            "/v1/limits" => RequestEndpoint::Limits,
            "/v1/refund" => RequestEndpoint::Refund,
            "/v1/operations" => RequestEndpoint::Operations,
            "/" => RequestEndpoint::Page,
            "/healthz" => RequestEndpoint::Healthz,
            "/readyz" => RequestEndpoint::Readyz,
            "/metrics" => RequestEndpoint::Metrics,
            "/openapi.json" => RequestEndpoint::Openapi,
            SHOULD_RATE_LIMIT => RequestEndpoint::RateLimit,
            _ if path.starts_with("/page/") => RequestEndpoint::Page,
            _ if path.starts_with("/api/rate-limit/") => RequestEndpoint::Playground,
            _ if is_authorize(path) => RequestEndpoint::Authorize,
            _ => RequestEndpoint::below_limits(path).unwrap_or(RequestEndpoint::Other),
        }
    }

    /// Returns the endpoint of a path such as `/v1/limits/free` or `/v1/limits/free/keys/user:42`.
    fn below_limits(path: &str) -> Option<RequestEndpoint> {
        let mut parts = path.strip_prefix("/v1/limits/")?.split('/');
        match [parts.next(), parts.next(), parts.next(), parts.next()] {
            [Some(name), None, None, None] if !name.is_empty() => Some(RequestEndpoint::Limit),
            [Some(name), Some("keys"), Some(_), None] if !name.is_empty() => {
                Some(RequestEndpoint::Keys)
            }
            _ => None,
        }
    }

    /// Returns the endpoint's name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            RequestEndpoint::Check => "check",
            RequestEndpoint::Batch => "batch",
            RequestEndpoint::Reserve => "reserve",
            RequestEndpoint::ReserveBatch => "reserve_batch",
            RequestEndpoint::Settle => "settle",
            RequestEndpoint::SettleBatch => "settle_batch",
            RequestEndpoint::Extend => "extend",
            RequestEndpoint::ExtendBatch => "extend_batch",
            RequestEndpoint::Authorize => "authorize",
            RequestEndpoint::Limits => "limits",
            RequestEndpoint::Limit => "limit",
            RequestEndpoint::Keys => "keys",
            RequestEndpoint::Refund => "refund",
            RequestEndpoint::Operations => "operations",
            RequestEndpoint::Playground => "playground",
            RequestEndpoint::Page => "page",
            RequestEndpoint::Healthz => "healthz",
            RequestEndpoint::Readyz => "readyz",
            RequestEndpoint::Metrics => "metrics",
            RequestEndpoint::Openapi => "openapi",
            RequestEndpoint::RateLimit => "rls",
            RequestEndpoint::Other => "other",
        }
    }

    /// Returns the endpoint's path, with variable parts in braces; `None` for paths outside the API.
    pub(crate) fn route(self) -> Option<&'static str> {
        Some(match self {
            RequestEndpoint::Check => "/v1/check",
            RequestEndpoint::Batch => "/v1/check/batch",
            RequestEndpoint::Reserve => "/v1/reserve",
            RequestEndpoint::ReserveBatch => "/v1/reserve/batch",
            RequestEndpoint::Settle => "/v1/settle",
            RequestEndpoint::SettleBatch => "/v1/settle/batch",
            RequestEndpoint::Extend => "/v1/extend",
            RequestEndpoint::ExtendBatch => "/v1/extend/batch",
            RequestEndpoint::Authorize => "/v1/authorize",
            RequestEndpoint::Limits => "/v1/limits",
            RequestEndpoint::Limit => "/v1/limits/{name}",
            RequestEndpoint::Keys => "/v1/limits/{name}/keys/{key}",
            RequestEndpoint::Refund => "/v1/refund",
            RequestEndpoint::Operations => "/v1/operations",
            RequestEndpoint::Playground => "/api/rate-limit/{algorithm}",
            RequestEndpoint::Page => "/",
            RequestEndpoint::Healthz => "/healthz",
            RequestEndpoint::Readyz => "/readyz",
            RequestEndpoint::Metrics => "/metrics",
            RequestEndpoint::Openapi => "/openapi.json",
            RequestEndpoint::RateLimit => SHOULD_RATE_LIMIT,
            RequestEndpoint::Other => return None,
        })
    }
}

/// Returns whether a path is `/v1/authorize/{domain}` or `/v1/authorize/{domain}/{settings}`.
fn is_authorize(path: &str) -> bool {
    path.strip_prefix("/v1/authorize/").is_some_and(|rest| {
        !rest.is_empty() && !rest.ends_with('/') && rest.matches('/').count() < 2
    })
}

/// Returns the name of a common method; `_OTHER` for any other, so that clients cannot add names.
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
    fn paths_belong_to_their_endpoints() {
        let table = [
            ("/v1/check", RequestEndpoint::Check),
            ("/v1/check/", RequestEndpoint::Other),
            ("/v1/check/batch", RequestEndpoint::Batch),
            ("/v1/reserve", RequestEndpoint::Reserve),
            ("/v1/settle/batch", RequestEndpoint::SettleBatch),
            ("/v1/extend/", RequestEndpoint::Other),
            ("/v1/authorize", RequestEndpoint::Authorize),
            ("/v1/authorize/", RequestEndpoint::Other),
            ("/v1/authorize/web", RequestEndpoint::Authorize),
            ("/v1/authorize/web/", RequestEndpoint::Other),
            ("/v1/authorize//proxy=nginx", RequestEndpoint::Authorize),
            ("/v1/authorize/a%2Fb/proxy=nginx", RequestEndpoint::Authorize),
            ("/v1/authorize/web/proxy=nginx/", RequestEndpoint::Other),
            ("/v1/limits", RequestEndpoint::Limits),
            ("/v1/limits/", RequestEndpoint::Other),
            ("/v1/limits/free", RequestEndpoint::Limit),
            ("/v1/limits/free/", RequestEndpoint::Other),
            ("/v1/limits/free/keys", RequestEndpoint::Other),
            ("/v1/limits/free/keys/", RequestEndpoint::Keys),
            ("/v1/limits/free/keys/user:42", RequestEndpoint::Keys),
            ("/v1/limits/free/keys/a%2Fb", RequestEndpoint::Keys),
            ("/v1/limits/free/keys/a/b", RequestEndpoint::Other),
            ("/v1/limits//keys/a", RequestEndpoint::Other),
            ("/v1/refund", RequestEndpoint::Refund),
            ("/healthz", RequestEndpoint::Healthz),
            ("/readyz", RequestEndpoint::Readyz),
            ("/metrics", RequestEndpoint::Metrics),
            ("/openapi.json", RequestEndpoint::Openapi),
            (SHOULD_RATE_LIMIT, RequestEndpoint::RateLimit),
            ("/v1/operations", RequestEndpoint::Operations),
            ("/", RequestEndpoint::Page),
            ("/page/main.js", RequestEndpoint::Page),
            ("/page", RequestEndpoint::Other),
            ("/api/rate-limit/reset", RequestEndpoint::Playground),
            ("/api/rate-limit/token-bucket/burst", RequestEndpoint::Playground),
            ("/api/rate-limit", RequestEndpoint::Other),
            ("", RequestEndpoint::Other),
            ("*", RequestEndpoint::Other),
        ];
        for (path, want) in table {
            assert_eq!(RequestEndpoint::of(path), want, "{path}");
        }
    }

    #[test]
    fn route_of_an_endpoint_belongs_to_it() {
        for endpoint in RequestEndpoint::ALL {
            let route = endpoint.route().unwrap_or("/nowhere");
            assert_eq!(RequestEndpoint::of(route), endpoint);
        }
    }

    #[test]
    fn uncommon_method_is_named_other() {
        assert_eq!(method(&Method::POST), "POST");
        assert_eq!(method(&Method::from_bytes(b"STEAL").unwrap()), "_OTHER");
    }

    #[test]
    fn endpoints_are_listed_in_the_order_of_their_declaration() {
        for (index, endpoint) in RequestEndpoint::ALL.into_iter().enumerate() {
            assert_eq!(endpoint as usize, index, "{endpoint:?}");
        }
    }
}
