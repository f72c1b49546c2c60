//! The registry of names. Every name has one number, in memory as on a store across the network.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use ahash::RandomState;
use parking_lot::RwLock;

use crate::error::Error;

/// The most names in use at a time on a store across the network. The memory store has its own bound, on limits.
const MAX_NAMES: usize = 32_768;

/// Dropped names are removed when the registry has grown to this size, and again whenever it has doubled.
const FIRST_SWEEP: usize = 1_024;

/// The name of a limit, as a store needs it.
#[derive(Debug)]
pub struct Name {
    number: u64,
    text: Box<str>,
    encoded: Box<[u8]>,
    text_hash: u64,
}

impl Name {
    /// Returns a name with a number that no other name of this process has. `encoded` is the store's encoding of the
    /// text ([`RemoteStore::encode_name`](crate::store::RemoteStore::encode_name)).
    pub fn new(text: &str, encoded: impl Into<Box<[u8]>>) -> Name {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        static HASHER: OnceLock<RandomState> = OnceLock::new();
        let text_hash = HASHER.get_or_init(RandomState::new).hash_one(text);
        Name { number, text: text.into(), encoded: encoded.into(), text_hash }
    }

    /// Returns a number that no other name of this process has, even after this name was dropped.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns a keyed hash of the text. Unlike the [number](Self::number), it is the same when a name that was dropped is
    /// used again.
    pub(crate) fn text_hash(&self) -> u64 {
        self.text_hash
    }

    /// Returns the name as the caller wrote it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the store's encoding of the name.
    pub fn encoded(&self) -> &[u8] {
        &self.encoded
    }
}

/// The names of one limiter. A name that is not in use is forgotten.
#[derive(Debug, Default)]
pub(crate) struct NameRegistry {
    registered: RwLock<RegisteredNames>,
}

#[derive(Debug)]
struct RegisteredNames {
    by_text: HashMap<Box<str>, Weak<Name>, RandomState>,
    /// The size at which dropped names are removed next.
    sweep_at: usize,
}

impl Default for RegisteredNames {
    fn default() -> RegisteredNames {
        RegisteredNames { by_text: HashMap::default(), sweep_at: FIRST_SWEEP }
    }
}

impl NameRegistry {
    /// Returns the name with this text, and registers it if it is not in use. The number of names is not
    /// bounded.
    pub(crate) fn get(&self, text: &str, encode: impl FnOnce() -> Box<[u8]>) -> Arc<Name> {
        if let Some(name) = self.registered.read().find(text) {
            return name;
        }
        let mut registered = self.registered.write();
        registered.find(text).unwrap_or_else(|| registered.add(text, encode()))
    }

    /// Does the same as [`get`](Self::get), but returns an error if there are 32,768 other names already.
    pub(crate) fn get_bounded(
        &self,
        text: &str,
        encode: impl FnOnce() -> Box<[u8]>,
    ) -> Result<Arc<Name>, Error> {
        if let Some(name) = self.registered.read().find(text) {
            return Ok(name);
        }
        let mut registered = self.registered.write();
        if registered.by_text.len() >= MAX_NAMES {
            registered.sweep();
        }
        let count = registered.by_text.len();
        match registered.find(text) {
            Some(name) => Ok(name),
            None if count >= MAX_NAMES => Err(Error::TooManyLimits { count }),
            None => Ok(registered.add(text, encode())),
        }
    }
}

impl RegisteredNames {
    fn find(&self, text: &str) -> Option<Arc<Name>> {
        self.by_text.get(text)?.upgrade()
    }

    fn add(&mut self, text: &str, encoded: Box<[u8]>) -> Arc<Name> {
        if self.by_text.len() >= self.sweep_at {
            self.sweep();
        }
        let name = Arc::new(Name::new(text, encoded));
        self.by_text.insert(text.into(), Arc::downgrade(&name));
        name
    }

    fn sweep(&mut self) {
        self.by_text.retain(|_, name| name.strong_count() > 0);
        self.sweep_at = FIRST_SWEEP.max(2 * self.by_text.len());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn plain(names: &NameRegistry, text: &str) -> Arc<Name> {
        names.get(text, Box::default)
    }

    #[test]
    fn name_keeps_its_number_while_it_is_in_use() {
        let names = NameRegistry::default();
        let api = plain(&names, "api");
        assert_eq!(plain(&names, "api").number(), api.number());
        assert_ne!(plain(&names, "logins").number(), api.number());
        let number = api.number();
        drop(api);
        assert_ne!(plain(&names, "api").number(), number);
    }

    #[test]
    fn dropped_names_are_removed() {
        let names = NameRegistry::default();
        let held = plain(&names, "held");
        for nth in 0..10 * FIRST_SWEEP {
            plain(&names, &nth.to_string());
        }
        assert!(names.registered.read().by_text.len() <= FIRST_SWEEP);
        assert_eq!(plain(&names, "held").number(), held.number());
    }

    #[test]
    fn names_in_use_are_bounded() {
        let names = NameRegistry::default();
        let bounded = |text: &str| names.get_bounded(text, Box::default);
        let mut held: Vec<_> =
            (0..MAX_NAMES).map(|nth| bounded(&nth.to_string()).unwrap()).collect();
        let refused = bounded("one more").unwrap_err();
        assert_eq!(refused, Error::TooManyLimits { count: MAX_NAMES });
        assert_eq!(bounded("7").unwrap().number(), held[7].number());
        held.pop();
        assert_eq!(bounded("one more").unwrap().text(), "one more");
    }
}
