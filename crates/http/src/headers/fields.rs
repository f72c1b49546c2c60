//! Structured fields (RFC 9651), as far as they are needed here: texts with whole numbers as parameters.

use ::http::header::HeaderValue;
use bytes::Bytes;
use tollgate_core::Limit;

/// The longest name, as it is written.
const MAX_NAME_BYTES: usize = 96;

/// A name, two numbers of at most 15 digits, and what is between them.
const MAX_ITEM_BYTES: usize = MAX_NAME_BYTES + 48;

/// The largest whole number that such fields can have.
const MAX_NUMBER: u64 = 999_999_999_999_999;

/// A name in quotes: letters that print, others as `%` and two hex digits. Long ones are cut.
#[derive(Clone, Debug)]
pub(super) struct Quoted {
    bytes: Box<[u8]>,
}

impl Quoted {
    pub(super) fn new(name: &str) -> Quoted {
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
        Quoted { bytes: bytes.into() }
    }
}

/// A name with its parameters.
pub(super) struct Item {
    bytes: [u8; MAX_ITEM_BYTES],
    len: usize,
}

impl Item {
    /// `"free";q=60;w=60`: so much in so many seconds.
    pub(super) fn policy(name: &Quoted, size: u64, limit: &Limit) -> Item {
        let window_us = limit.bound().interval_us;
        let mut item = Item::new(name);
        item.push(b";q=", size);
        item.push(b";w=", seconds(window_us).max(1));
        item
    }

    /// `"free";r=12;t=5`: so much is left, and there is more in so many seconds.
    pub(super) fn standing(name: &Quoted, remaining: u64, more_after_us: Option<u64>) -> Item {
        let mut item = Item::new(name);
        item.push(b";r=", remaining);
        if let Some(more_after_us) = more_after_us {
            item.push(b";t=", seconds(more_after_us));
        }
        item
    }

    fn new(name: &Quoted) -> Item {
        let mut item = Item { bytes: [0; MAX_ITEM_BYTES], len: 0 };
        item.extend(&name.bytes);
        item
    }

    fn push(&mut self, parameter: &[u8], number: u64) {
        self.extend(parameter);
        self.extend(itoa::Buffer::new().format(number.min(MAX_NUMBER)).as_bytes());
    }

    fn extend(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        // It always fits: a name and two parameters have their place.
        if let Some(place) = self.bytes.get_mut(self.len..end) {
            place.copy_from_slice(bytes);
            self.len = end;
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// [`Item::standing`] of one limit, whose beginning is written already: `"free";r=`.
#[derive(Clone, Debug)]
pub(super) struct Standings {
    start: Box<[u8]>,
}

impl Standings {
    pub(super) fn new(name: &Quoted) -> Standings {
        Standings { start: [&name.bytes, &b";r="[..]].concat().into() }
    }

    /// In one allocation, and never moved.
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
        // As long as it will be: what has no room to spare becomes a value as it is.
        HeaderValue::from_maybe_shared(Bytes::from(parts.concat())).ok()
    }
}

/// Whole seconds, rounded up.
pub(super) fn seconds(us: u64) -> u64 {
    us.div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standings_are_written_like_items() {
        let name = Quoted::new("per \"ip\"");
        let standings = Standings::new(&name);
        for remaining in [0, 1, 999_999, u64::MAX] {
            for more_us in [None, Some(0), Some(1), Some(5_000_001), Some(u64::MAX)] {
                let item = Item::standing(&name, remaining, more_us);
                let value = standings.value(remaining, more_us);
                assert_eq!(value.as_ref().map(HeaderValue::as_bytes), Some(item.as_bytes()));
            }
        }
    }
}
