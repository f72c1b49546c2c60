//! The `Host` header: HTTP/1.1 requires exactly one (RFC 9112, section 3.2).
//!
//! A request without one, or with two, can mean one thing to a proxy in front and another here.

use std::net::Ipv6Addr;

use hyper::header::HOST;
use hyper::{HeaderMap, Version};

use super::ApiProblem;

/// Returns the problem with a request's `Host`, if there is one. A request of HTTP/1.0 may have no `Host`, but not
/// two.
pub(super) fn problem_with_host(headers: &HeaderMap, version: Version) -> Option<ApiProblem> {
    let mut hosts = headers.get_all(HOST).iter();
    let detail = match (hosts.next(), hosts.next()) {
        (None, _) if version != Version::HTTP_11 => return None,
        (Some(host), None) if is_host(host.as_bytes()) => return None,
        (None, _) => "the request has no Host header, which HTTP/1.1 requires; send one",
        (Some(_), None) => {
            "the Host header is not a host with an optional port; send one such as `Host: localhost:8080`"
        }
        (Some(_), Some(_)) => "the request has more than one Host header; send one",
    };
    Some(ApiProblem::bad_request(detail).closing())
}

/// Returns whether a value is `host` or `host:port`. It may be empty, for a request whose URL has no host. Written by
/// hand, because hyper's parser allocates, and this runs for every request.
fn is_host(value: &[u8]) -> bool {
    if let Some(value) = value.strip_prefix(b"[") {
        let Some(end) = value.iter().position(|&byte| byte == b']') else { return false };
        let address = str::from_utf8(&value[..end]).ok();
        // OK because the bracket is at `end`.
        let rest = &value[end + 1..];
        return address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()) && is_port(rest);
    }
    let end = value.iter().position(|&byte| !is_host_byte(byte)).unwrap_or(value.len());
    let (host, rest) = value.split_at(end);
    is_port(rest) && (!host.is_empty() || rest.is_empty())
}

/// Returns whether a byte can be in a host name or an IPv4 address (RFC 3986), except for a comma, by which a proxy may
/// have joined two hosts.
fn is_host_byte(byte: u8) -> bool {
    matches!(
        byte,
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'%' | b'!' | b'$' | b'&' | b'\''
            | b'(' | b')' | b'*' | b'+' | b';' | b'='
    )
}

/// Returns whether this is nothing, or a colon and digits.
fn is_port(rest: &[u8]) -> bool {
    match rest {
        [] => true,
        [b':', port @ ..] => port.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn is_refused(hosts: &[&[u8]], version: Version) -> bool {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, HeaderValue::from_bytes(host).unwrap());
        }
        problem_with_host(&headers, version).is_some()
    }

    #[test]
    fn http_1_1_requires_exactly_one_host() {
        for (hosts, version, want) in [
            (&[b"a".as_slice()] as &[&[u8]], Version::HTTP_11, false),
            (&[], Version::HTTP_11, true),
            (&[b"a", b"a"], Version::HTTP_11, true),
            (&[b"a", b"b", b"c"], Version::HTTP_11, true),
            (&[], Version::HTTP_10, false),
            (&[b"a"], Version::HTTP_10, false),
            (&[b"a", b"b"], Version::HTTP_10, true),
            (&[b"a b"], Version::HTTP_10, true),
        ] {
            assert_eq!(is_refused(hosts, version), want, "{hosts:?} {version:?}");
        }
    }

    #[test]
    fn host_is_a_name_or_an_address_with_an_optional_port() {
        for host in
            ["", "a", "a.example", "a:1", "a:", "127.0.0.1:8080", "[::1]", "[::1]:80", "_a-b"]
        {
            assert!(is_host(host.as_bytes()), "{host}");
        }
        for host in [
            "a b", "a/b", "http://a", "user@a", "a:b", "a:1:2", ":", "[::1", "[a]", "a]", "[::1]a",
            "[::1]:x", "a,b", "a?b", "a#b", "\u{e4}",
        ] {
            assert!(!is_host(host.as_bytes()), "{host}");
        }
    }
}
