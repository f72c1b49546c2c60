//! The request that a proxy was sent, from what it says of it.

use hyper::header::{HOST, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Uri};
use tollgate::http::Peer;

use super::params::Proxy;
use crate::http::Problem;

/// The headers of one kind of proxy. Those of the others are whatever a client has sent, and are not looked at.
struct Names {
    method: HeaderName,
    uri: HeaderName,
    /// `None` if it is `Host` itself.
    host: Option<HeaderName>,
}

const FORWARDED: Names = Names {
    method: HeaderName::from_static("x-forwarded-method"),
    uri: HeaderName::from_static("x-forwarded-uri"),
    host: Some(HeaderName::from_static("x-forwarded-host")),
};

const NGINX: Names = Names {
    method: HeaderName::from_static("x-original-method"),
    uri: HeaderName::from_static("x-original-uri"),
    host: None,
};

/// The original request: its method, target and `Host`, and all headers that the proxy passes on.
pub(super) fn request(proxy: Proxy, parts: Parts) -> Result<Request<()>, Problem> {
    let Parts { mut headers, extensions, .. } = parts;
    let names = match proxy {
        Proxy::Forwarded => &FORWARDED,
        Proxy::Nginx => &NGINX,
    };
    let method = only(&headers, &names.method, proxy)?;
    let method = Method::from_bytes(method.as_bytes())
        .map_err(|_| not_usable(&names.method, "is no method; send such as `GET`"))?;
    let uri = target(only(&headers, &names.uri, proxy)?.as_bytes())
        .ok_or_else(|| not_usable(&names.uri, "is no path; send such as `/reports?page=2`"))?;
    if let Some(host) = names.host.as_ref().and_then(|name| headers.get(name)).cloned() {
        headers.insert(HOST, host);
    }
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    // Nothing else: a router leaves its own path there.
    if let Some(peer) = extensions.get::<Peer>() {
        request.extensions_mut().insert(*peer);
    }
    Ok(request)
}

/// What the proxy has set. Two of it would be two opinions, of which one may be the client's.
fn only<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
    proxy: Proxy,
) -> Result<&'h HeaderValue, Problem> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(not_usable(
            name,
            match proxy {
                Proxy::Forwarded => {
                    "is missing; let the proxy set it, or ask with \
                     /v1/authorize/{domain}/proxy=nginx if it sets X-Original-Method and X-Original-URI"
                }
                Proxy::Nginx => "is missing; let the proxy set it with proxy_set_header",
            },
        )),
        (Some(_), Some(_)) => {
            Err(not_usable(name, "is there twice; let the proxy replace what a client sends"))
        }
    }
}

fn not_usable(name: &HeaderName, problem: &str) -> Problem {
    Problem::bad_request(format!("{name} {problem}"))
}

/// `/reports?page=2`, or `*`. What a proxy lets pass, and no URI has, is percent-encoded; and without a path, as nginx
/// has it of `http://a?page=2`, it is `/`.
fn target(sent: &[u8]) -> Option<Uri> {
    match sent {
        [b'/', ..] | b"*" => Uri::try_from(sent).or_else(|_| Uri::try_from(encoded(sent))).ok(),
        [b'?', ..] => target(&[b"/", sent].concat()),
        _ => None,
    }
}

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
    fn a_target_is_a_path_without_its_query() {
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
    fn what_no_uri_has_is_encoded_and_not_refused() {
        assert_eq!(path(b"/a<b> c`").unwrap(), "/a%3Cb%3E%20c%60");
        assert_eq!(path(b"/\xff\xfe?x=<").unwrap(), "/%FF%FE");
        assert_eq!(path("/ä".as_bytes()).unwrap(), "/ä");
        for byte in 0..=u8::MAX {
            let sent = [b'/', byte, b'x'];
            assert!(path(&sent).is_some_and(|path| path.starts_with('/')), "{byte:#x}");
        }
    }
}
