//! The domain and the settings of a proxy, in the path: `/v1/authorize/web/proxy=nginx,deny_status=403`.
//!
//! Nothing is read from the query, because some proxies send the client's query along.

use std::borrow::Cow;
use std::time::Duration;

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use hyper::StatusCode;
use serde::Deserialize;
use tollgate::rules::Snapshot;
use utoipa::ToSchema;

use crate::http::ApiProblem;
use crate::http::problem::excerpt;
use crate::pipeline;

/// The default of `max_wait_us`. It is shorter than the default timeouts of proxies: 30 s in Traefik, 60 s in nginx.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The largest `max_wait_us`.
const LONGEST_WAIT_US: u64 = 60_000_000;

/// The end of most error messages.
const REMEDY: &str = "use settings such as \
                      /v1/authorize/api/proxy=nginx,deny_status=403,max_wait_us=2000000";

/// The variable parts of the path, percent-decoded.
#[derive(Debug, Deserialize)]
pub(in crate::http) struct PathParts {
    domain: Option<String>,
    settings: Option<String>,
}

/// The domain and the settings in the path of a call.
#[derive(Debug)]
pub(super) struct Params {
    domain: Option<String>,
    settings: AuthorizeSettings,
}

/// How a proxy needs its calls answered.
#[derive(Debug, Default, PartialEq, Eq, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(min_properties = 1)]
pub(in crate::http) struct AuthorizeSettings {
    #[schema(nullable = false, inline)]
    proxy: Option<ProxyKind>,
    /// The status of refusals: instead of 429 if a quota is spent, 403 if the request is blocked, and 503 if the store
    /// fails under `closed`. nginx's `auth_request` accepts only 401 and 403. A token that is not accepted is still
    /// answered with 401.
    #[schema(minimum = 400, maximum = 499, nullable = false, example = 403)]
    deny_status: Option<u16>,
    /// How long a shaping limit may delay the answer. A request that would have to wait longer is refused.
    #[schema(minimum = 0, maximum = 60_000_000_u64, default = 10_000_000, nullable = false)]
    max_wait_us: Option<u64>,
}

/// The kind of proxy. It determines the headers that describe the original request; the headers of the other kind are
/// ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum ProxyKind {
    /// `X-Forwarded-Method`, `X-Forwarded-Uri` and `X-Forwarded-Host`: Caddy and Traefik.
    #[default]
    Forwarded,
    /// `X-Original-Method`, `X-Original-URI` and `Host`.
    Nginx,
}

impl Params {
    /// Returns the domain and the settings in a path, or a problem that names the invalid part.
    pub(super) fn new(path: Result<Path<PathParts>, PathRejection>) -> Result<Params, ApiProblem> {
        let Path(PathParts { domain, settings }) = path.map_err(|_| ApiProblem::bad_path())?;
        let settings = settings
            .map_or(Ok(AuthorizeSettings::default()), |text| AuthorizeSettings::parse(&text))?;
        Ok(Params { domain, settings })
    }

    /// Returns the domain in the path, or the only domain that has rules.
    pub(super) fn domain<'d>(
        &'d self,
        rules: &'d Snapshot<'_>,
    ) -> Result<Cow<'d, str>, ApiProblem> {
        let given = self.domain.as_deref().map(Cow::Borrowed);
        pipeline::domain(given, rules)
            .map_err(|target| ApiProblem::unknown_target(&target, "/v1/authorize/{domain}"))
    }

    pub(super) fn proxy(&self) -> ProxyKind {
        self.settings.proxy.unwrap_or_default()
    }

    pub(super) fn deny_status(&self) -> Option<StatusCode> {
        StatusCode::from_u16(self.settings.deny_status?).ok()
    }

    pub(super) fn max_wait(&self) -> Duration {
        self.settings.max_wait_us.map_or(MAX_WAIT, Duration::from_micros)
    }
}

impl AuthorizeSettings {
    /// Parses `proxy=nginx,deny_status=403`: each setting at most once, in any order.
    fn parse(text: &str) -> Result<AuthorizeSettings, ApiProblem> {
        let mut settings = AuthorizeSettings::default();
        for setting in text.split(',') {
            let Some((name, value)) = setting.split_once('=') else {
                let detail = format!("`{}` has no value; {REMEDY}", excerpt(setting));
                return Err(ApiProblem::bad_request(detail));
            };
            match name {
                "proxy" => set(&mut settings.proxy, name, ProxyKind::parse(value)?)?,
                "deny_status" => set(&mut settings.deny_status, name, deny_status(value)?)?,
                "max_wait_us" => set(&mut settings.max_wait_us, name, max_wait_us(value)?)?,
                _ => {
                    let detail = format!("unknown setting `{}`; {REMEDY}", excerpt(name));
                    return Err(ApiProblem::bad_request(detail));
                }
            }
        }
        Ok(settings)
    }
}

impl ProxyKind {
    fn parse(value: &str) -> Result<ProxyKind, ApiProblem> {
        match value {
            "forwarded" => Ok(ProxyKind::Forwarded),
            "nginx" => Ok(ProxyKind::Nginx),
            _ => Err(invalid("proxy", value, "use `forwarded` or `nginx`")),
        }
    }
}

/// Parses the status of refusals. A 2xx would let every request pass, and proxies treat a 5xx as a failure.
fn deny_status(value: &str) -> Result<u16, ApiProblem> {
    let status = value.parse().ok().filter(|status| (400..500).contains(status));
    status.ok_or_else(|| invalid("deny_status", value, "use one of 400 to 499"))
}

fn max_wait_us(value: &str) -> Result<u64, ApiProblem> {
    let wait_us = value.parse().ok().filter(|&wait_us| wait_us <= LONGEST_WAIT_US);
    wait_us.ok_or_else(|| {
        invalid("max_wait_us", value, &format!("use microseconds, at most {LONGEST_WAIT_US}"))
    })
}

/// Sets a setting, which may be set once.
fn set<T>(setting: &mut Option<T>, name: &str, value: T) -> Result<(), ApiProblem> {
    match setting.replace(value) {
        None => Ok(()),
        Some(_) => Err(ApiProblem::bad_request(format!("`{name}` is set twice; set it once"))),
    }
}

fn invalid(name: &str, value: &str, remedy: &str) -> ApiProblem {
    ApiProblem::bad_request(format!("{name}: `{}` is not valid; {remedy}", excerpt(value)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn settings_are_parsed_in_any_order() {
        let nginx =
            AuthorizeSettings { proxy: Some(ProxyKind::Nginx), ..AuthorizeSettings::default() };
        assert_eq!(AuthorizeSettings::parse("proxy=nginx").unwrap(), nginx);
        let all = AuthorizeSettings {
            proxy: Some(ProxyKind::Forwarded),
            deny_status: Some(403),
            max_wait_us: Some(60_000_000),
        };
        for text in [
            "proxy=forwarded,deny_status=403,max_wait_us=60000000",
            "max_wait_us=60000000,deny_status=403,proxy=forwarded",
        ] {
            assert_eq!(AuthorizeSettings::parse(text).unwrap(), all, "{text}");
        }
    }

    #[test]
    fn invalid_settings_are_named() {
        for (text, want) in [
            ("", "`` has no value; use settings such as /v1/authorize/api/proxy=nginx"),
            ("nginx", "`nginx` has no value"),
            ("proxy=nginx,", "`` has no value"),
            ("proxy=nginx&deny_status=403", "proxy: `nginx&deny_status=403` is not valid"),
            ("proxy=squid", "use `forwarded` or `nginx`"),
            ("Proxy=nginx", "unknown setting `Proxy`"),
            ("domain=web", "unknown setting `domain`"),
            ("proxy=nginx,proxy=forwarded", "`proxy` is set twice"),
            ("deny_status=200", "use one of 400 to 499"),
            ("deny_status=500", "use one of 400 to 499"),
            ("deny_status=65939", "use one of 400 to 499"),
            ("deny_status= 403", "deny_status: ` 403` is not valid"),
            ("max_wait_us=60000001", "at most 60000000"),
            ("max_wait_us=-1", "at most 60000000"),
        ] {
            let problem = AuthorizeSettings::parse(text).unwrap_err();
            assert_eq!(problem.status(), StatusCode::BAD_REQUEST);
            assert!(problem.detail().contains(want), "{text}: {}", problem.detail());
        }
    }

    fn parts() -> impl Strategy<Value = String> {
        let names = ["proxy", "deny_status", "max_wait_us", "domain", ""];
        let values = prop_oneof![
            Just("nginx".to_owned()),
            any::<u64>().prop_map(|number| number.to_string()),
            (390..510_u16).prop_map(|number| number.to_string()),
            any::<String>(),
        ];
        let pair = (prop::sample::select(names.to_vec()), "[=,]?", values)
            .prop_map(|(name, sign, value)| format!("{name}{sign}{value}"));
        prop::collection::vec(pair, 0..5).prop_map(|pairs| pairs.join(","))
    }

    proptest! {
        #[test]
        fn settings_are_within_bounds_or_refused(text in prop_oneof![any::<String>(), parts()]) {
            match AuthorizeSettings::parse(&text) {
                Ok(AuthorizeSettings { deny_status, max_wait_us, .. }) => {
                    prop_assert!(deny_status.is_none_or(|status| (400..500).contains(&status)));
                    prop_assert!(max_wait_us.is_none_or(|wait_us| wait_us <= LONGEST_WAIT_US));
                }
                Err(problem) => prop_assert!(problem.detail().len() < 300, "{}", problem.detail()),
            }
        }
    }
}
