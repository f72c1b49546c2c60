//! Who may look at keys, and forget them.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use hyper::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Uri, Version};
use serde::Serialize;
use tollgate::http::Peer;

use super::Problem;
use crate::secret::Secret;
use crate::served::Served;

/// How the names of headers begin that a proxy adds: it speaks for somebody else.
const FORWARDING: [&str; 8] = [
    "forwarded",
    "via",
    "x-forwarded",
    "x-real-ip",
    "x-client-ip",
    "true-client-ip",
    "cf-",
    "x-envoy-",
];

/// Whoever asks shows the operators' token; or, if there is none, asks from this very machine.
pub(super) struct Operator {
    peer: Option<Peer>,
}

/// Whether somebody is an operator, before they have shown anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Known {
    Yes,
    No,
    /// They may show the token.
    Token,
}

impl Operator {
    /// Whether whoever asks is one.
    pub(super) fn known(parts: &Parts, served: &Served) -> Known {
        match &served.operator_token {
            Some(_) => Known::Token,
            None if is_local(parts) => Known::Yes,
            None => Known::No,
        }
    }

    /// From where it asks, for the log.
    pub(super) fn peer(&self) -> String {
        self.peer.map_or_else(|| "unknown".to_owned(), |Peer(peer)| peer.to_string())
    }
}

impl FromRequestParts<Arc<Served>> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut Parts,
        served: &Arc<Served>,
    ) -> Result<Operator, Problem> {
        let is_shown = |token: &Secret| bearer(&parts.headers).is_some_and(|shown| token.is(shown));
        match Operator::known(parts, served) {
            Known::Yes => {}
            Known::No => return Err(Problem::not_local()),
            Known::Token if served.operator_token.as_ref().is_some_and(is_shown) => {}
            Known::Token => return Err(Problem::no_operator()),
        }
        Ok(Operator { peer: parts.extensions.get().copied() })
    }
}

/// The token of `Authorization: Bearer <token>`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

/// Whether somebody on this machine asks for itself: no proxy for others, as far as one can be told, and no page of
/// another site in a browser, or one whose name was made to point here.
fn is_local(parts: &Parts) -> bool {
    let headers = &parts.headers;
    parts.extensions.get().is_some_and(|Peer(peer)| is_loopback(peer.ip()))
        // nginx passes requests on by HTTP/1.0, unless told otherwise.
        && parts.version == Version::HTTP_11
        && !headers.keys().any(is_forwarding)
        && parts.uri.host().is_none_or(is_local_name)
        && headers.contains_key(HOST)
        && headers.get_all(HOST).iter().all(|host| {
            let authority = Authority::try_from(host.as_bytes());
            authority.is_ok_and(|authority| is_local_name(authority.host()))
        })
        && headers.get_all(ORIGIN).iter().all(|origin| {
            let origin = Uri::try_from(origin.as_bytes());
            origin.is_ok_and(|origin| origin.host().is_some_and(is_local_name))
        })
}

fn is_forwarding(name: &HeaderName) -> bool {
    FORWARDING.iter().any(|beginning| name.as_str().starts_with(beginning))
}

fn is_local_name(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.eq_ignore_ascii_case("localhost") || bare.parse().is_ok_and(is_loopback)
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn parts(peer: Option<&str>, uri: &str, headers: &[(&str, &str)]) -> Parts {
        let request = Request::builder().uri(uri);
        let request = headers.iter().fold(request, |own, (name, value)| own.header(*name, *value));
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        if let Some(peer) = peer {
            parts.extensions.insert(Peer(peer.parse().unwrap()));
        }
        parts
    }

    #[test]
    fn only_loopback_peers_are_local() {
        for (peer, want) in [
            (Some("127.0.0.1:4711"), true),
            (Some("127.8.9.10:4711"), true),
            (Some("[::1]:4711"), true),
            (Some("[::ffff:127.0.0.1]:4711"), true),
            (Some("10.0.0.1:4711"), false),
            (Some("[::ffff:10.0.0.1]:4711"), false),
            (Some("[2001:db8::1]:4711"), false),
            (None, false),
        ] {
            assert_eq!(
                is_local(&parts(peer, "/", &[("host", "localhost:8080")])),
                want,
                "{peer:?}"
            );
        }
    }

    #[test]
    fn only_loopback_names_are_local() {
        for (host, want) in [
            ("localhost", true),
            ("LocalHost:8080", true),
            ("127.0.0.1:8080", true),
            ("[::1]:8080", true),
            ("[::1]", true),
            ("[::ffff:127.0.0.1]:80", true),
            ("rebound.example:8080", false),
            ("localhost.example", false),
            ("127.0.0.1.example", false),
            ("10.0.0.1", false),
            ("", false),
            ("a b", false),
        ] {
            let peer = Some("127.0.0.1:4711");
            assert_eq!(is_local(&parts(peer, "/", &[("host", host)])), want, "{host}");
        }
        let peer = Some("127.0.0.1:4711");
        assert!(!is_local(&parts(peer, "/", &[])), "HTTP/1.1 has a Host");
        assert!(is_local(&parts(peer, "http://localhost/", &[("host", "localhost")])));
        assert!(!is_local(&parts(peer, "http://rebound.example/", &[("host", "localhost")])));
        assert!(!is_local(&parts(peer, "/", &[("host", "localhost"), ("host", "a.example")])));
    }

    #[test]
    fn whom_a_proxy_speaks_for_is_not_local() {
        let peer = Some("127.0.0.1:4711");
        for name in [
            "Forwarded",
            "X-Forwarded-For",
            "X-Forwarded-Proto",
            "X-Real-IP",
            "Via",
            "True-Client-IP",
            "CF-Connecting-IP",
            "X-Envoy-External-Address",
        ] {
            let headers = [("host", "localhost"), (name, "127.0.0.1")];
            assert!(!is_local(&parts(peer, "/", &headers)), "{name}");
        }
        let mut of_nginx = parts(peer, "/", &[("host", "127.0.0.1:8080")]);
        assert!(is_local(&of_nginx));
        of_nginx.version = Version::HTTP_10;
        assert!(!is_local(&of_nginx));
    }

    #[test]
    fn a_page_of_another_site_is_not_local() {
        for (origin, want) in [
            ("http://127.0.0.1:8080", true),
            ("http://localhost:8080", true),
            ("https://elsewhere.example", false),
            ("null", false),
            ("", false),
        ] {
            let headers = [("host", "127.0.0.1:8080"), ("origin", origin)];
            assert_eq!(is_local(&parts(Some("127.0.0.1:4711"), "/", &headers)), want, "{origin}");
        }
    }

    #[test]
    fn a_token_follows_its_scheme() {
        for (value, want) in [
            ("Bearer s3cret", Some("s3cret")),
            ("bearer  s3cret", Some("s3cret")),
            ("Bearer ", Some("")),
            ("Basic s3cret", None),
            ("Bearers3cret", None),
            ("s3cret", None),
            ("", None),
        ] {
            let parts = parts(None, "/", &[("authorization", value)]);
            assert_eq!(bearer(&parts.headers), want.map(str::as_bytes), "{value}");
        }
    }
}
