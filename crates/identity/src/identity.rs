//! The settings by which the sender of a request is identified.
//!
//! - `configured`: the settings of a file

mod configured;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ::http::header::{HeaderMap, HeaderName};
use tollgate_limiter::{ClientAddress, Clock, Ipv6Prefix};

use crate::proxies::TrustedProxies;
use crate::tokens::TokenVerifier;

/// Returns the tier of an API key that is known.
pub(crate) type TierLookup = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// How a client is identified: by its address, an API key, or a token.
///
/// Only verified facts count: a client that invents keys, tokens or addresses is limited by the
/// address that its connection comes from.
///
/// ```
/// use tollgate::http::{Identity, TrustedProxies};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let identity = Identity::new()
///     .trusted_proxies(TrustedProxies::new(["10.0.0.0/8"])?) // their X-Forwarded-For is believed
///     .verify_api_keys(|key| (key == "k_123").then(|| "pro".to_owned()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Identity {
    proxies: Option<TrustedProxies>,
    trusted_headers: Vec<HeaderName>,
    pub(crate) ipv6_prefix: Ipv6Prefix,
    pub(crate) api_key_header: HeaderName,
    pub(crate) tier_of_api_key: Option<TierLookup>,
    pub(crate) tokens: TokenVerifier,
}

impl Default for Identity {
    fn default() -> Identity {
        Identity {
            proxies: None,
            trusted_headers: Vec::new(),
            ipv6_prefix: Ipv6Prefix::default(),
            api_key_header: HeaderName::from_static("x-api-key"),
            tier_of_api_key: None,
            tokens: TokenVerifier::default(),
        }
    }
}

impl Identity {
    /// Identifies clients by the address that the connection comes from, and by API keys that rules know.
    pub fn new() -> Identity {
        Identity::default()
    }

    /// Trusts these proxies, and no others, to pass on the client's address.
    #[doc(alias = "SmartIpKeyExtractor")]
    #[must_use]
    pub fn trusted_proxies(self, proxies: TrustedProxies) -> Identity {
        Identity { proxies: Some(proxies), ..self }
    }

    /// Sets the headers that count as verified if a trusted proxy passed the request on: keys and tiers can be made from
    /// them. The proxies must set these headers, or remove them from clients' requests.
    #[must_use]
    pub fn trusted_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Identity {
        Identity { trusted_headers: names.into_iter().collect(), ..self }
    }

    /// Sets how many leading bits of an IPv6 address identify a client; the default is 56, because a provider gives a
    /// household a prefix of that length or shorter.
    #[must_use]
    pub fn ipv6_prefix(self, ipv6_prefix: Ipv6Prefix) -> Identity {
        Identity { ipv6_prefix, ..self }
    }

    /// Sets the header that has the API key; the default is `x-api-key`.
    #[must_use]
    pub fn api_key_header(self, name: HeaderName) -> Identity {
        Identity { api_key_header: name, ..self }
    }

    /// Sets the function that returns the tier of a genuine API key, in addition to the table in a rules file.
    ///
    /// Rules get the key and its tier as the attributes `api_key` and `tier`. A layer of one limit still limits by address,
    /// unless its key is made from the API key: `.key(|request| request.api_key().map(str::to_owned))`.
    ///
    /// The function is called at most once for a request, and must not block: look the key up in memory, not in a database.
    #[must_use]
    pub fn verify_api_keys(
        self,
        tier_of: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Identity {
        Identity { tier_of_api_key: Some(Arc::new(tier_of)), ..self }
    }

    /// Starts to fetch the keys that verify tokens in the background, if they come from a URL.
    pub fn start(&self) {
        self.tokens.start();
    }

    /// Returns the problem with the fetched keys that verify tokens, if there is one.
    pub fn problem(&self) -> Option<String> {
        self.tokens.problem()
    }

    /// Continues the counts of the identity that this one replaces.
    #[must_use]
    pub fn with_counts_of(self, before: &Identity) -> Identity {
        Identity { tokens: self.tokens.with_counts_of(&before.tokens), ..self }
    }

    /// Verifies tokens at this clock's time.
    #[must_use]
    pub fn on_clock(self, clock: &Clock) -> Identity {
        Identity { tokens: self.tokens.on_clock(clock), ..self }
    }

    /// Returns the address of a client, with its text in keys.
    pub fn client_address(&self, ip: IpAddr) -> ClientAddress {
        ClientAddress::of(ip, self.ipv6_prefix)
    }

    /// Returns the client's address, given the address that opened the connection.
    pub(crate) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        match &self.proxies {
            Some(proxies) => proxies.client(peer, headers),
            None => peer,
        }
    }

    /// Whether a header counts as verified if a trusted proxy passed the request on.
    pub(crate) fn trusts_header(&self, name: &str) -> bool {
        self.trusted_headers.iter().any(|own| own == name)
    }

    /// Whether it is the address of a trusted proxy.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.proxies.as_ref().is_some_and(|proxies| proxies.contains(peer))
    }
}

/// The value of `ip` for all requests without a known address: they share one quota, so no rule is skipped.
pub const UNKNOWN_ADDRESS: &str = "unknown";

/// Omits the functions and keys that verify.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("proxies", &self.proxies)
            .field("trusted_headers", &self.trusted_headers)
            .field("ipv6_prefix", &self.ipv6_prefix)
            .field("api_key_header", &self.api_key_header)
            .finish_non_exhaustive()
    }
}
