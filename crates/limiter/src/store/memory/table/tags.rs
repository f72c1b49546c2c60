//! The tags of a bucket: a byte for each slot, from its key's hash.

use std::ops::{Index, IndexMut};

use super::BUCKET_SLOTS;

/// The tag of a free slot.
pub(super) const EMPTY: u8 = 0;

/// The tag, while the table grows, of a slot in use that has not been moved yet.
pub(super) const UNMOVED: u8 = 1;

/// The bits of a word that belong to slots; the last byte does not.
const TAG_BITS: u64 = u64::MAX >> 8;

/// A tag for each slot of a bucket, and the number of displaced slots that passed this bucket because it was
/// full.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tags([u8; BUCKET_SLOTS + 1]);

impl Tags {
    /// Returns the slots with this tag, and possibly a slot in use with another tag.
    #[inline]
    pub(super) fn matching(self, tag: u8) -> impl Iterator<Item = usize> {
        let mut found = zero_bytes(self.word() ^ repeated(tag)) & TAG_BITS;
        std::iter::from_fn(move || {
            let slot = (found != 0).then(|| found.trailing_zeros() as usize / 8);
            found &= found.wrapping_sub(1);
            slot
        })
    }

    pub(super) fn first_free(self) -> Option<usize> {
        let free = zero_bytes(self.word() & !repeated(UNMOVED)) & TAG_BITS;
        (free != 0).then(|| free.trailing_zeros() as usize / 8)
    }

    /// Returns how many displaced slots passed this bucket; 255 means 255 or more.
    #[inline]
    pub(super) fn passed_by(self) -> u8 {
        self.0[BUCKET_SLOTS]
    }

    pub(super) fn count_passing(&mut self) {
        self.0[BUCKET_SLOTS] = self.passed_by().saturating_add(1);
    }

    /// A count of 255 is not decreased until the table grows, because the true number is unknown.
    pub(super) fn uncount_passing(&mut self) {
        if self.passed_by() < u8::MAX {
            self.0[BUCKET_SLOTS] = self.passed_by().saturating_sub(1);
        }
    }

    pub(super) fn unmoved(self) -> Tags {
        let mut tags = self.0.map(|tag| if tag == EMPTY { EMPTY } else { UNMOVED });
        tags[BUCKET_SLOTS] = 0;
        Tags(tags)
    }

    #[inline]
    fn word(self) -> u64 {
        u64::from_le_bytes(self.0)
    }
}

impl Index<usize> for Tags {
    type Output = u8;

    fn index(&self, slot: usize) -> &u8 {
        &self.0[slot]
    }
}

impl IndexMut<usize> for Tags {
    fn index_mut(&mut self, slot: usize) -> &mut u8 {
        &mut self.0[slot]
    }
}

/// Returns the tag of a slot in use: the lowest byte of its hash, but neither of the two special tags. In a table of up
/// to 2^24 chunks, the bits above this byte select the home bucket.
#[inline]
pub(super) fn tag(hash: u64) -> u8 {
    // OK because only the lowest eight bits are wanted.
    (hash as u8).max(UNMOVED + 1)
}

/// Returns a word with the top bit set in every byte that is 0 in `word`, and possibly in a byte that is 1 and above
/// such a byte.
#[inline]
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(repeated(1)) & !word & repeated(0x80)
}

#[inline]
fn repeated(byte: u8) -> u64 {
    u64::from(byte) * 0x0101_0101_0101_0101
}
