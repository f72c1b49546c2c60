//! The key of a lease: a name and a client's key.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::names::Name;

/// The name of a limit and a client's key, with their hash.
#[derive(Clone, Debug)]
pub(crate) struct LeaseKey {
    pub(super) name: Arc<Name>,
    pub(super) key: Arc<[u8]>,
    pub(super) hash: u64,
}

/// The same, borrowed from a check, so that a lookup copies nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct BorrowedKey<'k> {
    pub(super) name: &'k Arc<Name>,
    pub(super) key: &'k [u8],
    pub(super) hash: u64,
}

/// Either of the two, as the lookup sees it.
pub(super) trait KeyParts {
    fn parts(&self) -> BorrowedKey<'_>;
}

impl KeyParts for LeaseKey {
    fn parts(&self) -> BorrowedKey<'_> {
        BorrowedKey { name: &self.name, key: &self.key, hash: self.hash }
    }
}

impl KeyParts for BorrowedKey<'_> {
    fn parts(&self) -> BorrowedKey<'_> {
        *self
    }
}

impl PartialEq for dyn KeyParts + '_ {
    fn eq(&self, other: &Self) -> bool {
        let (one, other) = (self.parts(), other.parts());
        one.hash == other.hash && one.name.number() == other.name.number() && one.key == other.key
    }
}

impl Eq for dyn KeyParts + '_ {}

impl Hash for dyn KeyParts + '_ {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.parts().hash);
    }
}

impl ToOwned for dyn KeyParts + '_ {
    type Owned = LeaseKey;

    fn to_owned(&self) -> LeaseKey {
        let BorrowedKey { name, key, hash } = self.parts();
        LeaseKey { name: Arc::clone(name), key: key.into(), hash }
    }
}

impl<'k> Borrow<dyn KeyParts + 'k> for LeaseKey {
    fn borrow(&self) -> &(dyn KeyParts + 'k) {
        self
    }
}

impl PartialEq for LeaseKey {
    fn eq(&self, other: &LeaseKey) -> bool {
        let (one, other): (&dyn KeyParts, &dyn KeyParts) = (self, other);
        one == other
    }
}

impl Eq for LeaseKey {}

impl Hash for LeaseKey {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.hash);
    }
}
