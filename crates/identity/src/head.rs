//! A request without its body, and its sender.
//!
//! - `api_key`: its API key

mod api_key;

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Once;

use ::http::header::{ACCESS_CONTROL_REQUEST_METHOD, CONTENT_TYPE, HeaderMap, HeaderName, ORIGIN};
use ::http::{Extensions, Method, Request, Uri};

use tollgate_limiter::ClientAddress;

use crate::identity::{Identity, UNKNOWN_ADDRESS};
use crate::token_refusal::TokenRefusal;
use crate::tokens::{RequestToken, TokenContext};
use api_key::ApiKey;

/// A part of the keys of preflight requests, which have a quota of their own.
pub const PREFLIGHT: &str = "preflight";

/// The address that opened the connection, as an extension of its requests.
///
/// axum's `ConnectInfo<SocketAddr>` and tonic's `TcpConnectInfo` serve the same purpose. With plain hyper, put this into every
/// request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// A request without its body, and its sender.
pub struct RequestHead<'r> {
    method: &'r Method,
    uri: &'r Uri,
    headers: &'r HeaderMap,
    extensions: &'r Extensions,
    pub(crate) identity: &'r Identity,
    found: Findings,
}

/// The facts about the sender that are known so far.
#[derive(Default)]
pub struct Findings {
    /// The address that opened the connection.
    peer: Option<IpAddr>,
    /// The address of the client.
    address: Option<ClientAddress>,
    /// The API key and the token are read when they are first needed.
    api_key: ApiKey,
    token: RequestToken,
}

/// Must hold with tokens and without: handlers keep a head across an await.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<RequestHead<'static>>();
};

impl<'r> RequestHead<'r> {
    /// Returns the head of a request. `identity` decides on the sender.
    #[inline]
    pub fn new<B>(request: &'r Request<B>, identity: &'r Identity) -> RequestHead<'r> {
        let mut head = RequestHead::unidentified(request, identity);
        head.find_sender();
        head
    }

    /// Returns the head of a request with findings from an earlier head of the same request.
    pub fn with_findings<B>(
        request: &'r Request<B>,
        identity: &'r Identity,
        found: Findings,
    ) -> RequestHead<'r> {
        RequestHead { found, ..RequestHead::unidentified(request, identity) }
    }

    /// Returns the head of a request whose sender is not known yet.
    #[inline]
    pub fn unidentified<B>(request: &'r Request<B>, identity: &'r Identity) -> RequestHead<'r> {
        RequestHead {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
            identity,
            found: Findings::default(),
        }
    }

    /// Finds the address that opened the connection, and the client's address.
    pub fn find_sender(&mut self) {
        let Some(peer) = peer(self.extensions) else { return warn_once() };
        self.found.peer = Some(peer);
        let client = self.identity.client(peer, self.headers);
        let address = self.found.address.insert(ClientAddress::UNKNOWN);
        address.set(client, self.identity.ipv6_prefix);
    }

    /// Returns the facts that are known so far, so that none is determined twice for a request.
    pub fn into_findings(self) -> Findings {
        self.found
    }

    /// The method.
    pub fn method(&self) -> &'r Method {
        self.method
    }

    /// The target, without the part that a router has removed.
    pub fn uri(&self) -> &'r Uri {
        self.uri
    }

    /// The whole path, as the client sent it: also inside axum's `nest`.
    ///
    /// The path is raw: neither percent-decoded nor normalised. `/login`, `/%6cogin`, `//login` and `/login/` are four paths,
    /// which an application may treat as one.
    pub fn path(&self) -> &'r str {
        // Each framework keeps the original path under a type of its own.
        #[cfg(feature = "axum")]
        if let Some(original) = self.extensions.get::<axum::extract::OriginalUri>() {
            return original.0.path();
        }
        self.uri.path()
    }

    /// The headers.
    pub fn headers(&self) -> &'r HeaderMap {
        self.headers
    }

    /// The request's extensions: values that other layers have added.
    pub fn extensions(&self) -> &'r Extensions {
        self.extensions
    }

    /// The client's address, as far as it can be known: IPv6 addresses are grouped by prefix. `None` if no extension
    /// has the address that opened the connection ([`Peer`]).
    pub fn address(&self) -> Option<&ClientAddress> {
        self.found.address.as_ref()
    }

    /// Whether a trusted proxy passed the request on.
    pub fn is_from_trusted_proxy(&self) -> bool {
        self.found.peer.is_some_and(|peer| self.identity.trusts(peer))
    }

    /// The claim at this path in the request's token, if the token is genuine: `sub`, `realm.plan`.
    pub fn claim(&self, path: &str) -> Option<Cow<'_, str>> {
        self.identity.tokens.claim(self.token_context(), path)
    }

    /// Returns why the request is refused because of its token; `None` if it is not refused.
    pub fn token_refusal(&self) -> Option<TokenRefusal> {
        self.identity.tokens.refusal(self.token_context())
    }

    pub(crate) fn token_context(&self) -> TokenContext<'_> {
        let address = self.address().map_or(UNKNOWN_ADDRESS, |address| address.as_str());
        TokenContext { token: &self.found.token, headers: self.headers, address }
    }

    /// Whether a header of this name counts as verified: a trusted proxy passed the request on, and the header is one of
    /// the trusted headers.
    pub fn is_trusted_header(&self, name: &str) -> bool {
        self.is_from_trusted_proxy() && self.identity.trusts_header(name)
    }

    /// The value of a header as text; several lines are joined to one list.
    pub fn header(&self, name: &str) -> Option<Cow<'r, str>> {
        let mut lines = self.headers.get_all(name).iter();
        let first = String::from_utf8_lossy(lines.next()?.as_bytes());
        Some(lines.fold(first, |all, line| all + ", " + String::from_utf8_lossy(line.as_bytes())))
    }

    /// Whether this is a preflight request of a browser (CORS). Such requests carry no credentials.
    pub fn is_preflight(&self) -> bool {
        *self.method == Method::OPTIONS
            && self.headers.contains_key(ORIGIN)
            && self.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// Whether this is a gRPC call: a POST of `application/grpc`, `application/grpc+proto` and the like. gRPC-Web does not
    /// count, because its clients understand HTTP.
    pub fn is_grpc(&self) -> bool {
        let content_type = self.headers.get(CONTENT_TYPE).map(|value| value.as_bytes());
        let after = content_type.and_then(|own| own.strip_prefix(b"application/grpc"));
        *self.method == Method::POST && matches!(after, Some([] | [b'+' | b';', ..]))
    }
}

/// Shows only the names of headers, and no query: the rest may be secret.
impl fmt::Debug for RequestHead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<_> = self.headers.keys().map(HeaderName::as_str).collect();
        f.debug_struct("RequestHead")
            .field("method", self.method)
            .field("path", &self.path())
            .field("address", &self.found.address)
            .field("headers", &headers)
            .finish_non_exhaustive()
    }
}

/// Logs once that addresses are missing: without them all clients share a quota.
#[cold]
fn warn_once() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            "requests have no address of their client, and share one quota; serve axum with \
             `into_make_service_with_connect_info::<SocketAddr>()`, or give requests a `Peer`"
        );
    });
}

/// Returns the address that opened the connection.
fn peer(extensions: &Extensions) -> Option<IpAddr> {
    if let Some(Peer(address)) = extensions.get() {
        return Some(address.ip());
    }
    // Each framework keeps the address under a type of its own.
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(address)) =
        extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(address.ip());
    }
    // The framework keeps this under a type of its own.
    #[cfg(feature = "tonic")]
    if let Some(connection) = extensions.get::<tonic::transport::server::TcpConnectInfo>() {
        return connection.remote_addr().map(|address| address.ip());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, uri: &str, headers: &[(&'static str, &str)]) -> Request<()> {
        let request = Request::builder().method(method).uri(uri);
        let request = headers.iter().fold(request, |own, (name, value)| own.header(*name, *value));
        request.extension(Peer("203.0.113.9:4711".parse().unwrap())).body(()).unwrap()
    }

    #[test]
    fn a_call_by_grpc_is_a_post_of_its_type() {
        for (method, content_type, want) in [
            ("POST", "application/grpc", true),
            ("POST", "application/grpc+proto", true),
            ("POST", "application/grpc;charset=utf-8", true),
            ("GET", "application/grpc", false),
            ("HEAD", "application/grpc+proto", false),
            ("POST", "application/grpc-web", false),
            ("POST", "application/grpc-web+proto", false),
            ("POST", "application/grpc-is-what-i-say", false),
            ("POST", "application/grpcx", false),
            ("POST", "text/plain; application/grpc", false),
            ("POST", "", false),
        ] {
            let request = request(method, "/", &[("content-type", content_type)]);
            let is_grpc = RequestHead::new(&request, &Identity::new()).is_grpc();
            assert_eq!(is_grpc, want, "{method} {content_type}");
        }
        let without = request("POST", "/", &[]);
        assert!(!RequestHead::new(&without, &Identity::new()).is_grpc());
    }

    #[test]
    fn secrets_are_not_shown() {
        let request = request(
            "GET",
            "/reports?key=s3cret",
            &[("authorization", "Bearer s3cret"), ("x-api-key", "s3cret"), ("cookie", "s3cret")],
        );
        let identity = Identity::new().verify_api_keys(|_| Some("s3cret tier".to_owned()));
        let head = RequestHead::new(&request, &identity);
        assert!(head.tier().is_some());
        let shown = format!("{head:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
        for part in ["GET", "/reports", "203.0.113.9", "authorization", "x-api-key", "cookie"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}
