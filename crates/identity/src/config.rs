//! The configuration of identities, as plain data. The reader of a file checks it.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::{IpNet, Ipv6Net};
use tollgate_core::Limit;

/// How clients are identified. A field that is `None` has its default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IdentityConfig {
    /// The proxies whose forwarding header is believed. Without any, the header is ignored.
    pub trusted_proxies: Vec<IpNet>,
    /// The one that they write.
    pub forwarding_header: ForwardingHeader,
    /// Headers that are believed if a trusted proxy sent them, in lower case.
    pub trusted_headers: Vec<Box<str>>,
    /// 1 to 128.
    pub ipv6_prefix: Option<u8>,
    /// In lower case.
    pub api_key_header: Option<Box<str>>,
    /// How tokens are verified. None is, if `None`.
    pub jwt: Option<JwtConfig>,
}

/// All of IPv4, as IPv6 has it.
const IPV4: Ipv6Net = Ipv6Net::new_assert(Ipv4Addr::UNSPECIFIED.to_ipv6_mapped(), 96);

/// The range of all public IPv6 addresses.
const PUBLIC_IPV6: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// Returns `IPv4` and `IPv6`, if the nets hold more than a quarter of it: not all of those addresses can be proxies. The
/// nets must not overlap, and IPv4 nets must be in their IPv6 form.
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

/// OK because every net passed here has at least 3 bits in its prefix.
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
    /// At least one, unless there is a set. No two have the same id.
    pub keys: Vec<JwtKeyConfig>,
    /// A set of more keys.
    pub jwks: Option<JwksConfig>,
    /// The required `iss`.
    pub issuer: Option<Box<str>>,
    /// The required `aud`, or one of several.
    pub audience: Option<Box<str>>,
    /// How far clocks may be apart.
    pub leeway: Option<Duration>,
    /// How a request with a bad token is handled.
    pub on_invalid: OnInvalid,
    /// How often an address may have tokens verified that turn out bad.
    pub verifications: Option<Limit>,
}

/// HMAC needs a secret as long as its hash (RFC 7518, 3.2).
pub const MIN_SECRET_BYTES: usize = 32;

/// How many keys without an id one algorithm may have: a token that names no key is tried on each.
pub const MAX_WITHOUT_ID: usize = 8;

/// The largest key set that is read. Sets of large issuers have a few KiB.
pub const MAX_JWKS_BYTES: usize = 256 << 10;

/// How old the keys of a set may get while the issuer answers, by default.
pub const JWKS_MAX_AGE: Duration = Duration::from_secs(10 * 60);

/// Where a key set is.
#[derive(Clone, PartialEq)]
pub enum JwksConfig {
    /// The contents of a file.
    File(Vec<u8>),
    /// Fetched from here.
    Url {
        /// The address.
        url: Box<str>,
        /// How old the keys may get while the issuer answers.
        max_age: Option<Duration>,
        /// How old they may get while it does not.
        max_stale: Option<Duration>,
    },
}

/// A key that tokens are verified with.
#[derive(Clone, PartialEq)]
pub struct JwtKeyConfig {
    /// Its algorithm, and no other.
    pub algorithm: JwtAlgorithm,
    /// The `kid` that tokens name it by.
    pub id: Option<Box<str>>,
    /// The secret's bytes, 32 at least; or the public key as a PEM.
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
    /// As none: the client is known by its address.
    #[default]
    ByIp,
    /// 401.
    Unauthorized,
}

impl fmt::Debug for JwksConfig {
    /// Without the keys, of which there may be many, and without the URL, which may have a secret in its query.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JwksConfig::File(_) => "Jwks::File",
            JwksConfig::Url { .. } => "Jwks::Url",
        })
    }
}

impl fmt::Debug for JwtKeyConfig {
    /// Without the key itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtKeyConfig")
            .field("algorithm", &self.algorithm)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
