//! With whom a request is limited.

use super::settings::Settings;
use crate::http::{ClientAddress, NOWHERE, PREFLIGHT, RequestHead};
use crate::rules::push_part;

impl Settings {
    /// With whom a request is limited: `ip=203.0.113.9`.
    pub(super) fn with_key<T>(&self, head: &RequestHead<'_>, then: impl FnOnce(&[u8]) -> T) -> T {
        let own = self.key.as_ref().and_then(|key| key(head));
        match own {
            None if !head.is_preflight() => then(AddressKey::of(head).as_bytes()),
            None => {
                let address = head.address().map_or(NOWHERE, ClientAddress::as_str);
                then(&key_of("ip", address, head))
            }
            Some(own) => then(&key_of("key", &own, head)),
        }
    }
}

/// `key=alice`, or `ip=203.0.113.9,preflight=`.
fn key_of(name: &str, value: &str, head: &RequestHead<'_>) -> Vec<u8> {
    let mut key = Vec::new();
    push_part(&mut key, 0, name, value);
    if head.is_preflight() {
        push_part(&mut key, 0, PREFLIGHT, "");
    }
    key
}

/// The usual key, which needs no escaping, without an allocation.
struct AddressKey {
    bytes: [u8; AddressKey::MAX_BYTES],
    len: usize,
}

impl AddressKey {
    const NAME: &[u8] = b"ip=";
    const MAX_BYTES: usize = 64;

    fn of(head: &RequestHead<'_>) -> AddressKey {
        let mut key = AddressKey { bytes: [0; AddressKey::MAX_BYTES], len: 0 };
        let address = head.address().map_or(NOWHERE.as_bytes(), ClientAddress::as_bytes);
        for part in [AddressKey::NAME, address] {
            let end = key.len + part.len();
            // It always fits: no address is longer than 44 letters.
            if let Some(place) = key.bytes.get_mut(key.len..end) {
                place.copy_from_slice(part);
                key.len = end;
            }
        }
        key
    }

    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}
