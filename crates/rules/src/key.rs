//! The keys of rules, made of a request's attributes.

/// Appends a part to the key that begins at `from`: `api_key=k_123`, and after another part
/// `ip=203.0.113.9,path=/login`.
///
/// No two lists of attributes make the same key. Separators that are part of a name or a value are written as `%` and
/// two hex digits: the comma between parts, and in a name also the `=` before its value.
pub fn push_part(key: &mut Vec<u8>, from: usize, name: &str, value: &str) {
    if key.len() > from {
        key.push(b',');
    }
    escape(key, name, b"%,=");
    key.push(b'=');
    escape(key, value, b"%,");
}

/// Returns the key without the part that marks preflight requests. Overrides are looked up without it, because they
/// apply to preflight requests as well.
pub(super) fn without_preflight(key: &[u8]) -> &[u8] {
    match key.strip_suffix(b"preflight=") {
        Some([]) => &[],
        Some([own @ .., b',']) => own,
        _ => key,
    }
}

fn escape(into: &mut Vec<u8>, text: &str, escaped: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut plain = text.as_bytes();
    while let Some(at) = plain.iter().position(|byte| escaped.contains(byte)) {
        let byte = usize::from(plain[at]);
        into.extend_from_slice(&plain[..at]);
        into.extend_from_slice(&[b'%', HEX[byte >> 4], HEX[byte & 15]]);
        plain = &plain[at + 1..];
    }
    into.extend_from_slice(plain);
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn key(parts: &[(&str, &str)]) -> Vec<u8> {
        let mut key = Vec::new();
        parts.iter().for_each(|(name, value)| push_part(&mut key, 0, name, value));
        key
    }

    #[test]
    fn key_is_readable() {
        assert_eq!(key(&[("ip", "2001:db8::/56")]), b"ip=2001:db8::/56");
        assert_eq!(key(&[("api_key", "a,b=%"), ("path", "/x=1")]), b"api_key=a%2Cb=%25,path=/x=1");
        assert_eq!(key(&[]), b"");
    }

    #[test]
    fn key_loses_the_part_of_a_preflight() {
        for (key, want) in [
            (&b"ip=203.0.113.9,preflight="[..], &b"ip=203.0.113.9"[..]),
            (b"ip=203.0.113.9", b"ip=203.0.113.9"),
            (b"preflight=", b""),
            (b"", b""),
            (b"user=preflight=", b"user=preflight="),
        ] {
            assert_eq!(without_preflight(key), want);
        }
    }

    #[test]
    fn keys_differ_for_different_attributes() {
        let texts = ["", "a", "b", "=", ",", "%", "a=b", "a,b=a", "%2C", "a%3D", ",b="];
        let mut seen: HashMap<Vec<u8>, Vec<(&str, &str)>> = HashMap::new();
        let pairs: Vec<_> = texts.iter().flat_map(|a| texts.map(|b| (*a, b))).collect();
        let singles = pairs.iter().map(|&pair| vec![pair]);
        let doubles = pairs.iter().flat_map(|&one| pairs.iter().map(move |&two| vec![one, two]));
        for parts in singles.chain(doubles) {
            if let Some(other) = seen.insert(key(&parts), parts.clone()) {
                assert_eq!(other, parts);
            }
        }
    }
}
