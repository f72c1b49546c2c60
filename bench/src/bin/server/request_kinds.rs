//! The kinds of requests that are measured.

use crate::contenders::ServerContender;

/// A kind of request that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    OneKey,
    ManyKeys,
    Denied,
    ByRules,
    /// One key, on a server with two threads.
    TwoThreads,
}

/// A request of some kind, in the format of one server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerRequest {
    pub(crate) path: &'static str,
    /// The body, with `#` in place of the key's number.
    pub(crate) body: &'static str,
    /// The number of keys.
    pub(crate) keys: u32,
}

impl ServerRequest {
    /// Returns the body of the nth request. The keys are used in turn.
    pub(crate) fn body_for(&self, nth: u32) -> String {
        self.body.replace('#', &(42 + nth % self.keys).to_string())
    }
}

impl RequestKind {
    pub(crate) const ALL: [RequestKind; 5] = [
        RequestKind::OneKey,
        RequestKind::ManyKeys,
        RequestKind::Denied,
        RequestKind::ByRules,
        RequestKind::TwoThreads,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            RequestKind::OneKey => "one key",
            RequestKind::ManyKeys => "10,000 keys",
            RequestKind::Denied => "denied",
            RequestKind::ByRules => "by rules",
            RequestKind::TwoThreads => "one key, 2 threads",
        }
    }

    /// Returns the server's number of threads.
    pub(crate) const fn threads(self) -> &'static str {
        match self {
            RequestKind::TwoThreads => "2",
            RequestKind::OneKey
            | RequestKind::ManyKeys
            | RequestKind::Denied
            | RequestKind::ByRules => "1",
        }
    }

    /// Returns the text that every answer contains; for denials, every answer after the quota is spent.
    pub(crate) const fn answer(self) -> &'static str {
        match self {
            RequestKind::Denied => r#""allowed":false"#,
            _ => r#""allowed":true"#,
        }
    }

    /// Returns the request to this contender; `None` if it does not support this kind.
    pub(crate) fn to(self, contender: ServerContender) -> Option<ServerRequest> {
        let (path, body) = match (contender, self) {
            (ServerContender::Peer, RequestKind::ByRules) => return None,
            // A burst of 2, as for ours: with a burst of 1 the peer refuses no request.
            (ServerContender::Peer, RequestKind::Denied) => (
                "/throttle",
                r#"{"key":"user:#","max_burst":2,"count_per_period":1,"period":86400}"#,
            ),
            (ServerContender::Peer, _) => (
                "/throttle",
                r#"{"key":"user:#","max_burst":1000000,"count_per_period":100000000,"period":1}"#,
            ),
            (_, RequestKind::Denied) => ("/v1/check", r#"{"limit":"spent","key":"user:#"}"#),
            (_, RequestKind::ByRules) => (
                "/v1/check",
                r#"{"domain":"api","attributes":{"method":"GET","path":"/reports","api_key":"k_123"}}"#,
            ),
            (_, _) => ("/v1/check", r#"{"limit":"free","key":"user:#"}"#),
        };
        let keys = if self == RequestKind::ManyKeys { 10_000 } else { 1 };
        Some(ServerRequest { path, body, keys })
    }
}

#[cfg(test)]
mod tests {
    use tollgate::rules::Config;

    use super::*;

    #[test]
    fn keys_are_used_in_turn() {
        let request = ServerRequest { path: "/", body: "user:#", keys: 2 };
        assert_eq!([0, 1, 2].map(|nth| request.body_for(nth)), ["user:42", "user:43", "user:42"]);
    }

    #[test]
    fn peer_without_rules_is_not_measured_by_rules() {
        assert!(RequestKind::ByRules.to(ServerContender::Peer).is_none());
        assert!(RequestKind::ByRules.to(ServerContender::Ours).is_some());
    }

    #[test]
    fn limits_file_is_valid_and_has_the_limits_of_the_requests() {
        let limits = include_str!("limits.yaml");
        Config::parse("limits.yaml", limits).unwrap();
        for name in ["free", "spent"] {
            assert!(limits.contains(&format!("\n  {name}: ")), "{name}");
        }
    }
}
