//! The questions: the kinds of requests that are measured.

use crate::contenders::Contender;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    OneKey,
    ManyKeys,
    Denied,
    ByRules,
    /// One key, on a server with two threads.
    TwoThreads,
}

/// A question as a contender understands it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerRequest {
    pub(crate) path: &'static str,
    /// With a `#` where the number of a key goes.
    pub(crate) body: &'static str,
    pub(crate) keys: u32,
}

impl ServerRequest {
    /// The body of the nth request, for the nth key.
    pub(crate) fn body_for(&self, nth: u32) -> String {
        self.body.replace('#', &(42 + nth % self.keys).to_string())
    }
}

impl Question {
    pub(crate) const ALL: [Question; 5] = [
        Question::OneKey,
        Question::ManyKeys,
        Question::Denied,
        Question::ByRules,
        Question::TwoThreads,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Question::OneKey => "one key",
            Question::ManyKeys => "10,000 keys",
            Question::Denied => "denied",
            Question::ByRules => "by rules",
            Question::TwoThreads => "one key, 2 threads",
        }
    }

    /// Returns the server's number of threads.
    pub(crate) const fn threads(self) -> &'static str {
        match self {
            Question::TwoThreads => "2",
            Question::OneKey | Question::ManyKeys | Question::Denied | Question::ByRules => "1",
        }
    }

    /// Returns the text that every answer contains, once the quota of a question about denials is spent.
    pub(crate) const fn answer(self) -> &'static str {
        match self {
            Question::Denied => r#""allowed":false"#,
            _ => r#""allowed":true"#,
        }
    }

    /// Returns the request to this contender; `None` if it cannot answer the question.
    pub(crate) fn to(self, contender: Contender) -> Option<ServerRequest> {
        let (path, body) = match (contender, self) {
            (Contender::Peer, Question::ByRules) => return None,
            // A burst of 2, as ours: with a burst of 1 the peer refuses no request.
            (Contender::Peer, Question::Denied) => (
                "/throttle",
                r#"{"key":"user:#","max_burst":2,"count_per_period":1,"period":86400}"#,
            ),
            (Contender::Peer, _) => (
                "/throttle",
                r#"{"key":"user:#","max_burst":1000000,"count_per_period":100000000,"period":1}"#,
            ),
            (_, Question::Denied) => ("/v1/check", r#"{"limit":"spent","key":"user:#"}"#),
            (_, Question::ByRules) => (
                "/v1/check",
                r#"{"domain":"api","attributes":{"method":"GET","path":"/reports","api_key":"k_123"}}"#,
            ),
            (_, _) => ("/v1/check", r#"{"limit":"free","key":"user:#"}"#),
        };
        let keys = if self == Question::ManyKeys { 10_000 } else { 1 };
        Some(ServerRequest { path, body, keys })
    }
}

#[cfg(test)]
mod tests {
    use tollgate::rules::Config;

    use super::*;

    #[test]
    fn every_key_has_its_turn() {
        let asked = ServerRequest { path: "/", body: "user:#", keys: 2 };
        assert_eq!([0, 1, 2].map(|nth| asked.body_for(nth)), ["user:42", "user:43", "user:42"]);
    }

    #[test]
    fn peer_without_rules_is_not_measured_by_rules() {
        assert!(Question::ByRules.to(Contender::Peer).is_none());
        assert!(Question::ByRules.to(Contender::Ours).is_some());
    }

    #[test]
    fn the_limits_that_are_asked_for_are_right() {
        let limits = include_str!("limits.yaml");
        Config::parse("limits.yaml", limits).unwrap();
        for name in ["free", "spent"] {
            assert!(limits.contains(&format!("\n  {name}: ")), "{name}");
        }
    }
}
