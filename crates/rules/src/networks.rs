//! Networks: their text, and which of many networks contains an address.
//!
//! - `map`: longest prefix match among many networks

mod map;

use std::cmp::Reverse;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net};

pub(crate) use map::NetworkMap;

/// The bits of an IPv4 address.
const IPV4_BITS: u8 = 32;

/// The bits before an IPv4 address that is written as IPv6: `::ffff:192.0.2.7`.
pub(crate) const MAPPED_BITS: u8 = 96;

/// The value of `ip` for clients whose address is not known.
pub(crate) const UNKNOWN_ADDRESS: &str = tollgate_identity::UNKNOWN_ADDRESS;

/// Why a text is not a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NetworkError {
    /// Neither an address nor a network.
    Malformed,
    /// An address with more bits after the `/` than addresses have: `10.0.0.1/33`.
    TooLong { address: IpAddr },
    /// Bits are set after the prefix: `10.0.0.1/24`.
    HostBits { written: IpNet },
}

/// Reads a network such as `10.0.0.0/8`, or an address, which is a network of one address.
///
/// An IPv4 network that is written as IPv6 (`::ffff:192.0.2.0/120`) becomes IPv4, as the addresses of clients do.
pub(crate) fn parse(text: &str) -> Result<IpNet, NetworkError> {
    let Some((address, bits)) = text.split_once('/') else {
        let address = text.parse::<IpAddr>().map_err(|_| NetworkError::Malformed)?;
        return Ok(address.to_canonical().into());
    };
    let address = address.parse::<IpAddr>().map_err(|_| NetworkError::Malformed)?;
    if bits.is_empty() || !bits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(NetworkError::Malformed);
    }
    let written = bits.parse().ok().and_then(|bits| IpNet::new(address, bits).ok());
    let written = written.ok_or(NetworkError::TooLong { address })?;
    match written == written.trunc() {
        true => Ok(unmapped(written)),
        false => Err(NetworkError::HostBits { written }),
    }
}

/// Returns the IPv4 network if it is written as IPv6.
fn unmapped(network: IpNet) -> IpNet {
    let IpNet::V6(written) = network else { return network };
    let address = written.addr().to_ipv4_mapped();
    let parts = address.zip(written.prefix_len().checked_sub(MAPPED_BITS));
    parts.and_then(|(address, bits)| Ipv4Net::new(address, bits).ok()).map_or(network, IpNet::V4)
}

/// Returns the text of a network in a file: a single address without the length of its prefix.
pub(crate) fn text(network: &IpNet) -> String {
    match network.prefix_len() == network.max_prefix_len() {
        true => network.addr().to_string(),
        false => network.to_string(),
    }
}

/// Returns as much of an address as an attribute's text shows: the whole address (`203.0.113.9`), or the network that
/// contains it (`2001:db8:12:3400::/56`, a group of IPv6 addresses that counts as one client).
pub(crate) fn known_of(text: &str) -> Option<IpNet> {
    match parse(text) {
        Ok(network) => Some(network),
        Err(NetworkError::HostBits { written }) => Some(unmapped(written.trunc())),
        Err(_) => None,
    }
}

/// Returns the text of a client's address in keys; for IPv6, the group of addresses that contains it.
pub(crate) fn client_text(address: IpAddr, ipv6_prefix: u8) -> String {
    let bits = match address {
        IpAddr::V4(_) => IPV4_BITS,
        IpAddr::V6(_) => ipv6_prefix,
    };
    // OK because a prefix has at most 128 bits.
    IpNet::new(address, bits).map_or_else(|_| String::new(), |group| text(&group.trunc()))
}

/// Networks that have a name in the file.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct NetworkSet {
    pub(crate) name: Box<str>,
    pub(crate) networks: NetworkMap<()>,
}

/// Hashes the name only, which is unique within a file.
impl Hash for NetworkSet {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// Prints the number of networks only, because they may be many.
impl fmt::Debug for NetworkSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NetworkSet({}, {})", self.name, self.networks.len())
    }
}

/// One network, or all networks of a set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Networks {
    One(IpNet),
    Set(Arc<NetworkSet>),
}

impl Networks {
    /// Returns whether one of the networks contains all of `part`, which is an address or a smaller network.
    pub(crate) fn hold(&self, part: &IpNet) -> bool {
        match self {
            Networks::One(network) => network.contains(part),
            Networks::Set(set) => set.networks.longest(part).is_some(),
        }
    }
}

/// Prints `10.0.0.0/8`, or `networks: blocked`.
impl fmt::Display for Networks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Networks::One(network) => f.write_str(&text(network)),
            Networks::Set(set) => write!(f, "networks: {}", set.name),
        }
    }
}

/// Values of networks and of sets, found by longest prefix match in all of them.
#[derive(Debug)]
pub(crate) struct NetworkTable<T> {
    /// Each value with its index in the given order.
    single: NetworkMap<(usize, T)>,
    /// Shared, not copied: several rules may use one set.
    sets: Vec<(Arc<NetworkSet>, (usize, T))>,
}

impl<T> NetworkTable<T> {
    pub(crate) fn new<'n>(each: impl IntoIterator<Item = (&'n Networks, T)>) -> NetworkTable<T> {
        let (mut single, mut sets) = (Vec::new(), Vec::new());
        for (place, (networks, value)) in each.into_iter().enumerate() {
            match networks {
                Networks::One(network) => single.push((*network, (place, value))),
                Networks::Set(set) => sets.push((Arc::clone(set), (place, value))),
            }
        }
        NetworkTable { single: NetworkMap::new(single, |_, _| {}), sets }
    }

    /// Returns the values of all networks and sets.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        let sets = self.sets.iter().map(|(_, own)| own);
        self.single.values().chain(sets).map(|(_, value)| value)
    }

    /// Returns the longest network that contains all of `part`, and its value. If several entries have that network,
    /// the first in the given order counts.
    pub(crate) fn longest(&self, part: &IpNet) -> Option<(FoundNetwork<'_>, &T)> {
        let single = self.single.longest(part);
        let single = single.map(|(network, own)| (FoundNetwork { network, set: None }, own));
        let sets = self.sets.iter().filter_map(|(set, own)| {
            let (network, ()) = set.networks.longest(part)?;
            Some((FoundNetwork { network, set: Some(&set.name) }, own))
        });
        let best = single
            .into_iter()
            .chain(sets)
            .max_by_key(|(found, (place, _))| (found.network.prefix_len(), Reverse(*place)));
        best.map(|(found, (_, value))| (found, value))
    }
}

/// The network that an address was found in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundNetwork<'n> {
    pub(crate) network: &'n IpNet,
    /// The name of its set, if it belongs to one.
    pub(crate) set: Option<&'n str>,
}

#[cfg(test)]
mod tests;
