//! The URL of the collector that traces are sent to.

use anyhow::bail;
use hyper::Uri;

/// The URL of the collector that traces are sent to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OtlpEndpoint {
    /// The whole URL: `http://127.0.0.1:4318/v1/traces`.
    pub(super) url: String,
    /// The same without a query, which may be secret.
    pub(super) shown: String,
}

const FLAG: &str = "--otlp-endpoint";
const ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];

/// Returns the endpoint of the flag, or else of the environment; `None` if neither is set, or if `OTEL_SDK_DISABLED` is
/// `true`.
pub(super) fn find(
    flag: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
) -> anyhow::Result<Option<OtlpEndpoint>> {
    // By the OpenTelemetry specification, an empty variable is the same as an unset one.
    let variable = |name| variable(name).filter(|value| !value.is_empty());
    if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(None);
    }
    let flag = flag.filter(|flag| !flag.is_empty()).map(str::to_owned);
    let endpoint = if let Some(base) = flag {
        parse(FLAG, &with_path(&base))?
    } else if let Some(whole) = variable(TRACES) {
        parse(TRACES, &whole)?
    } else if let Some(base) = variable(ALL) {
        parse(ALL, &with_path(&base))?
    } else {
        return Ok(None);
    };
    for name in PROTOCOLS {
        if variable(name).is_some_and(|protocol| protocol != "http/protobuf") {
            bail!("{name}: only http/protobuf is supported; use that, and its port (4318)");
        }
    }
    Ok(Some(endpoint))
}

/// Adds the path of traces to a URL for all signals, as the OpenTelemetry specification says.
fn with_path(base: &str) -> String {
    format!("{}/v1/traces", base.trim_end_matches('/'))
}

/// Parses a URL from a flag or variable. Errors do not repeat the URL, because it may have a password in it.
fn parse(place: &str, url: &str) -> anyhow::Result<OtlpEndpoint> {
    let parsed: Option<Uri> = url.parse().ok();
    let authority = parsed.as_ref().and_then(Uri::authority);
    if authority.is_some_and(|authority| authority.as_str().contains('@')) {
        // At the levels `debug` and `trace`, the HTTP crates would log them.
        bail!("{place}: the URL has a user or password; give them in OTEL_EXPORTER_OTLP_HEADERS");
    }
    let shown = parsed.as_ref().and_then(|uri| {
        let scheme = uri.scheme_str().filter(|scheme| ["http", "https"].contains(scheme))?;
        let authority = authority.filter(|authority| !authority.host().is_empty())?;
        Some(format!("{scheme}://{authority}{}", uri.path()))
    });
    match shown {
        Some(shown) => Ok(OtlpEndpoint { url: url.to_owned(), shown }),
        None => {
            bail!("{place}: not the URL of a collector; use one such as http://127.0.0.1:4318")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(
        flag: Option<&str>,
        variables: &[(&str, &str)],
    ) -> anyhow::Result<Option<OtlpEndpoint>> {
        find(flag, |name| {
            let variable = variables.iter().find(|variable| variable.0 == name);
            variable.map(|variable| variable.1.to_owned())
        })
    }

    #[test]
    fn the_flag_overrides_the_environment_and_the_path_is_added() {
        let table = [
            (Some("http://a:4318"), &[][..], Some("http://a:4318/v1/traces")),
            (Some("http://a:4318/"), &[], Some("http://a:4318/v1/traces")),
            (Some("https://a/otlp"), &[(ALL, "http://b")], Some("https://a/otlp/v1/traces")),
            (None, &[(ALL, "http://b")], Some("http://b/v1/traces")),
            (Some(""), &[(ALL, "http://b")], Some("http://b/v1/traces")),
            (None, &[(ALL, "http://b"), (TRACES, "http://c/x")], Some("http://c/x")),
            (None, &[(ALL, ""), (TRACES, "")], None),
            (None, &[], None),
            (Some("http://a"), &[("OTEL_SDK_DISABLED", "true")], None),
            (
                None,
                &[(ALL, "http://b"), (PROTOCOLS[1], "http/protobuf")],
                Some("http://b/v1/traces"),
            ),
        ];
        for (flag, variables, url) in table {
            let endpoint = found(flag, variables).unwrap();
            let found = endpoint.map(|endpoint| endpoint.url);
            assert_eq!(found.as_deref(), url, "{flag:?} {variables:?}");
        }
    }

    #[test]
    fn a_query_is_not_shown() {
        let endpoint = found(None, &[(TRACES, "http://a:4318/x?key=hidden")]).unwrap().unwrap();
        assert_eq!(endpoint.shown, "http://a:4318/x");
        assert_eq!(endpoint.url, "http://a:4318/x?key=hidden");
    }

    #[test]
    fn a_url_with_user_or_password_is_refused() {
        for bad in ["http://me:hidden@a:4318", "http://hidden@a", "ftp://me:hidden@a"] {
            let error = found(Some(bad), &[]).unwrap_err().to_string();
            assert!(error.contains("give them in OTEL_EXPORTER_OTLP_HEADERS"), "{error}");
            assert!(!error.contains("hidden"), "{error}");
        }
    }

    #[test]
    fn errors_name_the_flag_or_variable_and_a_remedy_but_not_the_url() {
        for bad in ["a:4318", "ftp://hidden", "http://", "me:hidden", "http://me:hidden@ a", "/x"] {
            let error = found(Some(bad), &[]).unwrap_err().to_string();
            assert!(error.starts_with("--otlp-endpoint: ") && error.contains("use one such as"));
            assert!(!error.contains("hidden"), "{error}");
        }
        let error = found(None, &[(TRACES, "nowhere")]).unwrap_err().to_string();
        assert!(error.starts_with(TRACES), "{error}");
        let error = found(Some("http://a"), &[(PROTOCOLS[1], "grpc")]).unwrap_err().to_string();
        assert!(error.starts_with(PROTOCOLS[1]) && error.contains("4318"), "{error}");
    }
}
