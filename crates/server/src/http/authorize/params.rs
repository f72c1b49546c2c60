//! What a proxy's configuration says: the query.

use std::time::Duration;

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use hyper::StatusCode;
use serde::Deserialize;
use tollgate::rules::Current;
use utoipa::{IntoParams, ToSchema};

use crate::http::Problem;
use crate::http::problem::told;

/// Shorter than proxies wait: Traefik 30 s, nginx 60 s unless told otherwise.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The longest that can be asked for.
const LONGEST_WAIT_US: u64 = 60_000_000;

/// What a proxy's configuration says.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Params {
    /// Whose rules decide. Need not be said if all rules are of one domain.
    #[param(nullable = false, example = "api")]
    domain: Option<String>,
    /// Which headers tell of the original request; nobody else's are looked at.
    #[param(nullable = false, inline)]
    proxy: Option<Proxy>,
    /// The status of a refusal, instead of 429, of a blocked request, instead of 403, and of a store that fails under
    /// `closed`, instead of 503: nginx's `auth_request` understands 401 and 403 alone. A token that is not accepted is 401 all the same.
    #[param(minimum = 400, maximum = 499, nullable = false, example = 403)]
    deny_status: Option<u16>,
    /// How long a shaping limit may delay the answer; what would have to wait for longer is refused.
    #[param(minimum = 0, maximum = 60_000_000_u64, default = 10_000_000, nullable = false)]
    max_wait_us: Option<u64>,
}

/// Whose headers tell of the original request.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Proxy {
    /// `X-Forwarded-Method`, `X-Forwarded-Uri` and `X-Forwarded-Host`: Caddy and Traefik.
    #[default]
    Forwarded,
    /// `X-Original-Method`, `X-Original-URI` and `Host`.
    Nginx,
}

impl Params {
    pub(super) fn checked(
        params: Result<Query<Params>, QueryRejection>,
    ) -> Result<Params, Problem> {
        let Query(params) = params.map_err(|error| {
            let problem = error.body_text();
            let problem = problem.split_once(": ").map_or(&*problem, |(_, problem)| problem);
            let remedy = "use such as ?domain=api&proxy=nginx&deny_status=403&max_wait_us=2000000";
            Problem::bad_request(format!("{}; {remedy}", told(problem)))
        })?;
        // A 2xx would let everybody pass, and a 5xx looks like a failure, which proxies try again.
        if let Some(status) = params.deny_status.filter(|status| !(400..500).contains(status)) {
            let detail = format!("deny_status: {status} is no refusal; use one of 400 to 499");
            return Err(Problem::bad_request(detail));
        }
        if let Some(wait_us) = params.max_wait_us.filter(|&wait_us| wait_us > LONGEST_WAIT_US) {
            let detail =
                format!("max_wait_us: {wait_us} is too long; use at most {LONGEST_WAIT_US}");
            return Err(Problem::bad_request(detail));
        }
        Ok(params)
    }

    /// The one that is asked for, or the only one.
    pub(super) fn domain<'d>(&'d self, now: &'d Current<'_>) -> Result<&'d str, Problem> {
        match &self.domain {
            Some(domain) if now.has_domain(domain) => Ok(domain),
            Some(domain) => Err(Problem::unknown_domain(domain)),
            None => now.only_domain().ok_or_else(|| {
                Problem::bad_request(
                    "the rules are of several domains, or there are none; say which: ?domain=api",
                )
            }),
        }
    }

    pub(super) fn proxy(&self) -> Proxy {
        self.proxy.unwrap_or_default()
    }

    pub(super) fn deny_status(&self) -> Option<StatusCode> {
        StatusCode::from_u16(self.deny_status?).ok()
    }

    pub(super) fn max_wait(&self) -> Duration {
        self.max_wait_us.map_or(MAX_WAIT, Duration::from_micros)
    }
}
