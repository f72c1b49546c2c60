//! What a request asks for, as far as metrics go.

/// What a request asks for: one of a few, whatever clients send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Check,
    Batch,
    Limits,
    Keys,
    Refund,
    Healthz,
    Readyz,
    Metrics,
    Openapi,
    Other,
}

impl Endpoint {
    /// In the order in which they are declared.
    pub(super) const ALL: [Endpoint; 10] = [
        Endpoint::Check,
        Endpoint::Batch,
        Endpoint::Limits,
        Endpoint::Keys,
        Endpoint::Refund,
        Endpoint::Healthz,
        Endpoint::Readyz,
        Endpoint::Metrics,
        Endpoint::Openapi,
        Endpoint::Other,
    ];

    pub(crate) fn of(path: &str) -> Endpoint {
        match path {
            "/v1/check" => Endpoint::Check,
            "/v1/check/batch" => Endpoint::Batch,
            "/v1/limits" => Endpoint::Limits,
            "/v1/refund" => Endpoint::Refund,
            "/healthz" => Endpoint::Healthz,
            "/readyz" => Endpoint::Readyz,
            "/metrics" => Endpoint::Metrics,
            "/openapi.json" => Endpoint::Openapi,
            _ => Endpoint::of_a_limit(path).unwrap_or(Endpoint::Other),
        }
    }

    /// `/v1/limits/free`, and `/v1/limits/free/keys/user:42`.
    fn of_a_limit(path: &str) -> Option<Endpoint> {
        let mut parts = path.strip_prefix("/v1/limits/")?.split('/');
        match [parts.next(), parts.next(), parts.next(), parts.next()] {
            [Some(name), None, None, None] if !name.is_empty() => Some(Endpoint::Limits),
            [Some(name), Some("keys"), Some(_), None] if !name.is_empty() => Some(Endpoint::Keys),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Endpoint::Check => "check",
            Endpoint::Batch => "batch",
            Endpoint::Limits => "limits",
            Endpoint::Keys => "keys",
            Endpoint::Refund => "refund",
            Endpoint::Healthz => "healthz",
            Endpoint::Readyz => "readyz",
            Endpoint::Metrics => "metrics",
            Endpoint::Openapi => "openapi",
            Endpoint::Other => "other",
        }
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
            ("/v1/limits", Endpoint::Limits),
            ("/v1/limits/", Endpoint::Other),
            ("/v1/limits/free", Endpoint::Limits),
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
            ("/", Endpoint::Other),
            ("", Endpoint::Other),
            ("*", Endpoint::Other),
        ];
        for (path, want) in table {
            assert_eq!(Endpoint::of(path), want, "{path}");
        }
    }

    #[test]
    fn every_endpoint_is_at_its_place() {
        for (place, endpoint) in Endpoint::ALL.into_iter().enumerate() {
            assert_eq!(endpoint as usize, place, "{endpoint:?}");
        }
    }
}
