//! The structured fields (RFC 9651) that the headers need: strings with whole numbers as parameters.

use ::http::header::HeaderValue;
use bytes::Bytes;
use tollgate_core::Limit;

/// The longest name, with its quotes and escapes.
const MAX_NAME_BYTES: usize = 96;

/// A name, two numbers of at most 15 digits, and the characters between them.
const MAX_ITEM_BYTES: usize = MAX_NAME_BYTES + 48;

/// The largest whole number of a structured field.
const MAX_NUMBER: u64 = 999_999_999_999_999;

/// A name in quotes. Characters that are not printable become `%` and two hex digits; long names are cut.
#[derive(Clone, Debug)]
pub(super) struct QuotedName {
    bytes: Box<[u8]>,
}

impl QuotedName {
    pub(super) fn new(name: &str) -> QuotedName {
        let mut bytes = vec![b'"'];
        for byte in name.bytes() {
            let mut one = Vec::with_capacity(3);
            match byte {
                b'"' | b'\\' => one.extend_from_slice(&[b'\\', byte]),
                b' '..=b'~' => one.push(byte),
                _ => one.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            }
            // With the closing quote.
            if bytes.len() + one.len() + 1 > MAX_NAME_BYTES {
                break;
            }
            bytes.extend_from_slice(&one);
        }
        bytes.push(b'"');
        QuotedName { bytes: bytes.into() }
    }
}

/// A name with its parameters.
pub(super) struct FieldItem {
    bytes: [u8; MAX_ITEM_BYTES],
    len: usize,
}

impl FieldItem {
    /// Writes `"free";q=60;w=60`: the limit's size, and its window in seconds. A concurrency limit has no window, but a
    /// unit of its own: `"jobs";q=10;qu="concurrent-requests"`.
    pub(super) fn policy(name: &QuotedName, size: u64, limit: &Limit) -> FieldItem {
        let mut item = FieldItem::new(name);
        item.push(b";q=", size);
        match limit {
            Limit::Concurrency(_) => item.extend(b";qu=\"concurrent-requests\""),
            limit => item.push(b";w=", seconds(limit.bound().interval_us).max(1)),
        }
        item
    }

    /// Writes `"free";r=12;t=5`: the remaining units, and the seconds until more remain.
    pub(super) fn standing(
        name: &QuotedName,
        remaining: u64,
        more_after_us: Option<u64>,
    ) -> FieldItem {
        let mut item = FieldItem::new(name);
        item.push(b";r=", remaining);
        if let Some(more_after_us) = more_after_us {
            item.push(b";t=", seconds(more_after_us));
        }
        item
    }

    fn new(name: &QuotedName) -> FieldItem {
        let mut item = FieldItem { bytes: [0; MAX_ITEM_BYTES], len: 0 };
        item.extend(&name.bytes);
        item
    }

    fn push(&mut self, parameter: &[u8], number: u64) {
        self.extend(parameter);
        self.extend(itoa::Buffer::new().format(number.min(MAX_NUMBER)).as_bytes());
    }

    fn extend(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        // It always fits: the buffer has room for a name and two parameters.
        if let Some(place) = self.bytes.get_mut(self.len..end) {
            place.copy_from_slice(bytes);
            self.len = end;
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Makes [`FieldItem::standing`] of one limit. The constant beginning, `"free";r=`, was written before.
#[derive(Clone, Debug)]
pub(super) struct PreparedItem {
    start: Box<[u8]>,
}

impl PreparedItem {
    pub(super) fn new(name: &QuotedName) -> PreparedItem {
        PreparedItem { start: [&name.bytes, &b";r="[..]].concat().into() }
    }

    /// Returns the value, in one allocation that is never moved.
    pub(super) fn value(&self, remaining: u64, more_after_us: Option<u64>) -> Option<HeaderValue> {
        let mut buffers = [itoa::Buffer::new(); 2];
        let [remaining_text, more_text] = &mut buffers;
        let remaining = remaining_text.format(remaining.min(MAX_NUMBER)).as_bytes();
        let more = more_after_us
            .map(|more_us| more_text.format(seconds(more_us).min(MAX_NUMBER)).as_bytes());
        let parts = match more {
            Some(more) => [&*self.start, remaining, b";t=", more],
            None => [&*self.start, remaining, b"", b""],
        };
        // `concat` allocates exactly the length, so `Bytes` takes the vector over without a copy.
        HeaderValue::from_maybe_shared(Bytes::from(parts.concat())).ok()
    }
}

/// Whole seconds, rounded up.
pub(super) fn seconds(us: u64) -> u64 {
    us.div_ceil(1_000_000)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn policy_has_the_window_or_the_unit_of_a_limit() {
        let name = QuotedName::new(&"\u{e9}".repeat(90));
        for (limit, parameters) in [
            ("fixed-window limit=60 window=60s", ";q=60;w=60"),
            ("token-bucket capacity=60 refill=1/s", ";q=60;w=60"),
            ("concurrency limit=60 for=60s", ";q=60;qu=\"concurrent-requests\""),
        ] {
            let item = FieldItem::policy(&name, 60, &limit.parse().unwrap());
            let item = std::str::from_utf8(item.as_bytes()).unwrap();
            assert!(item.ends_with(&format!("\"{parameters}")), "{item}");
        }
    }

    #[test]
    fn standings_are_written_like_items() {
        let name = QuotedName::new("per \"ip\"");
        let standings = PreparedItem::new(&name);
        for remaining in [0, 1, 999_999, u64::MAX] {
            for more_us in [None, Some(0), Some(1), Some(5_000_001), Some(u64::MAX)] {
                let item = FieldItem::standing(&name, remaining, more_us);
                let value = standings.value(remaining, more_us);
                assert_eq!(value.as_ref().map(HeaderValue::as_bytes), Some(item.as_bytes()));
            }
        }
    }
}
