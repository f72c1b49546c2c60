//! The keys of clients.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::address::{ClientAddress, Ipv6Prefix};

/// The key of a client under a limit: text, bytes, or an IP address.
///
/// A reference to anything that is `AsRef<[u8]>` is a key of those bytes: `"user:42"`, a `&String`, a
/// `&Vec<u8>`.
///
/// An IP address, passed by value, becomes the client's key as the middleware and the rules write it:
/// `ip=203.0.113.9`. IPv6 addresses with the same first 56 bits are one client, because one home or office
/// has all of them: `ip=2001:db8:12:3400::/56`. An IPv4-mapped IPv6 address counts as the IPv4 address. For
/// another prefix, use a [`ClientAddress`]; to count single IPv6 addresses separately, give it 128 bits.
/// [`Scope::acquire`](crate::Scope::acquire) takes references only, so an IP address needs a `ClientAddress`
/// there too.
///
/// ```
/// use std::net::IpAddr;
/// use tollgate::{ClientAddress, Ipv6Prefix, Limiter};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let logins = Limiter::memory().scope("logins", "sliding-window-log limit=5 window=15m")?;
/// let ip: IpAddr = "2001:db8:12:34ff::1".parse()?;
/// assert_eq!(logins.check(ip).now()?.remaining(), 4);
///
/// let same_home: IpAddr = "2001:db8:12:34aa::7".parse()?;
/// assert_eq!(logins.check(same_home).now()?.remaining(), 3);
/// assert_eq!(logins.check("ip=2001:db8:12:3400::/56").now()?.remaining(), 2);
///
/// let alone = ClientAddress::of(ip, Ipv6Prefix::new(128)?);
/// assert_eq!(logins.check(&alone).now()?.remaining(), 4);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Key<'k>(KeyBytes<'k>);

#[derive(Clone, Debug)]
enum KeyBytes<'k> {
    Bytes(&'k [u8]),
    /// Boxed, so that a key is as small as a slice: a check contains its key, and is moved several times.
    Address(Box<ClientAddress>),
}

const _: () = assert!(size_of::<Key<'_>>() == size_of::<&[u8]>());

impl Key<'_> {
    /// Returns the bytes of the key.
    #[inline(always)]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            KeyBytes::Bytes(bytes) => bytes,
            KeyBytes::Address(address) => address.as_key(),
        }
    }
}

impl<'k, K: AsRef<[u8]> + ?Sized> From<&'k K> for Key<'k> {
    #[inline(always)]
    fn from(bytes: &'k K) -> Key<'k> {
        Key(KeyBytes::Bytes(bytes.as_ref()))
    }
}

impl From<IpAddr> for Key<'_> {
    fn from(ip: IpAddr) -> Self {
        Key(KeyBytes::Address(Box::new(ClientAddress::of(ip, Ipv6Prefix::default()))))
    }
}

impl From<Ipv4Addr> for Key<'_> {
    fn from(ip: Ipv4Addr) -> Self {
        Key::from(IpAddr::V4(ip))
    }
}

impl From<Ipv6Addr> for Key<'_> {
    fn from(ip: Ipv6Addr) -> Self {
        Key::from(IpAddr::V6(ip))
    }
}
