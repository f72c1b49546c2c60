//! Addresses as keys are made of them.

use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The longest text: `ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127`.
const MAX_BYTES: usize = 43;

/// How many bits of an IPv6 address tell one client from another: 56 unless said.
///
/// A home or a small office has a /56 or a /64 to itself, and could be a new client with each of its
/// addresses if they were told apart.
///
/// ```
/// # use tollgate::http::Ipv6Prefix;
/// assert_eq!(Ipv6Prefix::new(64)?.bits(), 64);
/// assert_eq!(Ipv6Prefix::default().bits(), 56);
/// # Ok::<(), tollgate::http::Ipv6PrefixError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv6Prefix(u8);

/// A number of bits that no IPv6 prefix has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an IPv6 prefix of {bits} bits groups nothing; use 1 to 128, such as 56 or 64")]
pub struct Ipv6PrefixError {
    bits: u8,
}

impl Ipv6Prefix {
    /// From 1 to 128 bits; with 128 each address is a client of its own.
    pub const fn new(bits: u8) -> Result<Ipv6Prefix, Ipv6PrefixError> {
        match bits {
            1..=128 => Ok(Ipv6Prefix(bits)),
            _ => Err(Ipv6PrefixError { bits }),
        }
    }

    /// How many.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The first address of those that begin as `ip` does.
    fn first_of(self, ip: Ipv6Addr) -> Ipv6Addr {
        // OK because there is at least one bit, and at most 128: 0 to 127 are dropped.
        let mask = u128::MAX << (128 - u32::from(self.0));
        Ipv6Addr::from_bits(ip.to_bits() & mask)
    }
}

impl Default for Ipv6Prefix {
    fn default() -> Ipv6Prefix {
        Ipv6Prefix(56)
    }
}

/// A client's address, and the text that it has in keys: an IPv4 address is a client, of IPv6 all that
/// share a prefix are.
///
/// ```
/// # use tollgate::http::{ClientAddress, Ipv6Prefix};
/// let text = |ip: &str| ip.parse().map(|ip| ClientAddress::of(ip, Ipv6Prefix::default()).to_string());
/// assert_eq!(text("203.0.113.9")?, "203.0.113.9");
/// assert_eq!(text("::ffff:203.0.113.9")?, "203.0.113.9");
/// assert_eq!(text("2001:db8:12:34ff::1")?, "2001:db8:12:3400::/56");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy)]
pub struct ClientAddress {
    ip: IpAddr,
    text: Text,
}

impl ClientAddress {
    /// An IPv4 address in the clothes of an IPv6 one is IPv4.
    pub fn of(ip: IpAddr, prefix: Ipv6Prefix) -> ClientAddress {
        let ip = ip.to_canonical();
        let text = match ip {
            IpAddr::V4(ip) => Text::of_v4(ip),
            IpAddr::V6(ip) => Text::of_v6(ip, prefix),
        };
        ClientAddress { ip, text }
    }

    /// The address, whole.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// The text, which is the same for all addresses of one client.
    #[inline]
    pub fn as_str(&self) -> &str {
        self.text.as_str()
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.text.as_bytes()
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

/// Each octet with a dot behind it, and how long that is: 7 is `7.`, 2.
static OCTETS: [([u8; 4], u8); 256] = {
    let mut octets = [([0; 4], 0); 256];
    let mut octet = 0;
    while octet < octets.len() {
        octets[octet] = with_dot(octet as u8);
        octet += 1;
    }
    octets
};

const fn with_dot(octet: u8) -> ([u8; 4], u8) {
    let [hundreds, tens, ones] = [octet / 100 + b'0', octet / 10 % 10 + b'0', octet % 10 + b'0'];
    match octet {
        0..10 => ([ones, b'.', 0, 0], 2),
        10..100 => ([tens, ones, b'.', 0], 3),
        100.. => ([hundreds, tens, ones, b'.'], 4),
    }
}

/// A short text that needs no heap.
#[derive(Clone, Copy)]
struct Text {
    bytes: [u8; MAX_BYTES],
    length: usize,
}

impl Text {
    const EMPTY: Text = Text { bytes: [0; MAX_BYTES], length: 0 };

    /// From a table, which takes a fraction of the time that formatting does.
    fn of_v4(ip: Ipv4Addr) -> Text {
        let mut text = Text::EMPTY;
        for octet in ip.octets() {
            // OK because the table has all 256.
            let (digits, length) = &OCTETS[usize::from(octet)];
            text.put(digits, usize::from(*length));
        }
        // OK because each octet has brought a dot; the last one's goes.
        text.length -= 1;
        text
    }

    fn of_v6(ip: Ipv6Addr, prefix: Ipv6Prefix) -> Text {
        let mut text = Text::EMPTY;
        let first = prefix.first_of(ip);
        // OK because the longest fits: nothing is ever cut off.
        let _ = match prefix.bits() {
            128 => write!(text, "{first}"),
            bits => write!(text, "{first}/{bits}"),
        };
        text
    }

    /// Appends `bytes`, of which `length` count.
    #[inline]
    fn put(&mut self, bytes: &[u8], length: usize) {
        if let Some(free) = self.bytes.get_mut(self.length..self.length + bytes.len()) {
            free.copy_from_slice(bytes);
            self.length += length;
        }
    }

    #[inline]
    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    #[inline]
    fn as_str(&self) -> &str {
        // OK because only ASCII is written.
        str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text.as_bytes(), text.len());
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
    fn ipv4_is_whole_and_ipv6_grouped() {
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
        assert_eq!(longest.len(), MAX_BYTES);
    }

    #[test]
    fn the_address_stays_whole_and_loses_its_clothes() {
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
            "an IPv6 prefix of 0 bits groups nothing; use 1 to 128, such as 56 or 64"
        );
    }

    proptest! {
        #[test]
        fn texts_are_what_formatting_says(bits: u128, octets: [u8; 4], prefix in 1..=127u8) {
            let text = |ip, bits| ClientAddress::of(ip, Ipv6Prefix(bits)).to_string();
            let v4 = IpAddr::from(octets);
            prop_assert_eq!(text(v4, prefix), v4.to_string());
            let v6 = Ipv6Addr::from_bits(bits);
            if v6.to_ipv4_mapped().is_none() {
                let net = ipnet::Ipv6Net::new(v6, prefix).unwrap().trunc();
                prop_assert_eq!(text(v6.into(), prefix), net.to_string());
                prop_assert_eq!(text(v6.into(), 128), v6.to_string());
            }
        }
    }
}
