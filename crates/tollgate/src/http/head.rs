//! A request without its body, and who sent it.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::sync::Once;

use ::http::header::{ACCESS_CONTROL_REQUEST_METHOD, CONTENT_TYPE, HeaderMap, ORIGIN};
use ::http::{Extensions, Method, Request, Uri};

use super::address::ClientAddress;
use super::identity::Identity;
#[cfg(feature = "jwt")]
use super::tokens::Bearer;

/// The address of whoever opened the connection, as an extension of its requests.
///
/// axum's `ConnectInfo<SocketAddr>` and tonic's `TcpConnectInfo` do as well; with plain hyper, put this into
/// every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// A request without its body, and who sent it.
#[derive(Debug)]
pub struct RequestHead<'r> {
    method: &'r Method,
    uri: &'r Uri,
    headers: &'r HeaderMap,
    extensions: &'r Extensions,
    pub(super) identity: &'r Identity,
    peer: Option<IpAddr>,
    address: Option<ClientAddress>,
    #[cfg(feature = "jwt")]
    pub(super) bearer: Bearer,
}

impl<'r> RequestHead<'r> {
    /// The head of a request, whose sender is who `identity` says.
    pub fn new<B>(request: &'r Request<B>, identity: &'r Identity) -> RequestHead<'r> {
        let (headers, extensions) = (request.headers(), request.extensions());
        let peer = peer(extensions);
        if peer.is_none() {
            warn_once();
        }
        RequestHead {
            method: request.method(),
            uri: request.uri(),
            headers,
            extensions,
            identity,
            peer,
            address: peer.map(|peer| identity.address(peer, headers)),
            #[cfg(feature = "jwt")]
            bearer: Bearer::default(),
        }
    }

    /// The method.
    pub fn method(&self) -> &'r Method {
        self.method
    }

    /// The target, without what a router has taken off it.
    pub fn uri(&self) -> &'r Uri {
        self.uri
    }

    /// The whole path, as the client sent it: also inside axum's `nest`.
    pub fn path(&self) -> &'r str {
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

    /// What others have found out about it.
    pub fn extensions(&self) -> &'r Extensions {
        self.extensions
    }

    /// Where the client is, as far as that can be known: IPv6 addresses come in groups. `None` if nothing
    /// says who opened the connection ([`Peer`]).
    pub fn address(&self) -> Option<&ClientAddress> {
        self.address.as_ref()
    }

    /// Whether a proxy that is trusted passed it on.
    pub fn is_from_trusted_proxy(&self) -> bool {
        self.peer.is_some_and(|peer| self.identity.trusts(peer))
    }

    /// What its token says under this name, if it has one that is genuine: `sub`, `realm.plan`.
    #[cfg(feature = "jwt")]
    pub fn claim(&self, path: &str) -> Option<Cow<'_, str>> {
        self.claims()?.get(path)
    }

    /// A header that is a single text, with several lines as one list.
    pub(super) fn header(&self, name: &str) -> Option<Cow<'r, str>> {
        let mut lines = self.headers.get_all(name).iter();
        let first = String::from_utf8_lossy(lines.next()?.as_bytes());
        Some(lines.fold(first, |all, line| all + ", " + String::from_utf8_lossy(line.as_bytes())))
    }

    /// Whether a browser asks what it may ask for (CORS): such requests carry nobody's credentials.
    pub fn is_preflight(&self) -> bool {
        *self.method == Method::OPTIONS
            && self.headers.contains_key(ORIGIN)
            && self.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// Whether it is a call by gRPC.
    pub fn is_grpc(&self) -> bool {
        let content_type = self.headers.get(CONTENT_TYPE).map(|value| value.as_bytes());
        content_type.is_some_and(|own| own.starts_with(b"application/grpc"))
    }
}

/// Says once what is missing: without addresses all clients share a quota.
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

/// Who opened the connection.
fn peer(extensions: &Extensions) -> Option<IpAddr> {
    if let Some(Peer(address)) = extensions.get() {
        return Some(address.ip());
    }
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(address)) =
        extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(address.ip());
    }
    #[cfg(feature = "tonic")]
    if let Some(connection) = extensions.get::<tonic::transport::server::TcpConnectInfo>() {
        return connection.remote_addr().map(|address| address.ip());
    }
    None
}
