//! An open-addressing table: a byte for each slot says whether it may be the one.
//!
//! The bytes are apart from the slots, in groups of eight that are compared at once: those of a
//! million keys fit a processor's cache, so that a search waits for memory once, for its slot. The
//! size need not be a power of two: growing by a sixteenth keeps the table over nine tenths full.

use super::slot::Slot;

const GROUP: usize = 8;

const EMPTY: u8 = 0;
/// Was in use: a search has to go on past it.
const DELETED: u8 = 1;

#[derive(Debug, Default)]
pub(super) struct Table {
    tags: Box<[[u8; GROUP]]>,
    slots: Box<[[Slot; GROUP]]>,
    live: usize,
    deleted: usize,
}

/// Where a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    group: usize,
    slot: usize,
}

impl Table {
    pub(super) const BYTES_PER_SLOT: usize = size_of::<Slot>() + 1;

    pub(super) fn capacity(&self) -> usize {
        self.tags.len() * GROUP
    }

    pub(super) fn live(&self) -> usize {
        self.live
    }

    pub(super) fn has_deleted(&self) -> bool {
        self.deleted > 0
    }

    /// The next larger capacity with room for `more`.
    pub(super) fn grown_for(&self, more: usize) -> usize {
        let by_part = self.capacity() + self.capacity() / 16 + 1;
        let by_need = (self.live + self.deleted + more) * 32 / 31 + 1;
        by_part.max(by_need).next_multiple_of(GROUP)
    }

    /// Whether `more` fit; searches are short up to thirty-one parts of thirty-two.
    pub(super) fn has_room_for(&self, more: usize) -> bool {
        32 * (self.live + self.deleted + more) <= 31 * self.capacity()
    }

    #[inline]
    pub(super) fn find(&self, hash: u64, is: impl Fn(&Slot) -> bool) -> Option<At> {
        let tag = tag(hash);
        let count = self.tags.len();
        let mut at = first_group(hash, count);
        for _ in 0..count {
            let tags = u64::from_le_bytes(self.tags[at]);
            let mut candidates = zero_bytes(tags ^ repeated(tag));
            while candidates != 0 {
                let slot = candidates.trailing_zeros() as usize / 8;
                // The tag again: the comparison above may take the byte after a match for one.
                if self.tags[at][slot] == tag && is(&self.slots[at][slot]) {
                    return Some(At { group: at, slot });
                }
                candidates &= candidates - 1;
            }
            if zero_bytes(tags) != 0 {
                return None;
            }
            at = if at + 1 == count { 0 } else { at + 1 };
        }
        None
    }

    #[inline]
    pub(super) fn slot(&self, at: At) -> &Slot {
        &self.slots[at.group][at.slot]
    }

    #[inline]
    pub(super) fn slot_mut(&mut self, at: At) -> &mut Slot {
        &mut self.slots[at.group][at.slot]
    }

    /// The `nth` slot, if it is in use.
    pub(super) fn live_slot(&self, nth: usize) -> Option<(At, &Slot)> {
        let at = At { group: nth / GROUP, slot: nth % GROUP };
        (self.tags.get(at.group)?[at.slot] > DELETED).then(|| (at, &self.slots[at.group][at.slot]))
    }

    /// Puts a slot in that is not there yet; the caller has seen that it has room.
    pub(super) fn insert(&mut self, hash: u64, slot: Slot) {
        let count = self.tags.len();
        let first = first_group(hash, count);
        for at in (first..count).chain(0..first) {
            let Some(free) = self.tags[at].iter().position(|&tag| tag <= DELETED) else { continue };
            self.deleted -= usize::from(self.tags[at][free] == DELETED);
            self.live += 1;
            self.tags[at][free] = tag(hash);
            self.slots[at][free] = slot;
            return;
        }
    }

    pub(super) fn remove(&mut self, at: At) {
        let group = &mut self.tags[at.group];
        // A group with an empty slot already ends every search that comes to it.
        let ends_searches = group.contains(&EMPTY);
        group[at.slot] = if ends_searches { EMPTY } else { DELETED };
        self.deleted += usize::from(!ends_searches);
        self.live -= 1;
    }

    /// The same slots in a table of another size.
    pub(super) fn resized(&self, capacity: usize, hash: impl Fn(&Slot) -> u64) -> Table {
        let groups = capacity.div_ceil(GROUP);
        let mut table = Table {
            tags: vec![[EMPTY; GROUP]; groups].into_boxed_slice(),
            slots: vec![[Slot::default(); GROUP]; groups].into_boxed_slice(),
            live: 0,
            deleted: 0,
        };
        for (_, slot) in (0..self.capacity()).filter_map(|nth| self.live_slot(nth)) {
            table.insert(hash(slot), *slot);
        }
        table
    }
}

/// The group at which a search begins.
#[inline]
fn first_group(hash: u64, groups: usize) -> usize {
    // OK because the product of two 32-bit numbers, shifted back, is below the second.
    (((hash & 0xffff_ffff) * groups as u64) >> 32) as usize
}

/// What a slot in use is marked with: the top of its hash, and neither of the other marks.
#[inline]
fn tag(hash: u64) -> u8 {
    // OK because the shift leaves eight bits.
    ((hash >> 56) as u8).max(DELETED + 1)
}

#[inline]
fn repeated(byte: u8) -> u64 {
    u64::from(byte) * 0x0101_0101_0101_0101
}

/// The top bit of every byte that is zero, and perhaps of one just above such a byte.
#[inline]
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(repeated(1)) & !word & repeated(0x80)
}
