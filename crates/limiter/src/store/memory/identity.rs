//! The identity of a slot's owner, in 16 bytes: a key, and a part of its scope's index.

use std::hash::{BuildHasher, Hasher};

use ahash::RandomState;
use siphasher::sip128::SipHasher13;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const INLINE_BYTES: usize = 15;

/// The number of bits of a scope's index that an identity holds.
pub(super) const SCOPE_BITS: u32 = 4;

/// The number of bits of a scope's index that a word of the slot holds.
pub(super) const SLOT_SCOPE_BITS: u32 = 11;

/// The largest index of a scope that fits into a slot.
pub(super) const MAX_SCOPE: u32 = (1 << (SCOPE_BITS + SLOT_SCOPE_BITS)) - 1;

/// The identity of a key in a slot: a key of 1 to 15 bytes as it is; for any other key a keyed fingerprint of 120
/// bits.
///
/// Short keys cannot collide. Among 10 million long keys, the probability that two collide is 1 in 10^22.
/// A collision cannot be produced on purpose without the secret that this process drew at its start.
///
/// In the last byte, the lower half is the length of a key that is kept as it is, and 0 for a fingerprint;
/// the upper half is a part of the scope's index.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    FromBytes,
    Immutable,
    IntoBytes,
    KnownLayout,
)]
#[repr(transparent)]
pub(super) struct KeyIdentity(pub(super) [u64; 2]);

/// A scope's index as slots hold it: one part in the identity, above the key, and one part in a word of the
/// slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScopeMark {
    in_identity: u64,
    pub(super) in_slot: u32,
}

impl ScopeMark {
    pub(super) fn new(index: u32) -> ScopeMark {
        let in_identity = u64::from(index >> SLOT_SCOPE_BITS) << (64 - SCOPE_BITS);
        ScopeMark { in_identity, in_slot: index & ((1 << SLOT_SCOPE_BITS) - 1) }
    }
}

/// The secrets that identities and hashes are made with.
pub(super) struct KeyHasher {
    fingerprint: SipHasher13,
    place: RandomState,
}

impl KeyHasher {
    pub(super) fn new() -> KeyHasher {
        let place = RandomState::new();
        let seed = RandomState::new();
        let fingerprint = SipHasher13::new_with_keys(seed.hash_one(0_u8), seed.hash_one(1_u8));
        KeyHasher { fingerprint, place }
    }

    /// Returns the identity of a key, without a scope.
    #[inline]
    pub(super) fn identity(&self, key: &[u8]) -> KeyIdentity {
        KeyIdentity(match key.len() {
            1..=INLINE_BYTES => inline(key),
            _ => self.fingerprint(key),
        })
    }

    #[cold]
    fn fingerprint(&self, key: &[u8]) -> [u64; 2] {
        let mut bytes = self.fingerprint.hash(key).as_bytes();
        bytes[INLINE_BYTES] = 0;
        let whole = u128::from_le_bytes(bytes);
        [whole as u64, (whole >> 64) as u64]
    }

    /// Returns the hash of a key and its scope's salt, from which the key's place in the store is computed. It is
    /// the same for all limits of one name.
    #[inline]
    pub(super) fn hash(&self, key: KeyIdentity, salt: u64) -> u64 {
        debug_assert_eq!(key, key.key(), "the identity still has a scope");
        let KeyIdentity([low, high]) = key;
        let mut hasher = self.place.build_hasher();
        hasher.write_u128(u128::from(high) << 64 | u128::from(low ^ salt));
        hasher.finish()
    }

    /// Returns the salt that separates the keys of one name from another name's. Without the secret, no
    /// client can choose keys of two names that collide.
    pub(super) fn salt(&self, name: &str) -> u64 {
        self.place.hash_one(name)
    }
}

impl KeyIdentity {
    /// Returns the key without its scope.
    pub(super) fn key(self) -> KeyIdentity {
        let KeyIdentity([low, high]) = self;
        KeyIdentity([low, high & (u64::MAX >> SCOPE_BITS)])
    }

    /// Adds a scope to a key that has none.
    #[inline]
    pub(super) fn with_scope(self, mark: ScopeMark) -> KeyIdentity {
        let KeyIdentity([low, high]) = self;
        KeyIdentity([low, high | mark.in_identity])
    }

    /// Returns the upper bits of the scope's index.
    pub(super) fn scope(self) -> u32 {
        // OK because the shift leaves 4 bits.
        (self.0[1] >> (64 - SCOPE_BITS)) as u32
    }
}

/// Returns a key of at most 15 bytes, padded with zeros, with its length in the last byte.
///
/// The second half is read from the key's end, which avoids a copy of unknown length.
#[inline]
fn inline(key: &[u8]) -> [u64; 2] {
    let length = (key.len() as u64) << 56;
    match (key.first_chunk::<8>(), key.last_chunk::<8>()) {
        (Some(first), Some(last)) => {
            let beyond = 8 * (16 - key.len() as u32);
            let rest = u64::from_le_bytes(*last).checked_shr(beyond).unwrap_or(0);
            [u64::from_le_bytes(*first), rest | length]
        }
        _ => {
            let bytes = key.iter().rev();
            [bytes.fold(0, |word, &byte| word << 8 | u64::from(byte)), length]
        }
    }
}
