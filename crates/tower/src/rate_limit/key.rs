//! The key by which a request is limited.

use std::borrow::Cow;

use super::settings::LayerSettings;
use tollgate_identity::{ClientAddress, PREFLIGHT, RequestHead, UNKNOWN_ADDRESS};
use tollgate_rules::push_part;

impl LayerSettings {
    /// Returns the key by which a request is limited: `ip=203.0.113.9`.
    #[inline]
    pub(super) fn key_of<'h>(&self, head: &'h RequestHead<'_>) -> Cow<'h, [u8]> {
        match head.address() {
            // The usual key needs no escaping, and no allocation.
            Some(address) if self.key.is_none() && !head.is_preflight() => address.as_key().into(),
            address => self.written_key(head, address).into(),
        }
    }

    fn written_key(&self, head: &RequestHead<'_>, address: Option<&ClientAddress>) -> Vec<u8> {
        match self.key.as_ref().and_then(|key| key(head)) {
            Some(own) => key_of("key", &own, head),
            None => key_of("ip", address.map_or(UNKNOWN_ADDRESS, ClientAddress::as_str), head),
        }
    }
}

/// Writes a key such as `key=alice` or `ip=203.0.113.9,preflight=`.
fn key_of(name: &str, value: &str, head: &RequestHead<'_>) -> Vec<u8> {
    let mut key = Vec::new();
    push_part(&mut key, 0, name, value);
    if head.is_preflight() {
        push_part(&mut key, 0, PREFLIGHT, "");
    }
    key
}
