//! What a slot remembers of a key, in 16 bytes.

use std::hash::{BuildHasher, Hasher};

use ahash::RandomState;
use siphasher::sip128::SipHasher13;

const INLINE_BYTES: usize = 15;

/// Stands where an inline key has its length.
const IS_FINGERPRINT: u8 = 0xff;

/// A key of up to 15 bytes itself, of a longer one a keyed fingerprint of 120 bits.
///
/// Short keys cannot collide. For two long ones to do so by chance, 10 million keys have odds of
/// 1 in 10^22; by design, nobody can without the secret that this process drew at its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity([u64; 2]);

/// The secrets that make identities and places.
pub(super) struct Identify {
    fingerprint: SipHasher13,
    place: RandomState,
}

impl Identify {
    pub(super) fn new() -> Identify {
        let place = RandomState::new();
        let seed = RandomState::new();
        let fingerprint = SipHasher13::new_with_keys(seed.hash_one(0_u8), seed.hash_one(1_u8));
        Identify { fingerprint, place }
    }

    #[inline]
    pub(super) fn identity(&self, key: &[u8]) -> Identity {
        if key.len() > INLINE_BYTES { self.fingerprint(key) } else { Identity::inline(key) }
    }

    #[cold]
    fn fingerprint(&self, key: &[u8]) -> Identity {
        let mut bytes = self.fingerprint.hash(key).as_bytes();
        bytes[INLINE_BYTES] = IS_FINGERPRINT;
        let whole = u128::from_le_bytes(bytes);
        Identity([whole as u64, (whole >> 64) as u64])
    }

    /// Where in the store to look.
    #[inline]
    pub(super) fn hash(&self, scope: u32, identity: Identity) -> u64 {
        let mut hasher = self.place.build_hasher();
        let [low, high] = identity.0;
        hasher.write_u128(u128::from(high) << 64 | u128::from(low));
        hasher.write_u32(scope);
        hasher.finish()
    }
}

impl Identity {
    /// A key of at most 15 bytes, zeros after it, and its length in the last byte.
    ///
    /// The second half is read from the key's end, which spares a copy of unknown length.
    #[inline]
    fn inline(key: &[u8]) -> Identity {
        let length = (key.len() as u64) << 56;
        match (key.first_chunk::<8>(), key.last_chunk::<8>()) {
            (Some(first), Some(last)) => {
                let beyond = 8 * (16 - key.len() as u32);
                let rest = u64::from_le_bytes(*last).checked_shr(beyond).unwrap_or(0);
                Identity([u64::from_le_bytes(*first), rest | length])
            }
            _ => {
                let bytes = key.iter().rev();
                Identity([bytes.fold(0, |word, &byte| word << 8 | u64::from(byte)), length])
            }
        }
    }
}
