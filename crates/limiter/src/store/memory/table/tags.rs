//! A byte for each slot of a bucket.

use std::ops::{Index, IndexMut};

use super::BUCKET_SLOTS;

/// Of a slot that is free.
pub(super) const EMPTY: u8 = 0;

/// In use, but not yet moved to its home among more buckets.
pub(super) const UNSETTLED: u8 = 1;

/// A word's bits that belong to slots; the last byte does not.
const TAG_BITS: u64 = u64::MAX >> 8;

/// A byte for each slot of a bucket, and how many slots found no room here and went further.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tags([u8; BUCKET_SLOTS + 1]);

impl Tags {
    /// The slots with this tag, and perhaps one that has another and is in use.
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
        let free = zero_bytes(self.word() & !repeated(UNSETTLED)) & TAG_BITS;
        (free != 0).then(|| free.trailing_zeros() as usize / 8)
    }

    /// The slots that found no room here; so many at most as a byte can say.
    #[inline]
    pub(super) fn gone_further(self) -> u8 {
        self.0[BUCKET_SLOTS]
    }

    pub(super) fn one_more_gone_further(&mut self) {
        self.0[BUCKET_SLOTS] = self.gone_further().saturating_add(1);
    }

    /// From the most that a byte can say there is no way back until the table grows.
    pub(super) fn one_fewer_gone_further(&mut self) {
        if self.gone_further() < u8::MAX {
            self.0[BUCKET_SLOTS] = self.gone_further().saturating_sub(1);
        }
    }

    pub(super) fn unsettled(self) -> Tags {
        let mut tags = self.0.map(|tag| if tag == EMPTY { EMPTY } else { UNSETTLED });
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

/// What a slot in use is marked with: the end of its hash, and neither of the other marks. Its home comes
/// from the bits above that, up to 2^24 chunks.
#[inline]
pub(super) fn tag(hash: u64) -> u8 {
    // The lowest eight bits are what is meant.
    (hash as u8).max(UNSETTLED + 1)
}

/// The top bit of every byte that is 0, and of one that is 1 and above such a byte.
#[inline]
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(repeated(1)) & !word & repeated(0x80)
}

#[inline]
fn repeated(byte: u8) -> u64 {
    u64::from(byte) * 0x0101_0101_0101_0101
}
