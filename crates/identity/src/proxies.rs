//! The trusted proxies, and the client's address that they pass on.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use ::http::HeaderMap;
use ipnet::{IpNet, Ipv6Net};

use super::forwarded::{self, Forwarding};
use crate::config::mostly_covered;

/// The most hops that are read of a header.
const MAX_HOPS: usize = 64;

/// The number of bits before an IPv4 address in its IPv6 form.
const IPV4_BITS: u8 = 96;

/// The proxies that are trusted to pass on the client's address. Cheap to clone.
///
/// If a request does not come from a trusted proxy, its sender is the client, whatever its headers say. Otherwise
/// the hops in the header are walked from the right, which is the proxies' end, and the first hop
/// that is not a trusted proxy is the client. Text that a client writes into the header itself is further
/// left, and never reached.
///
/// ```
/// use std::net::IpAddr;
/// use tollgate::http::TrustedProxies;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let proxies = TrustedProxies::new(["10.0.0.0/8", "2001:db8::7"])?;
///
/// let mut headers = http::HeaderMap::new();
/// headers.insert("x-forwarded-for", "8.8.8.8, 203.0.113.9, 10.0.0.7".parse()?);
/// let client = proxies.client("10.0.0.8".parse()?, &headers);
/// assert_eq!(client, "203.0.113.9".parse::<IpAddr>()?); // 8.8.8.8 is what the client says
///
/// let stranger: IpAddr = "198.51.100.1".parse()?;
/// assert_eq!(proxies.client(stranger, &headers), stranger);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TrustedProxies {
    /// In order; no network is within another. IPv4 networks are in their IPv6 form, so that both ways to write an address
    /// are equal.
    nets: Arc<[Ipv6Net]>,
    forwarding: Forwarding,
}

/// Why a list of trusted proxies is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// A text is neither an address nor a network.
    #[error(
        "trusted proxies: `{given}` is neither an address nor a network; write `10.0.0.7`, `10.0.0.0/8` or `2001:db8::/32`"
    )]
    NotANet {
        /// The given text.
        given: String,
    },
    /// The address of a network has bits set after the prefix.
    #[error(
        "trusted proxies: `{given}` is not where its network begins; write `{net}` for the network, or `{address}` for that address alone"
    )]
    HostBits {
        /// The given text.
        given: String,
        /// The network that the address is in.
        net: String,
        /// The address.
        address: String,
    },
    /// The list is empty.
    #[error("trusted proxies: the list is empty; leave it out to trust none")]
    Empty,
    /// All networks together hold more than a quarter of IPv4, or of the public addresses of IPv6.
    #[error(
        "trusted proxies: more than a quarter of all {family} addresses are in these networks, and clients there could choose their own address; name only the networks of your proxies, or, if clients may choose, use `TrustedProxies::everyone_so_clients_choose_their_own_address()`"
    )]
    TooMany {
        /// `IPv4` or `IPv6`.
        family: &'static str,
    },
}

impl TrustedProxies {
    /// Trusts these addresses and networks, IPv4 and IPv6. By [default](Self::reading) these proxies write
    /// `X-Forwarded-For`. All networks together may hold a quarter of IPv4, and a quarter of the public addresses of IPv6.
    pub fn new<N: AsRef<str>>(
        nets: impl IntoIterator<Item = N>,
    ) -> Result<TrustedProxies, TrustError> {
        let nets: Vec<Ipv6Net> =
            nets.into_iter().map(|net| parse(net.as_ref())).collect::<Result<_, _>>()?;
        if nets.is_empty() {
            return Err(TrustError::Empty);
        }
        let nets = Ipv6Net::aggregate(&nets);
        if let Some(family) = mostly_covered(&nets).next() {
            return Err(TrustError::TooMany { family });
        }
        Ok(TrustedProxies { nets: nets.into(), forwarding: Forwarding::default() })
    }

    /// Trusts every address that connects, and each hop in the header: the client is the leftmost hop, which the client
    /// itself can choose. Use it only where a limit need not hold against its clients.
    pub fn everyone_so_clients_choose_their_own_address() -> TrustedProxies {
        TrustedProxies { nets: [Ipv6Net::default()].into(), forwarding: Forwarding::default() }
    }

    /// Sets the header that the proxies write.
    #[must_use]
    pub fn reading(self, forwarding: Forwarding) -> TrustedProxies {
        TrustedProxies { forwarding, ..self }
    }

    /// Whether `ip` is the address of a trusted proxy.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let ip = as_v6(ip);
        // Only the last net that begins at or before the address can hold it, because the nets do not overlap.
        let after = self.nets.partition_point(|net| net.addr() <= ip);
        let last = after.checked_sub(1).and_then(|at| self.nets.get(at));
        last.is_some_and(|net| net.contains(&ip))
    }

    /// Returns the client of a request that `peer` sent with these headers.
    ///
    /// A hop that is not an address, such as `unknown`, ends the walk: the client is then the proxy that
    /// wrote it. If all hops are trusted, the client is the leftmost of the last 64.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let peer = peer.to_canonical();
        if !self.contains(peer) {
            return peer;
        }
        match self.forwarding {
            Forwarding::XForwardedFor => self.walk(peer, forwarded::x_forwarded_for(headers)),
            Forwarding::Forwarded => self.walk(peer, forwarded::forwarded(headers)),
            Forwarding::XRealIp => forwarded::x_real_ip(headers).unwrap_or(peer),
        }
    }

    fn walk(&self, peer: IpAddr, hops: impl Iterator<Item = Option<IpAddr>>) -> IpAddr {
        let mut client = peer;
        for hop in hops.take(MAX_HOPS) {
            let Some(hop) = hop else { break };
            client = hop;
            if !self.contains(hop) {
                break;
            }
        }
        client
    }
}

impl fmt::Debug for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nets: Vec<IpNet> = self.nets.iter().map(as_written).collect();
        let mut shown = f.debug_struct("TrustedProxies");
        shown.field("nets", &nets).field("forwarding", &self.forwarding).finish()
    }
}

/// Parses an address or a net, and returns it in its IPv6 form.
fn parse(given: &str) -> Result<Ipv6Net, TrustError> {
    let not_a_net = || TrustError::NotANet { given: given.to_owned() };
    let net = net_of(given).ok_or_else(not_a_net)?;
    if net.network() != net.addr() {
        let (net, address) = (net.trunc().to_string(), net.addr().to_string());
        return Err(TrustError::HostBits { given: given.to_owned(), net, address });
    }
    let bits = match net {
        // OK because an IPv4 net has at most 32 bits.
        IpNet::V4(net) => IPV4_BITS + net.prefix_len(),
        IpNet::V6(net) => net.prefix_len(),
    };
    Ipv6Net::new(as_v6(net.addr()), bits).map_err(|_| not_a_net())
}

/// Parses a net. An address alone is a net of one address.
fn net_of(given: &str) -> Option<IpNet> {
    let Some((ip, bits)) = given.split_once('/') else {
        return given.parse::<IpAddr>().ok().map(IpNet::from);
    };
    // Tested here, because `parse` would accept a sign.
    let is_number = bits.bytes().all(|byte| byte.is_ascii_digit());
    IpNet::new(ip.parse().ok()?, bits.parse().ok().filter(|_| is_number)?).ok()
}

fn as_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

fn as_written(net: &Ipv6Net) -> IpNet {
    let v4 = net.addr().to_ipv4_mapped().zip(net.prefix_len().checked_sub(IPV4_BITS));
    v4.and_then(|(ip, bits)| IpNet::new(ip.into(), bits).ok()).unwrap_or(IpNet::V6(*net))
}

#[cfg(test)]
mod tests;
