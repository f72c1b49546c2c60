//! Reads the hops that proxies write into headers, from the right: a client's own text is to the left of the proxies'
//! text, and cannot change how the proxies' text is read.

use std::iter;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ::http::header::FORWARDED;
use ::http::{HeaderMap, HeaderName};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// The longest value between quotes that may be an address: an address has at most 45 characters; brackets and a port may
/// be added.
const MAX_VALUE_BYTES: usize = 64;

/// The header into which trusted proxies write the client's address.
///
/// Only this header is read. A proxy that appends to `X-Forwarded-For` passes on any `Forwarded` that the
/// client sent, so a server that read both would let clients choose their address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Forwarding {
    /// `X-Forwarded-For: 203.0.113.9, 10.0.0.7`: each proxy appends the address that its request came from.
    #[default]
    XForwardedFor,
    /// `Forwarded: for=203.0.113.9;proto=https, for="[2001:db8::7]:443"`: the same, as in RFC 7239.
    Forwarded,
    /// `X-Real-IP: 203.0.113.9`: a proxy overwrites the value. If there are several lines, the last counts.
    XRealIp,
}

/// Returns the hops of `X-Forwarded-For`, the last first; `None` for a hop that is not an address.
pub(super) fn x_forwarded_for(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all(X_FORWARDED_FOR).into_iter().rev();
    lines.flat_map(|line| line.as_bytes().rsplit(|&byte| byte == b',').map(address))
}

/// Returns the hops of `Forwarded`, the last first; `None` for a hop that is not an address.
pub(super) fn forwarded(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all(FORWARDED).into_iter().rev();
    lines.flat_map(|line| Elements { rest: Some(line.as_bytes()) }.map(address_in_element))
}

/// Returns the address in the last line of `X-Real-IP`.
pub(super) fn x_real_ip(headers: &HeaderMap) -> Option<IpAddr> {
    address(headers.get_all(X_REAL_IP).into_iter().next_back()?.as_bytes())
}

/// The elements of one line of `Forwarded`, the last first.
///
/// In a valid line they are the same elements that reading from the left finds. In an invalid line, the text after
/// the mistake is still what the last proxies wrote: in `for=", for=203.0.113.9` a client has opened a
/// quote, and a proxy has appended its address.
struct Elements<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        let Some(comma) = last_comma(rest) else { return self.rest.take() };
        self.rest = rest.get(..comma);
        rest.get(comma + 1..)
    }
}

/// Returns the position of the last comma outside quotes.
fn last_comma(line: &[u8]) -> Option<usize> {
    let mut is_quoted = false;
    for (at, &byte) in line.iter().enumerate().rev() {
        match byte {
            b',' if !is_quoted => return Some(at),
            b'"' => is_quoted = !is_quoted || follows_backslash(line, at),
            _ => {}
        }
    }
    None
}

/// Whether a backslash precedes this position: a quote within quotes is then escaped. The quote that opens them follows `=`,
/// so backslashes need not be counted.
fn follows_backslash(line: &[u8], at: usize) -> bool {
    at.checked_sub(1).and_then(|before| line.get(before)) == Some(&b'\\')
}

/// Returns the address of an element's `for`; `None` if the element has two, or is malformed.
///
/// `For="[2001:db8::7]:443";proto=https` has 2001:db8::7.
fn address_in_element(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    let mut rest = Some(element);
    while let Some(text) = rest {
        let length = pair_length(text);
        rest = text.get(length + 1..);
        let pair = text.get(..length)?.trim_ascii();
        if pair.is_empty() {
            continue;
        }
        let (name, value) = name_and_value(pair)?;
        if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
            return None;
        }
    }
    address(found?)
}

/// Returns the length of the first pair, which ends at a semicolon outside quotes.
fn pair_length(text: &[u8]) -> usize {
    let mut is_quoted = false;
    let mut is_escaped = false;
    for (at, &byte) in text.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_quoted,
            b'"' => is_quoted = !is_quoted,
            b';' if !is_quoted => return at,
            _ => {}
        }
    }
    text.len()
}

/// Returns the two sides of a pair; `None` if one of them is malformed, for example because a quote is not closed.
///
/// A value without quotes may have colons and brackets: the RFC wants them quoted, but many proxies do not quote them.
fn name_and_value(pair: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = pair.iter().position(|&byte| byte == b'=')?;
    let (name, value) = (pair.get(..equals)?, pair.get(equals + 1..)?);
    let is_plain = |text: &[u8]| text.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'"');
    let is_well = is_plain(name) && !name.is_empty() && (is_plain(value) || is_quoted_text(value));
    is_well.then_some((name, value))
}

/// Whether the whole value is one quoted text.
fn is_quoted_text(value: &[u8]) -> bool {
    within_quotes(value).is_some_and(|inner| unescaped(inner).all(|byte| byte.is_some()))
}

fn within_quotes(value: &[u8]) -> Option<&[u8]> {
    value.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

/// Returns the address in a value, without its port: `203.0.113.9`, `203.0.113.9:5678`, `2001:db8::7`,
/// `[2001:db8::7]`, `[2001:db8::7]:443`, or one of these in quotes.
fn address(value: &[u8]) -> Option<IpAddr> {
    let value = value.trim_ascii();
    let Some(inner) = within_quotes(value) else { return address_and_port(value) };
    let mut plain = [0; MAX_VALUE_BYTES];
    let mut length = 0;
    for byte in unescaped(inner) {
        *plain.get_mut(length)? = byte?;
        length += 1;
    }
    address_and_port(plain.get(..length)?)
}

/// Returns the bytes without the backslashes that escape; `None` in place of a byte that is not allowed, such as a quote.
fn unescaped(inner: &[u8]) -> impl Iterator<Item = Option<u8>> {
    let mut bytes = inner.iter().copied();
    iter::from_fn(move || match bytes.next()? {
        b'"' => Some(None),
        b'\\' => Some(bytes.next()),
        byte => Some(Some(byte)),
    })
}

fn address_and_port(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?;
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(ip.to_canonical());
    }
    let (ip, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (ip, port) = rest.split_once(']')?;
            (IpAddr::from(ip.parse::<Ipv6Addr>().ok()?), port)
        }
        None => {
            let (ip, port) = text.split_at(text.find(':')?);
            (IpAddr::from(ip.parse::<Ipv4Addr>().ok()?), port)
        }
    };
    is_port(port).then(|| ip.to_canonical())
}

/// Whether the text is empty, a port, or a name that hides the port, as in RFC 7239: ``, `:443`, `:_hidden`.
fn is_port(text: &str) -> bool {
    let Some(port) = text.strip_prefix(':') else { return text.is_empty() };
    match port.strip_prefix('_') {
        Some(name) => {
            name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        }
        None => (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

#[cfg(test)]
mod tests;
