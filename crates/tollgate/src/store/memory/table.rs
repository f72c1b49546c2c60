//! An open-addressing table: buckets of seven slots, each with a byte that says whether it may be
//! the one.
//!
//! The bytes lie apart from the slots, those of all tables side by side: a million of them fit a
//! processor's cache, so that a search waits for memory once, for its slot. The table grows by a
//! few buckets at a time, in place: a slot's home is a share of the buckets, so any number of them
//! will do, and the slots that were there move over one by one. Nothing is ever given back, and so
//! the allocator's heap has no holes.

use std::mem;

use super::Place;
use super::identity::Identity;
use super::slot::Slot;

const BUCKET_SLOTS: usize = 7;
const CHUNK_BUCKETS: usize = 4;

const EMPTY: u8 = 0;
/// In use, but not yet moved to its home among more buckets.
const UNSETTLED: u8 = 1;

/// A word's bits that belong to slots; the last byte does not.
const TAG_BITS: u64 = u64::MAX >> 8;

#[derive(Debug)]
pub(super) struct Table {
    tags: Vec<Tags>,
    #[allow(clippy::vec_box)] // so that they stay where they are
    chunks: Vec<Box<Chunk>>,
    live: usize,
}

/// What the table grows by: the slots of so many buckets.
type Chunk = [[Slot; BUCKET_SLOTS]; CHUNK_BUCKETS];

/// A byte for each slot of a bucket, and how many slots found no room here and went further.
#[derive(Clone, Copy, Debug, Default)]
struct Tags([u8; BUCKET_SLOTS + 1]);

/// Where a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    bucket: usize,
    slot: usize,
}

impl Table {
    pub(super) const CHUNK_SLOTS: usize = CHUNK_BUCKETS * BUCKET_SLOTS;

    /// With what the allocator takes, and its share of the lists, should they have to grow.
    pub(super) const CHUNK_BYTES: usize =
        size_of::<Chunk>() + 16 + CHUNK_BUCKETS * size_of::<Tags>() + size_of::<usize>();

    /// What the lists of a table [with room for](Self::with_room_for) so many chunks take.
    pub(super) fn list_bytes(chunks: usize) -> usize {
        chunks * (CHUNK_BUCKETS * size_of::<Tags>() + size_of::<usize>()) + 4 * 16
    }

    /// An empty table, which may grow to `chunks` without moving what finds them.
    pub(super) fn with_room_for(chunks: usize) -> Table {
        let tags = Vec::with_capacity(chunks * CHUNK_BUCKETS);
        Table { tags, chunks: Vec::with_capacity(chunks), live: 0 }
    }

    pub(super) fn capacity(&self) -> usize {
        self.chunks.len() * Self::CHUNK_SLOTS
    }

    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// The chunks it has to grow by for `more` to fit; a thirty-second of what it has at least.
    pub(super) fn chunks_for(&self, more: usize) -> usize {
        let slots = (self.live + more) * 32 / 31 + 1;
        let missing = slots.saturating_sub(self.capacity()).div_ceil(Self::CHUNK_SLOTS);
        missing.max(self.chunks.len() / 32).max(1)
    }

    /// Whether `more` fit; searches are short up to thirty-one parts of thirty-two.
    pub(super) fn has_room_for(&self, more: usize) -> bool {
        32 * (self.live + more) <= 31 * self.capacity()
    }

    /// The slot of this hash and owner.
    #[inline(always)]
    pub(super) fn find_mut(&mut self, place: Place) -> Option<&mut Slot> {
        let Place { hash, identity, scope, .. } = place;
        let home = home(hash, self.tags.len());
        // As a rule it is at home, and the first there that may be the one. That much is part of the
        // caller; the search that it saves is not.
        if let Some(slot) = self.tags.get(home)?.matching(tag(hash)).next() {
            let likely = At { bucket: home, slot };
            if self.slot(likely).is(identity, scope) {
                return Some(self.slot_mut(likely));
            }
        }
        self.search_mut(hash, identity, scope)
    }

    // Apart, and given what fits registers: what had to be in memory for it would be written also where it
    // is not called.
    #[inline(never)]
    fn search_mut(&mut self, hash: u64, identity: Identity, scope: u32) -> Option<&mut Slot> {
        let at = self.find(hash, |slot| slot.is(identity, scope))?;
        Some(self.slot_mut(at))
    }

    /// Where the slot of this hash is that is the one.
    pub(super) fn find(&self, hash: u64, is: impl Fn(&Slot) -> bool) -> Option<At> {
        let first = home(hash, self.tags.len());
        let mut at = first;
        loop {
            let tags = *self.tags.get(at)?;
            for slot in tags.matching(tag(hash)) {
                let found = At { bucket: at, slot };
                if is(self.slot(found)) {
                    return Some(found);
                }
            }
            at = next(at, self.tags.len());
            if tags.gone_further() == 0 || at == first {
                return None;
            }
        }
    }

    #[inline]
    pub(super) fn slot(&self, at: At) -> &Slot {
        &self.chunks[at.bucket / CHUNK_BUCKETS][at.bucket % CHUNK_BUCKETS][at.slot]
    }

    #[inline]
    pub(super) fn slot_mut(&mut self, at: At) -> &mut Slot {
        &mut self.chunks[at.bucket / CHUNK_BUCKETS][at.bucket % CHUNK_BUCKETS][at.slot]
    }

    /// The `nth` slot, if it is in use.
    pub(super) fn live_slot(&self, nth: usize) -> Option<(At, &Slot)> {
        let at = At { bucket: nth / BUCKET_SLOTS, slot: nth % BUCKET_SLOTS };
        (self.tags.get(at.bucket)?.0[at.slot] != EMPTY).then(|| (at, self.slot(at)))
    }

    /// Puts a slot in that is not there yet; the caller has seen that it has room.
    pub(super) fn insert(&mut self, hash: u64, slot: Slot) {
        self.live += 1;
        self.settle(hash, slot);
    }

    /// Takes a slot out, and others that had gone further closer to their homes.
    pub(super) fn remove(&mut self, at: At, hash: impl Fn(&Slot) -> u64) {
        let count = self.tags.len();
        let mut passed = home(hash(self.slot(at)), count);
        while passed != at.bucket {
            self.tags[passed].one_fewer_gone_further();
            passed = next(passed, count);
        }
        self.tags[at.bucket].0[at.slot] = EMPTY;
        self.live -= 1;
        let mut free = at;
        while self.tags[free.bucket].gone_further() > 0 {
            let Some(guest) = self.guest_in(next(free.bucket, count), &hash) else { break };
            *self.slot_mut(free) = *self.slot(guest);
            self.tags[free.bucket].0[free.slot] = self.tags[guest.bucket].0[guest.slot];
            self.tags[free.bucket].one_fewer_gone_further();
            self.tags[guest.bucket].0[guest.slot] = EMPTY;
            free = guest;
        }
    }

    /// A slot in this bucket that has its home in one before.
    fn guest_in(&self, bucket: usize, hash: impl Fn(&Slot) -> u64) -> Option<At> {
        let is_guest = |at: &At| {
            let is_live = self.tags[at.bucket].0[at.slot] != EMPTY;
            is_live && home(hash(self.slot(*at)), self.tags.len()) != bucket
        };
        (0..BUCKET_SLOTS).map(|slot| At { bucket, slot }).find(is_guest)
    }

    /// Grows by some chunks, and moves every slot to its home among them.
    pub(super) fn grow(&mut self, chunks: usize, hash: impl Fn(&Slot) -> u64) {
        for tags in &mut self.tags {
            *tags = tags.unsettled();
        }
        self.chunks.extend((0..chunks).map(|_| Box::new(Chunk::default())));
        self.tags.resize(self.chunks.len() * CHUNK_BUCKETS, Tags::default());
        // From the end, since homes move towards it: most slots then find theirs already left.
        for bucket in (0..self.tags.len()).rev() {
            for slot in 0..BUCKET_SLOTS {
                if self.tags[bucket].0[slot] == UNSETTLED {
                    self.tags[bucket].0[slot] = EMPTY;
                    let mut unsettled = Some(*self.slot(At { bucket, slot }));
                    while let Some(slot) = unsettled {
                        unsettled = self.settle(hash(&slot), slot);
                    }
                }
            }
        }
    }

    /// Puts a slot into the first place that is free or unsettled; returns what was there.
    fn settle(&mut self, hash: u64, slot: Slot) -> Option<Slot> {
        let count = self.tags.len();
        let mut at = home(hash, count);
        for _ in 0..count {
            let tags = &mut self.tags[at];
            if let Some(free) = tags.first_free() {
                let before = mem::replace(&mut tags.0[free], tag(hash));
                let other = mem::replace(self.slot_mut(At { bucket: at, slot: free }), slot);
                return (before == UNSETTLED).then_some(other);
            }
            tags.one_more_gone_further();
            at = next(at, count);
        }
        None
    }
}

impl Tags {
    /// The slots with this tag, and perhaps one that has another and is in use.
    #[inline]
    fn matching(self, tag: u8) -> impl Iterator<Item = usize> {
        let mut found = zero_bytes(self.word() ^ repeated(tag)) & TAG_BITS;
        std::iter::from_fn(move || {
            let slot = (found != 0).then(|| found.trailing_zeros() as usize / 8);
            found &= found.wrapping_sub(1);
            slot
        })
    }

    fn first_free(self) -> Option<usize> {
        let free = zero_bytes(self.word() & !repeated(UNSETTLED)) & TAG_BITS;
        (free != 0).then(|| free.trailing_zeros() as usize / 8)
    }

    /// The slots that found no room here; so many at most as a byte can say.
    #[inline]
    fn gone_further(self) -> u8 {
        self.0[BUCKET_SLOTS]
    }

    fn one_more_gone_further(&mut self) {
        self.0[BUCKET_SLOTS] = self.gone_further().saturating_add(1);
    }

    /// From the most that a byte can say there is no way back until the table grows.
    fn one_fewer_gone_further(&mut self) {
        if self.gone_further() < u8::MAX {
            self.0[BUCKET_SLOTS] = self.gone_further().saturating_sub(1);
        }
    }

    fn unsettled(self) -> Tags {
        let mut tags = self.0.map(|tag| if tag == EMPTY { EMPTY } else { UNSETTLED });
        tags[BUCKET_SLOTS] = 0;
        Tags(tags)
    }

    #[inline]
    fn word(self) -> u64 {
        u64::from_le_bytes(self.0)
    }
}

/// The bucket at which a search begins.
#[inline]
fn home(hash: u64, buckets: usize) -> usize {
    // OK because the product of two 32-bit numbers, shifted back, is below the second.
    (((hash & 0xffff_ffff) * buckets as u64) >> 32) as usize
}

#[inline]
fn next(at: usize, buckets: usize) -> usize {
    if at + 1 == buckets { 0 } else { at + 1 }
}

/// What a slot in use is marked with: the end of its hash, and neither of the other marks. Its home comes
/// from the bits above that, up to 2^24 buckets.
#[inline]
fn tag(hash: u64) -> u8 {
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::super::slot::Words;
    use super::*;

    fn place(id: u64, hash: u64) -> Place {
        Place { identity: Identity([id, 0]), scope: 0, hash, shard: 0 }
    }

    /// A slot that remembers its hash.
    fn slot(id: u64, hash: u64) -> Slot {
        Slot::new(place(id, hash), Words([0, hash >> 32, hash & 0xffff_ffff, 0]))
    }

    fn hash_of(slot: &Slot) -> u64 {
        let Words([_, upper, lower, _]) = slot.state();
        upper << 32 | lower
    }

    fn is(id: u64) -> impl Fn(&Slot) -> bool {
        move |slot| slot.is_at(place(id, 0))
    }

    /// Hashes as they come, or with one home and many tags, or one, the last home, few homes, or few tags.
    fn hashes() -> impl Strategy<Value = Vec<u64>> {
        let shapes = [(u64::MAX, 0), (!0xffff_ff00, 0), (!0xffff_ffff, 0), (u64::MAX, 0xffff_ff00)];
        let few = [(0xc000_00ff, 0), (0xffff_ff03, 0)];
        let shape = prop::sample::select([&shapes[..], &few[..]].concat());
        (shape, prop::collection::vec(any::<u64>(), 1..700))
            .prop_map(|((kept, set), hashes)| hashes.iter().map(|hash| hash & kept | set).collect())
    }

    fn insert(table: &mut Table, id: u64, hash: u64) {
        if !table.has_room_for(1) {
            table.grow(table.chunks_for(1), hash_of);
        }
        assert!(table.has_room_for(1));
        table.insert(hash, slot(id, hash));
    }

    fn assert_holds(table: &mut Table, model: &HashMap<u64, u64>) {
        assert_eq!(table.live(), model.len());
        let live = (0..table.capacity()).filter(|&nth| table.live_slot(nth).is_some());
        assert_eq!(live.count(), model.len());
        for (&id, &hash) in model {
            assert!(table.find(hash, is(id)).is_some(), "{id} is lost");
            assert!(table.find_mut(place(id, hash)).is_some(), "{id} is lost");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Every slot is found until it is taken out, whatever the hashes; and once all are out,
        /// nobody has gone further.
        #[test]
        fn slots_are_found_whatever_their_hashes(hashes in hashes(), seed in any::<u64>()) {
            let mut table = Table::with_room_for(2);
            let mut model = HashMap::new();
            for (id, &hash) in (0_u64..).zip(&hashes) {
                prop_assert!(table.find(hash, is(id)).is_none());
                insert(&mut table, id, hash);
                model.insert(id, hash);
                // Some leave again, now one and now another.
                let gone = id.wrapping_mul(seed | 1) % (id + 1);
                if let (true, Some(hash)) = (id % 3 == 2, model.get(&gone).copied()) {
                    let at = table.find(hash, is(gone)).unwrap();
                    table.remove(at, hash_of);
                    model.remove(&gone);
                    prop_assert!(table.find(hash, is(gone)).is_none());
                }
            }
            assert_holds(&mut table, &model);
            for (id, hash) in model.drain() {
                let at = table.find(hash, is(id)).unwrap();
                table.remove(at, hash_of);
            }
            prop_assert_eq!(table.live(), 0);
            let further = table.tags.iter().map(|tags| tags.gone_further());
            prop_assert!(further.clone().all(|count| count == 0 || count == u8::MAX));
            let saturated = further.filter(|&count| count == u8::MAX).count();
            prop_assert!(saturated == 0 || hashes.len() > 255);
        }
    }

    /// So many come and go that a table which only ever let its searches grow longer would show it.
    #[test]
    fn searches_stay_short_as_slots_come_and_go() {
        let mut table = Table::with_room_for(0);
        let hash = |id: u64| id.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        (0..600).for_each(|id| insert(&mut table, id, hash(id)));
        let further = |table: &Table| -> u32 {
            table.tags.iter().map(|tags| u32::from(tags.gone_further())).sum()
        };
        let before = further(&table);
        for id in 600..20_000 {
            let at = table.find(hash(id - 600), is(id - 600)).unwrap();
            table.remove(at, hash_of);
            insert(&mut table, id, hash(id));
        }
        assert!(further(&table) < 3 * before + 300, "{before}, then {}", further(&table));
    }
}
