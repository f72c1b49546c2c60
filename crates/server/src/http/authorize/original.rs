//! The original request, which a proxy received, made from the headers in which the proxy describes it.

use hyper::header::{HOST, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Uri};
use tollgate::http::Peer;

use super::params::ProxyKind;
use crate::http::ApiProblem;

/// The names of the headers in which one kind of proxy describes the original request.
///
/// The headers of the other kind are ignored, because a client may have sent them.
struct OriginalHeaders {
    method: HeaderName,
    uri: HeaderName,
    /// `None` if the proxy passes on the original `Host`.
    host: Option<HeaderName>,
}

const FORWARDED: OriginalHeaders = OriginalHeaders {
    method: HeaderName::from_static("x-forwarded-method"),
    uri: HeaderName::from_static("x-forwarded-uri"),
    host: Some(HeaderName::from_static("x-forwarded-host")),
};

const NGINX: OriginalHeaders = OriginalHeaders {
    method: HeaderName::from_static("x-original-method"),
    uri: HeaderName::from_static("x-original-uri"),
    host: None,
};

/// Returns the original request: its method, target and `Host`, and all headers that the proxy passes on.
pub(super) fn request(proxy: ProxyKind, parts: Parts) -> Result<Request<()>, ApiProblem> {
    let Parts { mut headers, extensions, .. } = parts;
    let names = match proxy {
        ProxyKind::Forwarded => &FORWARDED,
        ProxyKind::Nginx => &NGINX,
    };
    let method = only(&headers, &names.method, proxy)?;
    let method = Method::from_bytes(method.as_bytes())
        .map_err(|_| not_usable(&names.method, "is not a method; send one such as `GET`"))?;
    let uri = target(only(&headers, &names.uri, proxy)?.as_bytes()).ok_or_else(|| {
        not_usable(&names.uri, "is not a path; send one such as `/reports?page=2`")
    })?;
    if let Some(host) = names.host.as_ref().and_then(|name| headers.get(name)).cloned() {
        headers.insert(HOST, host);
    }
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    // No other extensions, because the router stores the path of this call in one.
    if let Some(peer) = extensions.get::<Peer>() {
        request.extensions_mut().insert(*peer);
    }
    Ok(request)
}

/// Returns the value of a header that the proxy has to set. A header that occurs twice is refused, because one of the
/// values may be the client's.
fn only<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
    proxy: ProxyKind,
) -> Result<&'h HeaderValue, ApiProblem> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(not_usable(
            name,
            match proxy {
                ProxyKind::Forwarded => {
                    "is missing; configure the proxy to set it, or to call \
                     /v1/authorize/{domain}/proxy=nginx if it sets X-Original-Method and X-Original-URI"
                }
                ProxyKind::Nginx => {
                    "is missing; configure the proxy to set it with proxy_set_header"
                }
            },
        )),
        (Some(_), Some(_)) => Err(not_usable(
            name,
            "occurs twice; configure the proxy to replace the header of its client",
        )),
    }
}

fn not_usable(name: &HeaderName, problem: &str) -> ApiProblem {
    ApiProblem::bad_request(format!("{name} {problem}"))
}

/// Parses the target of the original request: `/reports?page=2`, or `*`.
///
/// Percent-encodes bytes that proxies let pass although a URI must not have them. A target without a path, which nginx
/// sends for `http://a?page=2`, gets the path `/`.
fn target(sent: &[u8]) -> Option<Uri> {
    match sent {
        [b'/', ..] | b"*" => Uri::try_from(sent).or_else(|_| Uri::try_from(encoded(sent))).ok(),
        [b'?', ..] => target(&[b"/", sent].concat()),
        _ => None,
    }
}

/// Percent-encodes all bytes that a URI must not have.
fn encoded(sent: &[u8]) -> String {
    let mut uri = String::with_capacity(3 * sent.len());
    for &byte in sent {
        match byte {
            b'<' | b'>' | b'`' | b'"' | b'{' | b'}' | b'\\' | b'^' | b'|' | ..=b' ' | 0x7f.. => {
                uri.push_str(&format!("%{byte:02X}"));
            }
            _ => uri.push(char::from(byte)),
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(sent: &[u8]) -> Option<String> {
        target(sent).map(|uri| uri.path().to_owned())
    }

    #[test]
    fn target_is_parsed_to_its_path() {
        for (sent, want) in [
            ("/", Some("/")),
            ("/reports?page=2", Some("/reports")),
            ("//elsewhere.example/x", Some("//elsewhere.example/x")),
            ("/a%2Fb/../c", Some("/a%2Fb/../c")),
            ("*", Some("*")),
            ("", None),
            ("reports", None),
            ("elsewhere.example:80", None),
            ("http://elsewhere.example/login", None),
            ("?a", Some("/")),
        ] {
            assert_eq!(path(sent.as_bytes()).as_deref(), want, "{sent}");
        }
    }

    #[test]
    fn bytes_that_a_uri_must_not_have_are_encoded() {
        assert_eq!(path(b"/a<b> c`").unwrap(), "/a%3Cb%3E%20c%60");
        assert_eq!(path(b"/\xff\xfe?x=<").unwrap(), "/%FF%FE");
        assert_eq!(path("/ä".as_bytes()).unwrap(), "/ä");
        for byte in 0..=u8::MAX {
            let sent = [b'/', byte, b'x'];
            assert!(path(&sent).is_some_and(|path| path.starts_with('/')), "{byte:#x}");
        }
    }
}
