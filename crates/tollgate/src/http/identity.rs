//! Who sent a request.
//!
//! - `api_key`: who has a key that is known
//! - `configured`: as a file says it

mod api_key;
mod configured;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ::http::Method;
use ::http::header::{HeaderMap, HeaderName};
#[cfg(feature = "jwt")]
use tollgate_core::Limit;

pub(super) use api_key::ApiKey;
use api_key::TierOf;

use super::head::RequestHead;
#[cfg(feature = "jwt")]
use super::jwt::{Jwks, Jwt};
use super::proxies::TrustedProxies;
#[cfg(feature = "jwt")]
use super::tokens::Tokens;
use crate::address::{ClientAddress, Ipv6Prefix};
use crate::clock::Clock;
#[cfg(feature = "jwt")]
use crate::error::Error;
#[cfg(feature = "jwt")]
use crate::rules::config::OnInvalid;
use crate::rules::networks::UNKNOWN_ADDRESS;
use crate::rules::{Asked, Attributes};

/// Who a client is: by its address, an API key, or a token.
///
/// What nobody vouches for counts for nothing: whoever invents keys, tokens or addresses is limited by the
/// address that the connection comes from.
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
    pub(super) ipv6_prefix: Ipv6Prefix,
    api_key_header: HeaderName,
    tier_of_api_key: Option<TierOf>,
    #[cfg(feature = "jwt")]
    pub(super) tokens: Tokens,
}

impl Default for Identity {
    fn default() -> Identity {
        Identity {
            proxies: None,
            trusted_headers: Vec::new(),
            ipv6_prefix: Ipv6Prefix::default(),
            api_key_header: HeaderName::from_static("x-api-key"),
            tier_of_api_key: None,
            #[cfg(feature = "jwt")]
            tokens: Tokens::default(),
        }
    }
}

impl Identity {
    /// By the address that the connection comes from, and API keys that rules know.
    pub fn new() -> Identity {
        Identity::default()
    }

    /// Believes these proxies where a request came from. Nobody else is.
    #[doc(alias = "SmartIpKeyExtractor")]
    #[must_use]
    pub fn trusted_proxies(self, proxies: TrustedProxies) -> Identity {
        Identity { proxies: Some(proxies), ..self }
    }

    /// Headers that count as known, if a trusted proxy passed the request on: keys and tiers can be made of
    /// them. The proxies must set them, or take off what clients send.
    #[must_use]
    pub fn trusted_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Identity {
        Identity { trusted_headers: names.into_iter().collect(), ..self }
    }

    /// How many leading bits of an IPv6 address tell clients apart; 56 unless said, as a provider gives a home
    /// that many or fewer.
    #[must_use]
    pub fn ipv6_prefix(self, ipv6_prefix: Ipv6Prefix) -> Identity {
        Identity { ipv6_prefix, ..self }
    }

    /// The header that API keys come in; `x-api-key` unless said.
    #[must_use]
    pub fn api_key_header(self, name: HeaderName) -> Identity {
        Identity { api_key_header: name, ..self }
    }

    /// Who knows API keys, besides the table in a file of rules: the tier of one that is genuine.
    ///
    /// Rules take them as `api_key` and `tier`. A layer of one limit is by address all the same, unless its key is
    /// made of them: `.key(|request| request.api_key().map(str::to_owned))`.
    ///
    /// It is asked once a request at most, and must not wait: look into memory, ask no database.
    #[must_use]
    pub fn verify_api_keys(
        self,
        tier_of: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Identity {
        Identity { tier_of_api_key: Some(Arc::new(tier_of)), ..self }
    }

    /// Believes what tokens say that these keys have signed: `Authorization: Bearer …`.
    ///
    /// A request with a token that is not genuine, expired or not verified is as one without, and limited by its
    /// address, unless such are [refused](Self::refuse_invalid_tokens). A token without `exp` is rejected too, which
    /// the log says; [`rejected_tokens`](Self::rejected_tokens) counts all of them.
    #[cfg(feature = "jwt")]
    #[must_use]
    pub fn jwt(self, jwt: Jwt) -> Identity {
        Identity { tokens: self.tokens.with_jwt(jwt), ..self }
    }

    /// Answers 401 to requests with a token that is not genuine, expired or not to be read; and 429 to those of an
    /// address that has brought [too many](Self::token_verifications) of them.
    #[cfg(feature = "jwt")]
    #[must_use]
    pub fn refuse_invalid_tokens(mut self) -> Identity {
        self.tokens.on_invalid = OnInvalid::Unauthorized;
        self
    }

    /// Limits how many tokens that turn out bad an address may have verified: `token-bucket capacity=20 refill=5/s` by
    /// default. Beyond that the signatures of its new tokens are not computed, so that bad tokens cost little, and its
    /// requests are limited by address; tokens that were verified before count as they did.
    ///
    /// Many clients may share an address, so each request with a good token earns its address one more verification,
    /// up to 200 in stock. A bad token that is repeated is verified once.
    ///
    /// Tokens that are bad at first sight, such as another system's, take no verification. If bad ones are
    /// [refused](Self::refuse_invalid_tokens) they count too: a 401 costs one.
    #[cfg(feature = "jwt")]
    pub fn token_verifications<L>(self, limit: L) -> Result<Identity, Error>
    where
        L: TryInto<Limit>,
        Error: From<L::Error>,
    {
        Ok(Identity { tokens: self.tokens.with_verifications(limit.try_into()?)?, ..self })
    }

    /// Why tokens were rejected, and how many for each reason: `no_expiry`, `expired`, `signature` and so on, and
    /// `not_verified` after too many bad ones of an address. Empty if no tokens are verified.
    #[cfg(feature = "jwt")]
    pub fn rejected_tokens(&self) -> Vec<(&'static str, u64)> {
        self.tokens.rejected()
    }

    /// The key sets that tokens are verified with: their keys, and whether those are fresh.
    #[cfg(feature = "jwt")]
    pub fn key_sets(&self) -> &[Jwks] {
        self.tokens.key_sets()
    }

    /// Begins to fetch the keys of tokens, if the file says where from.
    #[cfg(feature = "jwt")]
    pub(crate) fn start(&self) {
        self.key_sets().iter().for_each(Jwks::start);
    }

    /// There are no keys to fetch.
    #[cfg(not(feature = "jwt"))]
    pub(crate) fn start(&self) {}

    /// Goes on with the counts that an identity has which this one replaces.
    #[cfg(feature = "jwt")]
    pub(crate) fn counting_with(mut self, before: &Identity) -> Identity {
        self.tokens = self.tokens.counting_with(&before.tokens);
        self
    }

    /// There are no tokens to count.
    #[cfg(not(feature = "jwt"))]
    pub(crate) fn counting_with(self, _: &Identity) -> Identity {
        self
    }

    /// With tokens judged at this clock's time.
    #[cfg(feature = "jwt")]
    pub(crate) fn on_clock(mut self, clock: &Clock) -> Identity {
        self.tokens.clock = clock.clone();
        self
    }

    /// There are no tokens to judge.
    #[cfg(not(feature = "jwt"))]
    pub(crate) fn on_clock(self, _: &Clock) -> Identity {
        self
    }

    /// The text of a client's address in keys.
    pub(crate) fn client_address(&self, ip: IpAddr) -> ClientAddress {
        ClientAddress::of(ip, self.ipv6_prefix)
    }

    /// Where the client is, if it is `peer` that has opened the connection.
    pub(super) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        match &self.proxies {
            Some(proxies) => proxies.client(peer, headers),
            None => peer,
        }
    }

    /// Whether it is the address of a proxy that is believed.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.proxies.as_ref().is_some_and(|proxies| proxies.contains(peer))
    }
}

/// What `ip` is for all whose address is not known: they are limited together, and escape no rule.
pub const NOWHERE: &str = UNKNOWN_ADDRESS;

impl<'r> RequestHead<'r> {
    /// The request as rules see it, as far as they ask.
    pub(crate) fn attributes<'a>(&'a self, asked: &'a Asked) -> Attributes<'a> {
        let known = Attributes::new().with("path", self.path());
        let known = match self.address() {
            Some(address) => known.with_address(address),
            None => known.with("ip", NOWHERE),
        };
        let with_key = self.with_api_key(self.with_method(known));
        let with_headers = self.with_headers(with_key, asked);
        #[cfg(feature = "jwt")]
        let with_headers = self.with_claims(with_headers, asked);
        with_headers
    }

    /// There are few that are known, and as many others as a client cares to invent.
    fn with_method<'a>(&'a self, attributes: Attributes<'a>) -> Attributes<'a> {
        let method = self.method();
        match *method {
            Method::GET
            | Method::HEAD
            | Method::POST
            | Method::PUT
            | Method::DELETE
            | Method::CONNECT
            | Method::OPTIONS
            | Method::TRACE
            | Method::PATCH => attributes.with("method", method.as_str()),
            _ => attributes.said("method", method.as_str()),
        }
    }

    fn with_headers<'a>(&'a self, attributes: Attributes<'a>, asked: &'a Asked) -> Attributes<'a> {
        let from_proxy = self.is_from_trusted_proxy();
        asked.headers().fold(attributes, |attributes, (attribute, name)| {
            let is_known =
                from_proxy && self.identity.trusted_headers.iter().any(|own| own == name);
            match self.header(name) {
                Some(value) if is_known => attributes.with(attribute, value),
                Some(value) => attributes.said(attribute, value),
                None => attributes,
            }
        })
    }
}

/// Without what verifies.
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
