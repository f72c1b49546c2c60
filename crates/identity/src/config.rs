//! The configuration of identities, as plain data. The reader of a file checks it.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::{IpNet, Ipv6Net};
use tollgate_core::Limit;

/// How clients are identified. A field that is `None` has its default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IdentityConfig {
    /// The proxies whose forwarding header is trusted. If the list is empty, the header is ignored.
    pub trusted_proxies: Vec<IpNet>,
    /// The forwarding header that these proxies write.
    pub forwarding_header: ForwardingHeader,
    /// Headers that are trusted if a trusted proxy passed the request on. In lower case.
    pub trusted_headers: Vec<Box<str>>,
    /// The number of bits that the IPv6 addresses of one client share: 1 to 128.
    pub ipv6_prefix: Option<u8>,
    /// The header that has the API key. In lower case.
    pub api_key_header: Option<Box<str>>,
    /// How tokens are verified; `None` if no token is.
    pub jwt: Option<JwtConfig>,
}

/// The range of all IPv4 addresses, in their IPv6 form.
const IPV4: Ipv6Net = Ipv6Net::new_assert(Ipv4Addr::UNSPECIFIED.to_ipv6_mapped(), 96);

/// The range of all public IPv6 addresses.
const PUBLIC_IPV6: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// Returns `IPv4` if the nets hold more than a quarter of all IPv4 addresses, and `IPv6` likewise: not all of these
/// addresses can be proxies. The nets must not overlap, and IPv4 nets must be in their IPv6 form.
pub fn mostly_covered(nets: &[Ipv6Net]) -> impl Iterator<Item = &'static str> {
    let families = [("IPv4", IPV4), ("IPv6", PUBLIC_IPV6)].into_iter();
    families.filter(|(_, all)| covered(nets, *all) > addresses(*all) / 4).map(|(family, _)| family)
}

fn covered(nets: &[Ipv6Net], all: Ipv6Net) -> u128 {
    let within = |net: &Ipv6Net| match (net.contains(&all), all.contains(net)) {
        (true, _) => addresses(all),
        (false, true) => addresses(*net),
        (false, false) => 0,
    };
    nets.iter().map(within).sum()
}

/// Returns the number of addresses of a net. OK because every net passed here has at least 3 bits in its prefix.
fn addresses(net: Ipv6Net) -> u128 {
    1 << (128 - u32::from(net.prefix_len()))
}

/// The header in which proxies pass on the address of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardingHeader {
    /// `X-Forwarded-For`.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239).
    Forwarded,
    /// `X-Real-IP`.
    XRealIp,
}

/// How tokens are verified.
#[derive(Clone, Debug, PartialEq)]
pub struct JwtConfig {
    /// The keys: at least one, unless there is a key set. No two keys have the same id.
    pub keys: Vec<JwtKeyConfig>,
    /// A key set, whose keys are used as well.
    pub jwks: Option<JwksConfig>,
    /// The required `iss`.
    pub issuer: Option<Box<str>>,
    /// The required `aud`; a token with several audiences must have it among them.
    pub audience: Option<Box<str>>,
    /// How far the issuer's clock may be from this machine's.
    pub leeway: Option<Duration>,
    /// How a request with a bad token is handled.
    pub on_invalid: OnInvalid,
    /// The limit on the tokens of an address that are verified and turn out bad.
    pub verifications: Option<Limit>,
}

/// HMAC needs a secret as long as its hash (RFC 7518, 3.2).
pub const MIN_SECRET_BYTES: usize = 32;

/// The most keys without an id that one algorithm may have: a token that names no key is tried with each of them.
pub const MAX_WITHOUT_ID: usize = 8;

/// The largest key set that is read. Sets of large issuers have a few KiB.
pub const MAX_JWKS_BYTES: usize = 256 << 10;

/// The default for how old the keys of a set may get while the issuer answers.
pub const JWKS_MAX_AGE: Duration = Duration::from_secs(10 * 60);

/// Where a key set is.
#[derive(Clone, PartialEq)]
pub enum JwksConfig {
    /// The contents of a file.
    File(Vec<u8>),
    /// The set is fetched from a URL.
    Url {
        /// The URL.
        url: Box<str>,
        /// How old the keys may get while the issuer answers.
        max_age: Option<Duration>,
        /// How old the keys may get while the issuer does not answer.
        max_stale: Option<Duration>,
    },
}

/// A key with which tokens are verified.
#[derive(Clone, PartialEq)]
pub struct JwtKeyConfig {
    /// The only algorithm that the key is used with.
    pub algorithm: JwtAlgorithm,
    /// The `kid` by which tokens name the key.
    pub id: Option<Box<str>>,
    /// The bytes of the secret, at least 32; or the public key as PEM.
    pub material: Vec<u8>,
}

/// The algorithm of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JwtAlgorithm {
    /// HMAC with SHA-256.
    Hs256,
    /// RSA with SHA-256.
    Rs256,
    /// ECDSA on P-256.
    Es256,
    /// ECDSA on P-384.
    Es384,
    /// Ed25519.
    EdDsa,
}

/// How a request with a bad token is handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnInvalid {
    /// As if it had no token: the client is known by its address.
    #[default]
    ByIp,
    /// The request is answered with 401.
    Unauthorized,
}

impl fmt::Debug for JwksConfig {
    /// Omits the keys, because there may be many, and the URL, because its query may have a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JwksConfig::File(_) => "Jwks::File",
            JwksConfig::Url { .. } => "Jwks::Url",
        })
    }
}

impl fmt::Debug for JwtKeyConfig {
    /// Omits the key itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtKeyConfig")
            .field("algorithm", &self.algorithm)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
