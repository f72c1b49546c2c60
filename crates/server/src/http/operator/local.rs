//! Requests from the server's own machine, which count as an operator's if the server has no operator token.
//!
//! A reverse proxy or a sidecar on this machine connects from a loopback address, too, and its clients must not become
//! operators. Proxies mark requests with many headers, and new ones keep coming, so a list of known headers decides: a
//! request with any other header is not local.

use std::fmt;
use std::net::IpAddr;

use hyper::header::{HOST, HeaderName, ORIGIN};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{Uri, Version};
use tollgate::http::Peer;

use crate::http::problem::excerpt;

/// The headers that curl, browsers and the `tollgate` command send; in alphabetical order. `traceparent` and
/// `x-request-id` are not among them, because a mesh's sidecar may add them and nothing else.
const LOCAL_HEADERS: [&str; 31] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "authorization",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "dnt",
    "expect",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "keep-alive",
    "origin",
    "pragma",
    "priority",
    "range",
    "referer",
    "save-data",
    "te",
    "transfer-encoding",
    "upgrade-insecure-requests",
    "user-agent",
    "x-requested-with",
];

/// The beginning of headers that only a browser itself can set: `sec-fetch-site`, `sec-ch-ua`, `sec-gpc`.
const BROWSER_PREFIX: &str = "sec-";

/// Why a request does not count as one from this machine.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NonlocalReason {
    /// The connection is from another machine.
    Peer,
    /// The request is HTTP/1.0, which nginx uses by default to pass requests on.
    Version,
    /// A header that a proxy may have added.
    Header(HeaderName),
    /// The name in the URL, `Host` or `Origin` is not a loopback name: a page of another site may have sent the request
    /// from a browser.
    Name(&'static str),
}

impl fmt::Display for NonlocalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NonlocalReason::Peer => f.write_str("it comes from another machine"),
            NonlocalReason::Version => f.write_str("it is HTTP/1.0, which proxies speak"),
            NonlocalReason::Header(name) => {
                write!(
                    f,
                    "it has the header `{}`, which a proxy may have added",
                    excerpt(name.as_str())
                )
            }
            NonlocalReason::Name(place) => {
                write!(f, "the name in its {place} is not a loopback name")
            }
        }
    }
}

/// Returns why a request does not count as one from this machine; `None` if it does.
pub(super) fn why_not_local(parts: &Parts) -> Option<NonlocalReason> {
    let headers = &parts.headers;
    if !parts.extensions.get().is_some_and(|Peer(peer)| is_loopback(peer.ip())) {
        return Some(NonlocalReason::Peer);
    }
    if parts.version != Version::HTTP_11 {
        return Some(NonlocalReason::Version);
    }
    if let Some(name) = headers.keys().find(|name| !is_local_header(name)) {
        return Some(NonlocalReason::Header(name.clone()));
    }
    if !parts.uri.host().is_none_or(is_local_name) {
        return Some(NonlocalReason::Name("URL"));
    }
    let is_local_host = headers.contains_key(HOST)
        && headers.get_all(HOST).iter().all(|host| {
            let authority = Authority::try_from(host.as_bytes());
            authority.is_ok_and(|authority| is_local_name(authority.host()))
        });
    if !is_local_host {
        return Some(NonlocalReason::Name("Host"));
    }
    let is_local_origin = headers.get_all(ORIGIN).iter().all(|origin| {
        let origin = Uri::try_from(origin.as_bytes());
        origin.is_ok_and(|origin| origin.host().is_some_and(is_local_name))
    });
    (!is_local_origin).then_some(NonlocalReason::Name("Origin"))
}

fn is_local_header(name: &HeaderName) -> bool {
    let name = name.as_str();
    LOCAL_HEADERS.binary_search(&name).is_ok() || name.starts_with(BROWSER_PREFIX)
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

    fn is_local(parts: &Parts) -> bool {
        why_not_local(parts).is_none()
    }

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
        assert!(!is_local(&parts(peer, "/", &[])), "a request of HTTP/1.1 without a Host");
        assert!(is_local(&parts(peer, "http://localhost/", &[("host", "localhost")])));
        assert!(!is_local(&parts(peer, "http://rebound.example/", &[("host", "localhost")])));
        assert!(!is_local(&parts(peer, "/", &[("host", "localhost"), ("host", "a.example")])));
    }

    #[test]
    fn requests_with_a_header_that_a_proxy_may_add_are_not_local() {
        let peer = Some("127.0.0.1:4711");
        for name in [
            "Forwarded",
            "X-Forwarded-For",
            "X-Forwarded-Proto",
            "X-Original-Forwarded-For",
            "X-Real-IP",
            "Via",
            "True-Client-IP",
            "Fastly-Client-IP",
            "X-Cluster-Client-IP",
            "X-ProxyUser-Ip",
            "CF-Connecting-IP",
            "X-Envoy-External-Address",
            "X-Request-Id",
            "Traceparent",
            "Front-End-Https",
            "X-Made-Up-By-Some-Proxy",
        ] {
            let headers = [("host", "localhost"), (name, "127.0.0.1")];
            let want = NonlocalReason::Header(HeaderName::try_from(name).unwrap());
            assert_eq!(why_not_local(&parts(peer, "/", &headers)), Some(want));
        }
        let mut of_nginx = parts(peer, "/", &[("host", "127.0.0.1:8080")]);
        assert!(is_local(&of_nginx));
        of_nginx.version = Version::HTTP_10;
        assert_eq!(why_not_local(&of_nginx), Some(NonlocalReason::Version));
    }

    #[test]
    fn requests_of_curl_browsers_and_the_tollgate_command_are_local() {
        let curl = "user-agent accept content-type content-length expect authorization range te";
        let command = "user-agent accept authorization content-type content-length";
        let chromium = "connection cache-control pragma sec-ch-ua sec-ch-ua-mobile sec-ch-ua-platform \
                        upgrade-insecure-requests user-agent accept sec-fetch-site sec-fetch-mode \
                        sec-fetch-user sec-fetch-dest accept-encoding accept-language cookie referer \
                        if-none-match if-modified-since dnt sec-gpc";
        let firefox = "user-agent accept accept-language accept-encoding referer content-type \
                       content-length connection cookie sec-fetch-dest priority te";
        for names in [curl, command, chromium, firefox] {
            let mut headers = vec![("host", "localhost:8080"), ("origin", "http://localhost:8080")];
            headers.extend(names.split_whitespace().map(|name| (name, "x")));
            let peer = Some("127.0.0.1:4711");
            assert_eq!(why_not_local(&parts(peer, "/", &headers)), None, "{names}");
        }
    }

    #[test]
    fn header_names_are_sorted_for_the_search() {
        assert!(LOCAL_HEADERS.is_sorted());
    }

    #[test]
    fn long_header_name_is_shortened_in_the_reason() {
        let name = HeaderName::try_from("x".repeat(30_000)).unwrap();
        assert!(NonlocalReason::Header(name).to_string().len() < 200);
    }

    #[test]
    fn requests_of_a_page_of_another_site_are_not_local() {
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
}
