//! IP addresses, and the keys made from them.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The number of bits that the IPv6 addresses of one client share, unless another number is set.
const DEFAULT_IPV6_PREFIX: u8 = 56;

/// The prefix of keys made from an address.
const NAME: &[u8; 3] = b"ip=";

/// The same prefix as a number whose lowest byte is the first letter.
const NAME_LETTERS: u128 = (NAME[0] as u128) | (NAME[1] as u128) << 8 | (NAME[2] as u128) << 16;

/// The longest key: `ip=ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127`.
const MAX_BYTES: usize = NAME.len() + 43;

/// The number of bits that distinguish IPv6 clients: 56 by default.
///
/// A home or a small office has a /56 or a /64 to itself. If single addresses counted as clients, it could
/// use each of them as a new client.
///
/// ```
/// # use tollgate::Ipv6Prefix;
/// assert_eq!(Ipv6Prefix::new(64)?.bits(), 64);
/// assert_eq!(Ipv6Prefix::default().bits(), 56);
/// # Ok::<(), tollgate::Ipv6PrefixError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv6Prefix(u8);

/// The error for a prefix with a number of bits outside of 1 to 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an IPv6 prefix of {bits} bits is not valid; use 1 to 128, such as 56 or 64")]
pub struct Ipv6PrefixError {
    bits: u8,
}

impl Ipv6Prefix {
    /// Returns a prefix of 1 to 128 bits; with 128 each address is a client of its own.
    pub const fn new(bits: u8) -> Result<Ipv6Prefix, Ipv6PrefixError> {
        match bits {
            1..=128 => Ok(Ipv6Prefix(bits)),
            _ => Err(Ipv6PrefixError { bits }),
        }
    }

    /// Returns the number of bits.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns the first address that has the same prefix as `ip`.
    fn first_of(self, ip: Ipv6Addr) -> Ipv6Addr {
        // OK because there are 1 to 128 bits: the shift is 0 to 127.
        let mask = u128::MAX << (128 - u32::from(self.0));
        Ipv6Addr::from_bits(ip.to_bits() & mask)
    }
}

impl Default for Ipv6Prefix {
    fn default() -> Ipv6Prefix {
        Ipv6Prefix(DEFAULT_IPV6_PREFIX)
    }
}

/// A client's address, and its text in keys. Each IPv4 address is a client; IPv6 addresses that share a
/// prefix are one client.
///
/// ```
/// # use tollgate::{ClientAddress, Ipv6Prefix};
/// let text = |ip: &str| ip.parse().map(|ip| ClientAddress::of(ip, Ipv6Prefix::default()).to_string());
/// assert_eq!(text("203.0.113.9")?, "203.0.113.9");
/// assert_eq!(text("::ffff:203.0.113.9")?, "203.0.113.9");
/// assert_eq!(text("2001:db8:12:34ff::1")?, "2001:db8:12:3400::/56");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy)]
pub struct ClientAddress {
    ip: IpAddr,
    text: AddressText,
}

impl ClientAddress {
    /// The unknown address, `0.0.0.0` with an empty text: a value to [`set`](Self::set) later.
    pub const UNKNOWN: ClientAddress =
        ClientAddress { ip: IpAddr::V4(Ipv4Addr::UNSPECIFIED), text: AddressText::EMPTY };

    /// Returns the client with this address. An IPv4-mapped IPv6 address counts as IPv4.
    pub fn of(ip: IpAddr, prefix: Ipv6Prefix) -> ClientAddress {
        let mut address = ClientAddress::UNKNOWN;
        address.set(ip, prefix);
        address
    }

    /// Does the same as [`of`](Self::of) in place. This avoids a copy of the text, which would wait for the small
    /// writes that made the text.
    pub fn set(&mut self, ip: IpAddr, prefix: Ipv6Prefix) {
        self.ip = ip.to_canonical();
        match self.ip {
            IpAddr::V4(ip) => self.text.set_v4(ip),
            IpAddr::V6(ip) => self.text.set_v6(ip, prefix),
        }
    }

    /// Returns the full address.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Returns the text, which is the same for all addresses of one client.
    #[inline]
    pub fn as_str(&self) -> &str {
        self.text.as_str()
    }

    /// Returns the text with its prefix, as the key of a client: `ip=203.0.113.9`.
    #[inline]
    pub fn as_key(&self) -> &[u8] {
        self.text.as_key()
    }
}

impl<'a> From<&'a ClientAddress> for Cow<'a, ClientAddress> {
    fn from(address: &'a ClientAddress) -> Cow<'a, ClientAddress> {
        Cow::Borrowed(address)
    }
}

impl From<ClientAddress> for Cow<'_, ClientAddress> {
    fn from(address: ClientAddress) -> Self {
        Cow::Owned(address)
    }
}

/// The [key](crate::Key) of the client.
impl AsRef<[u8]> for ClientAddress {
    fn as_ref(&self) -> &[u8] {
        self.as_key()
    }
}

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientAddress").field("ip", &self.ip).field("text", &self.as_str()).finish()
    }
}

/// The text of each octet with a dot after it, as a number whose lowest byte is the first letter, and the
/// length of the text. For 7: `7.` and 2.
static OCTETS: [(u32, u8); 256] = {
    let mut octets = [(0, 0); 256];
    let mut octet = 0;
    while octet < octets.len() {
        octets[octet] = with_dot(octet as u8);
        octet += 1;
    }
    octets
};

const fn with_dot(octet: u8) -> (u32, u8) {
    let [hundreds, tens, ones] = [octet / 100 + b'0', octet / 10 % 10 + b'0', octet % 10 + b'0'];
    let (letters, length) = match octet {
        0..10 => ([ones, b'.', 0, 0], 2),
        10..100 => ([tens, ones, b'.', 0], 3),
        100.. => ([hundreds, tens, ones, b'.'], 4),
    };
    (u32::from_le_bytes(letters), length)
}

/// A short text with its prefix, stored without the heap.
#[derive(Clone, Copy)]
struct AddressText {
    bytes: [u8; MAX_BYTES],
    length: u8,
}

impl AddressText {
    const EMPTY: AddressText = {
        let mut bytes = [0; MAX_BYTES];
        let mut at = 0;
        while at < NAME.len() {
            bytes[at] = NAME[at];
            at += 1;
        }
        AddressText { bytes, length: NAME.len() as u8 }
    };

    /// Writes the address from a table, which takes a fraction of the time of formatting.
    fn set_v4(&mut self, ip: Ipv4Addr) {
        // OK because the table has 256 entries.
        let [a, b, c, d] = ip.octets().map(|octet| OCTETS[usize::from(octet)]);
        // Assembled in registers, together with `ip=`: after several small writes to memory, a large read of the same
        // bytes has to wait.
        // OK because two octets and their dots have at most 8 letters.
        let first = u64::from(a.0) | u64::from(b.0) << (8 * a.1);
        let last = u64::from(c.0) | u64::from(d.0) << (8 * c.1);
        let before = NAME.len() as u8 + a.1 + b.1;
        let start = NAME_LETTERS | u128::from(first) << (8 * NAME.len());
        let start = start | u128::from(last) << (8 * before);
        // OK because 7 to 11 letters come before the last 8: at most 3 of these do not fit the first 16.
        let rest = (u128::from(last) >> (8 * (16 - before))) as u32;
        self.bytes[..16].copy_from_slice(&start.to_le_bytes());
        self.bytes[16..20].copy_from_slice(&rest.to_le_bytes());
        // OK because each octet has added a dot; the last dot is dropped.
        self.length = before + c.1 + d.1 - 1;
    }

    fn set_v6(&mut self, ip: Ipv6Addr, prefix: Ipv6Prefix) {
        *self = AddressText::EMPTY;
        let first = prefix.first_of(ip);
        // OK because the longest text fits: nothing is ever cut off.
        let _ = match prefix.bits() {
            128 => write!(self, "{first}"),
            bits => write!(self, "{first}/{bits}"),
        };
    }

    #[inline]
    fn as_key(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }

    #[inline]
    fn as_str(&self) -> &str {
        let text = self.as_key().get(NAME.len()..).unwrap_or_default();
        // OK because only ASCII is written.
        str::from_utf8(text).unwrap_or_default()
    }
}

impl fmt::Write for AddressText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let start = usize::from(self.length);
        let end = start + text.len();
        let place = self.bytes.get_mut(start..end).ok_or(fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        // OK because `end` is at most MAX_BYTES, 46.
        self.length = end as u8;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(ip: &str, bits: u8) -> String {
        ClientAddress::of(ip.parse().unwrap(), Ipv6Prefix::new(bits).unwrap()).to_string()
    }

    #[test]
    fn text_has_the_full_ipv4_address_or_the_ipv6_prefix() {
        for (ip, bits, wanted) in [
            ("203.0.113.9", 56, "203.0.113.9"),
            ("203.0.113.9", 1, "203.0.113.9"),
            ("0.0.0.0", 56, "0.0.0.0"),
            ("255.255.255.255", 56, "255.255.255.255"),
            ("::ffff:203.0.113.9", 56, "203.0.113.9"),
            ("::ffff:203.0.113.9", 128, "203.0.113.9"),
            ("2001:db8:12:34ff::1", 56, "2001:db8:12:3400::/56"),
            ("2001:db8:12:34ff::1", 64, "2001:db8:12:34ff::/64"),
            ("2001:db8:12:34ff::1", 48, "2001:db8:12::/48"),
            ("2001:db8:12:34ff::1", 128, "2001:db8:12:34ff::1"),
            ("2001:db8:12:34ff::1", 127, "2001:db8:12:34ff::/127"),
            ("ffff::1", 1, "8000::/1"),
            ("7fff::1", 1, "::/1"),
            ("::1", 56, "::/56"),
        ] {
            assert_eq!(text(ip, bits), wanted, "{ip} /{bits}");
        }
    }

    #[test]
    fn the_longest_text_fits() {
        let longest = text("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 127);
        assert_eq!(longest, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127");
        assert_eq!(longest.len() + NAME.len(), MAX_BYTES);
    }

    #[test]
    fn address_keeps_all_bits_and_unwraps_mapped_ipv4() {
        let of = |ip: &str| ClientAddress::of(ip.parse().unwrap(), Ipv6Prefix::default());
        assert_eq!(of("2001:db8::1").ip().to_string(), "2001:db8::1");
        assert_eq!(of("::ffff:203.0.113.9").ip().to_string(), "203.0.113.9");
        assert_eq!(
            format!("{:?}", of("2001:db8::1")),
            r#"ClientAddress { ip: 2001:db8::1, text: "2001:db8::/56" }"#
        );
        assert_eq!(format!("{:>14}", of("2001:db8::1")), " 2001:db8::/56");
    }

    #[test]
    fn a_prefix_has_1_to_128_bits() {
        assert!(Ipv6Prefix::new(1).is_ok() && Ipv6Prefix::new(128).is_ok());
        assert!(Ipv6Prefix::new(129).is_err());
        assert_eq!(
            Ipv6Prefix::new(0).unwrap_err().to_string(),
            "an IPv6 prefix of 0 bits is not valid; use 1 to 128, such as 56 or 64"
        );
    }

    proptest! {
        #[test]
        fn text_equals_standard_formatting(bits: u128, octets: [u8; 4], prefix in 1..=127u8) {
            let text = |ip, bits| ClientAddress::of(ip, Ipv6Prefix(bits)).to_string();
            let v4 = IpAddr::from(octets);
            prop_assert_eq!(text(v4, prefix), v4.to_string());
            let address = ClientAddress::of(v4, Ipv6Prefix(prefix));
            prop_assert_eq!(address.as_key().to_vec(), format!("ip={v4}").into_bytes());
            let v6 = Ipv6Addr::from_bits(bits);
            if v6.to_ipv4_mapped().is_none() {
                let net = ipnet::Ipv6Net::new(v6, prefix).unwrap().trunc();
                prop_assert_eq!(text(v6.into(), prefix), net.to_string());
                prop_assert_eq!(text(v6.into(), 128), v6.to_string());
            }
        }
    }
}
