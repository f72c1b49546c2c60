//! A hash table with open addressing: buckets of seven slots, with a tag byte for each slot that says whether
//! the slot may match (`tags`).
//!
//! The tags are kept apart from the slots, next to the pointer to the slots, and the tags of all tables are close
//! together. The tags of a million keys fit into a processor's cache, so a search waits for memory once, for its
//! slot. The table grows in place, by a chunk of buckets at a time. Two parts of the hash, each read as a fraction from
//! 0 to 1, select the chunk out of all chunks and the bucket in it. So the number of chunks need not be a power of two,
//! and growth moves the existing slots one by one. No memory is given back before the table is dropped.
//!
//! The home bucket of a slot is the bucket that its hash selects. A slot whose home bucket was full is displaced: it
//! is in a later bucket.

mod tags;

use std::{hint, mem};

use super::KeyPlace;
use super::identity::KeyIdentity;
use super::regions::{self, BUCKET_SLOTS, CHUNK_BUCKETS, Slots};
use super::slot::Slot;
use tags::{EMPTY, Tags, UNMOVED, tag};

/// One in this many displaced slots that a search finds is moved to its home bucket. Moving every one would swap
/// two slots each time, although most of the slots are not needed again soon.
const DISPLACED_PER_SWAP: u32 = 8;

#[derive(Debug, Default)]
pub(super) struct SlotTable {
    chunks: Vec<Chunk>,
    /// The number of slots in use. This field and the next have 32 bits, so that a shard fits a cache line. A table of
    /// more slots would take 190 GB.
    live: u32,
    /// How many displaced slots were found.
    displaced_found: u32,
}

/// The unit by which the table grows: three buckets. Aligned, so that a bucket's tags are on the same cache
/// line as the pointer.
#[derive(Debug)]
#[repr(align(32))]
struct Chunk {
    tags: [Tags; CHUNK_BUCKETS],
    /// The slots stay where they are when the table grows.
    slots: &'static mut Slots,
}

const _: () = assert!(size_of::<Chunk>() == 32);

impl Chunk {
    fn new() -> Chunk {
        Chunk { tags: Default::default(), slots: regions::take() }
    }
}

impl Drop for SlotTable {
    fn drop(&mut self) {
        regions::give_back(self.chunks.drain(..).map(|chunk| chunk.slots));
    }
}

/// The position of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotPosition {
    bucket: usize,
    slot: usize,
}

impl SlotTable {
    pub(super) const CHUNK_SLOTS: usize = CHUNK_BUCKETS * BUCKET_SLOTS;

    /// The bytes of a chunk, including its entry in the list of chunks.
    pub(super) const CHUNK_BYTES: usize = size_of::<Slots>() + size_of::<Chunk>();

    /// Returns the bytes of the list of a table [with room for](Self::with_room_for) this many chunks.
    pub(super) fn list_bytes(chunks: usize) -> usize {
        chunks * size_of::<Chunk>() + 4 * 16
    }

    /// Returns an empty table, whose list of chunks need not be moved before it has `chunks`.
    pub(super) fn with_room_for(chunks: usize) -> SlotTable {
        SlotTable { chunks: Vec::with_capacity(chunks), live: 0, displaced_found: 0 }
    }

    pub(super) fn capacity(&self) -> usize {
        self.chunks.len() * Self::CHUNK_SLOTS
    }

    pub(super) fn live(&self) -> usize {
        self.live as usize
    }

    /// Returns how many chunks hold this many slots, in one table or in many.
    pub(super) fn chunks_of(slots: usize) -> usize {
        (slots * 32 / 31).div_ceil(Self::CHUNK_SLOTS)
    }

    /// Returns how many chunks to grow by so that `more` slots fit; at least a thirty-second of the present
    /// number.
    pub(super) fn chunks_for(&self, more: usize) -> usize {
        let slots = (self.live() + more) * 32 / 31 + 1;
        let missing = slots.saturating_sub(self.capacity()).div_ceil(Self::CHUNK_SLOTS);
        missing.max(self.chunks.len() / 32).max(1)
    }

    /// Whether `more` slots fit; searches are short up to a load of 31/32.
    pub(super) fn has_room_for(&self, more: usize) -> bool {
        32 * (self.live() + more) <= 31 * self.capacity()
    }

    /// Returns the slot of a key. A displaced slot may be swapped with a victim in its home bucket: `hash_of` returns
    /// the victim's hash, or `None` if it cannot compute the hash cheaply.
    #[inline(always)]
    pub(super) fn find_mut(
        &mut self,
        place: KeyPlace,
        hash_of: impl Fn(&Slot) -> Option<u64>,
    ) -> Option<&mut Slot> {
        let KeyPlace { hash, identity, scope, .. } = place;
        let (chunk, bucket) = home(hash, self.chunks.len());
        // Usually the slot is in its home bucket, and the first with a matching tag. This part is inlined
        // into the caller; the search is not.
        let Chunk { tags, slots } = self.chunks.get(chunk)?;
        if let Some(slot) = tags.get(bucket)?.matching(tag(hash)).next()
            && slots[bucket][slot].is(identity, scope)
        {
            return Some(&mut self.chunks[chunk].slots[bucket][slot]);
        }
        self.search_mut(hash, identity, scope, hash_of)
    }

    // Separate, with arguments that fit into registers: the caller would write arguments in memory even if it did
    // not make the call.
    #[inline(never)]
    fn search_mut(
        &mut self,
        hash: u64,
        identity: KeyIdentity,
        scope: u32,
        hash_of: impl Fn(&Slot) -> Option<u64>,
    ) -> Option<&mut Slot> {
        let mut at = self.find(hash, |slot| slot.is(identity, scope))?;
        let home = self.home(hash);
        if at.bucket != home {
            self.displaced_found = self.displaced_found.wrapping_add(1);
            if self.displaced_found.is_multiple_of(DISPLACED_PER_SWAP) {
                at = self.swap_home(at, home, hash_of);
            }
        }
        Some(self.slot_mut(at))
    }

    /// Swaps a displaced slot into its home bucket, rotating the victim. So slots that are looked up often move to
    /// their home buckets, where they are found at once.
    ///
    /// The counts of passing slots do not change: the displaced slot has passed the buckets from its home bucket on,
    /// and the victim now passes the same buckets instead. If the victim would wrap around to its own home bucket,
    /// nothing is swapped.
    fn swap_home(
        &mut self,
        at: SlotPosition,
        home: usize,
        hash_of: impl Fn(&Slot) -> Option<u64>,
    ) -> SlotPosition {
        let there = SlotPosition {
            bucket: home,
            slot: (self.displaced_found / DISPLACED_PER_SWAP) as usize % BUCKET_SLOTS,
        };
        let other = (self.tags(home)[there.slot], *self.slot(there));
        let others_home = if other.0 == EMPTY { None } else { hash_of(&other.1) };
        let Some(others_home) = others_home.map(|hash| self.home(hash)) else { return at };
        if self.steps(others_home, home) + self.steps(home, at.bucket) >= self.buckets() {
            return at;
        }
        self.tags_mut(home)[there.slot] = self.tags(at.bucket)[at.slot];
        *self.slot_mut(there) = *self.slot(at);
        (self.tags_mut(at.bucket)[at.slot], *self.slot_mut(at)) = other;
        there
    }

    /// Returns how many buckets `to` is after `from`, wrapping around.
    fn steps(&self, from: usize, to: usize) -> usize {
        if from <= to { to - from } else { to + self.buckets() - from }
    }

    /// Returns the position of the slot with this hash for which `is` holds.
    #[inline]
    pub(super) fn find(&self, hash: u64, is: impl Fn(&Slot) -> bool) -> Option<SlotPosition> {
        let first = self.home(hash);
        let mut at = first;
        loop {
            let tags = self.chunks.get(at / CHUNK_BUCKETS)?.tags[at % CHUNK_BUCKETS];
            for slot in tags.matching(tag(hash)) {
                let found = SlotPosition { bucket: at, slot };
                if is(self.slot(found)) {
                    return Some(found);
                }
            }
            at = self.next(at);
            if tags.passed_by() == 0 || at == first {
                return None;
            }
        }
    }

    #[inline]
    pub(super) fn slot(&self, at: SlotPosition) -> &Slot {
        &self.chunks[at.bucket / CHUNK_BUCKETS].slots[at.bucket % CHUNK_BUCKETS][at.slot]
    }

    #[inline]
    pub(super) fn slot_mut(&mut self, at: SlotPosition) -> &mut Slot {
        &mut self.chunks[at.bucket / CHUNK_BUCKETS].slots[at.bucket % CHUNK_BUCKETS][at.slot]
    }

    fn tags(&self, bucket: usize) -> &Tags {
        &self.chunks[bucket / CHUNK_BUCKETS].tags[bucket % CHUNK_BUCKETS]
    }

    fn tags_mut(&mut self, bucket: usize) -> &mut Tags {
        &mut self.chunks[bucket / CHUNK_BUCKETS].tags[bucket % CHUNK_BUCKETS]
    }

    fn buckets(&self) -> usize {
        self.chunks.len() * CHUNK_BUCKETS
    }

    /// Returns the bucket at which a search begins.
    fn home(&self, hash: u64) -> usize {
        let (chunk, bucket) = home(hash, self.chunks.len());
        chunk * CHUNK_BUCKETS + bucket
    }

    fn next(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets() { 0 } else { bucket + 1 }
    }

    /// Returns the `nth` slot, if it is in use.
    pub(super) fn live_slot(&self, nth: usize) -> Option<(SlotPosition, &Slot)> {
        let at = SlotPosition { bucket: nth / BUCKET_SLOTS, slot: nth % BUCKET_SLOTS };
        let chunk = self.chunks.get(at.bucket / CHUNK_BUCKETS)?;
        (chunk.tags[at.bucket % CHUNK_BUCKETS][at.slot] != EMPTY).then(|| (at, self.slot(at)))
    }

    /// Inserts a slot for a key that has none; the caller has checked that there is room.
    pub(super) fn insert(&mut self, hash: u64, slot: Slot) {
        self.live += 1;
        self.put_near_home(hash, slot);
    }

    /// Removes a slot, and moves displaced slots closer to their home buckets.
    pub(super) fn remove(&mut self, at: SlotPosition, hash: impl Fn(&Slot) -> u64) {
        let mut passed = self.home(hash(self.slot(at)));
        while passed != at.bucket {
            self.tags_mut(passed).uncount_passing();
            passed = self.next(passed);
        }
        self.tags_mut(at.bucket)[at.slot] = EMPTY;
        self.live -= 1;
        let mut free = at;
        while self.tags(free.bucket).passed_by() > 0 {
            let Some(moved) = self.displaced_in(self.next(free.bucket), &hash) else { break };
            *self.slot_mut(free) = *self.slot(moved);
            self.tags_mut(free.bucket)[free.slot] = self.tags(moved.bucket)[moved.slot];
            self.tags_mut(free.bucket).uncount_passing();
            self.tags_mut(moved.bucket)[moved.slot] = EMPTY;
            free = moved;
        }
    }

    /// Returns a displaced slot in this bucket: its home bucket is an earlier one.
    fn displaced_in(&self, bucket: usize, hash: impl Fn(&Slot) -> u64) -> Option<SlotPosition> {
        let is_displaced = |at: &SlotPosition| {
            let is_live = self.tags(at.bucket)[at.slot] != EMPTY;
            is_live && self.home(hash(self.slot(*at))) != bucket
        };
        (0..BUCKET_SLOTS).map(|slot| SlotPosition { bucket, slot }).find(is_displaced)
    }

    /// Grows by some chunks, and moves every slot to its new home bucket, or to a later one if that is full.
    pub(super) fn grow(&mut self, chunks: usize, hash: impl Fn(&Slot) -> u64) {
        self.touch();
        for tags in self.chunks.iter_mut().flat_map(|chunk| &mut chunk.tags) {
            *tags = tags.unmoved();
        }
        // Exact, because only these are counted in the budget.
        self.chunks.reserve_exact(chunks);
        self.chunks.extend((0..chunks).map(|_| Chunk::new()));
        // From the end, because slots move to later home buckets: most slots then find their new home already empty.
        for bucket in (0..self.buckets()).rev() {
            for slot in 0..BUCKET_SLOTS {
                if self.tags(bucket)[slot] == UNMOVED {
                    self.tags_mut(bucket)[slot] = EMPTY;
                    let mut unmoved = Some(*self.slot(SlotPosition { bucket, slot }));
                    while let Some(slot) = unmoved {
                        unmoved = self.put_near_home(hash(&slot), slot);
                    }
                }
            }
        }
    }

    /// Reads a word of every cache line. The reads do not depend on each other, so the processor fetches all
    /// lines at the same time; moving slots one after the other would wait for each.
    fn touch(&self) {
        let slots = self.chunks.iter().flat_map(|chunk| chunk.slots.as_flattened());
        hint::black_box(slots.fold(0, |sum, slot| sum ^ slot.first_word()));
    }

    /// Puts a slot into the first position, from its home bucket on, that is free or has an unmoved slot. Returns that
    /// unmoved slot.
    fn put_near_home(&mut self, hash: u64, slot: Slot) -> Option<Slot> {
        let mut at = self.home(hash);
        for _ in 0..self.buckets() {
            let tags = self.tags_mut(at);
            if let Some(free) = tags.first_free() {
                let before = mem::replace(&mut tags[free], tag(hash));
                let other =
                    mem::replace(self.slot_mut(SlotPosition { bucket: at, slot: free }), slot);
                return (before == UNMOVED).then_some(other);
            }
            tags.count_passing();
            at = self.next(at);
        }
        None
    }
}

/// Returns the index of the chunk, out of `chunks`, at which a search begins, and the index of the bucket in it. They
/// are computed from different bits of a hash, so neither computation waits for the other.
#[inline]
fn home(hash: u64, chunks: usize) -> (usize, usize) {
    let chunk = (hash & 0xffff_ffff) * chunks as u64;
    let bucket = (hash >> 32 & 0xffff) * CHUNK_BUCKETS as u64;
    // OK because a product, shifted back by the bits of the first factor, is below the second.
    ((chunk >> 32) as usize, (bucket >> 16) as usize)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::super::words::Words;
    use super::*;

    fn place(id: u64, hash: u64) -> KeyPlace {
        KeyPlace { identity: KeyIdentity([id, 0]), scope: 0, hash, shard: 0 }
    }

    /// Returns a slot whose state holds its hash.
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

    /// Random hashes; or hashes with one home bucket and many tags, with one home bucket and one tag, with the last
    /// home bucket, with few home buckets, or with few tags.
    fn hashes() -> impl Strategy<Value = Vec<u64>> {
        const HOME: u64 = 0xffff_ffff_ff00;
        let shapes = [(u64::MAX, 0), (!HOME, 0), (!(HOME | 0xff), 0), (u64::MAX, HOME)];
        let few = [(0xc000_00ff, 0), (HOME | 3, 0)];
        let shape = prop::sample::select([&shapes[..], &few[..]].concat());
        (shape, prop::collection::vec(any::<u64>(), 1..700))
            .prop_map(|((kept, set), hashes)| hashes.iter().map(|hash| hash & kept | set).collect())
    }

    fn insert(table: &mut SlotTable, id: u64, hash: u64) {
        if !table.has_room_for(1) {
            table.grow(table.chunks_for(1), hash_of);
        }
        assert!(table.has_room_for(1));
        table.insert(hash, slot(id, hash));
    }

    fn assert_holds(table: &mut SlotTable, model: &HashMap<u64, u64>) {
        assert_eq!(table.live(), model.len());
        let live = (0..table.capacity()).filter(|&nth| table.live_slot(nth).is_some());
        assert_eq!(live.count(), model.len());
        for (&id, &hash) in model {
            assert!(table.find(hash, is(id)).is_some(), "{id} is lost");
            assert!(is_found(table, id, hash), "{id} is lost");
        }
    }

    /// Returns a hash in which all bits are equally random.
    fn hash(id: u64) -> u64 {
        ahash::RandomState::with_seeds(1, 2, 3, 4).hash_one(id)
    }

    fn is_found(table: &mut SlotTable, id: u64, hash: u64) -> bool {
        table.find_mut(place(id, hash), |slot| Some(hash_of(slot))).is_some()
    }

    /// Asserts that each bucket's count of passing slots is right, unless it is 255.
    fn assert_counts(table: &SlotTable) {
        let mut passed = vec![0_u32; table.buckets()];
        for (at, slot) in (0..table.capacity()).filter_map(|nth| table.live_slot(nth)) {
            let mut bucket = table.home(hash_of(slot));
            while bucket != at.bucket {
                passed[bucket] += 1;
                bucket = table.next(bucket);
            }
        }
        for (passed, outcome) in passed.into_iter().zip(passed_by(table)) {
            assert!(
                outcome == u8::MAX || u32::from(outcome) == passed,
                "{passed} passed, not {outcome}"
            );
        }
    }

    fn passed_by(table: &SlotTable) -> impl Iterator<Item = u8> + Clone {
        table.chunks.iter().flat_map(|chunk| &chunk.tags).map(|tags| tags.passed_by())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Every slot is found until it is removed, for any hashes; and when all are removed, no bucket
        /// counts a passing slot.
        #[test]
        fn slots_are_found_for_any_hashes(hashes in hashes(), seed in any::<u64>()) {
            let mut table = SlotTable::with_room_for(2);
            let mut model = HashMap::new();
            for (id, &hash) in (0_u64..).zip(&hashes) {
                prop_assert!(table.find(hash, is(id)).is_none());
                insert(&mut table, id, hash);
                model.insert(id, hash);
                // Some slots are looked up, and may be moved to their home buckets.
                for known in (0..id).rev().step_by(7).take(20) {
                    let Some(&hash) = model.get(&known) else { continue };
                    prop_assert!(is_found(&mut table, known, hash));
                }
                // Some slots are removed again.
                let gone = id.wrapping_mul(seed | 1) % (id + 1);
                if let (true, Some(hash)) = (id % 3 == 2, model.get(&gone).copied()) {
                    let at = table.find(hash, is(gone)).unwrap();
                    table.remove(at, hash_of);
                    model.remove(&gone);
                    prop_assert!(table.find(hash, is(gone)).is_none());
                }
            }
            assert_holds(&mut table, &model);
            assert_counts(&table);
            for (id, hash) in model.drain() {
                let at = table.find(hash, is(id)).unwrap();
                table.remove(at, hash_of);
            }
            prop_assert_eq!(table.live(), 0);
            let further = passed_by(&table);
            prop_assert!(further.clone().all(|count| count == 0 || count == u8::MAX));
            let saturated = further.filter(|&count| count == u8::MAX).count();
            prop_assert!(saturated == 0 || hashes.len() > 255);
        }
    }

    /// Slots are inserted and removed so often that the test would notice if searches only grew longer.
    #[test]
    fn searches_stay_short_as_slots_come_and_go() {
        let mut table = SlotTable::with_room_for(0);
        (0..600).for_each(|id| insert(&mut table, id, hash(id)));
        let further = |table: &SlotTable| passed_by(table).map(u32::from).sum::<u32>();
        let before = further(&table);
        for id in 600..20_000 {
            let at = table.find(hash(id - 600), is(id - 600)).unwrap();
            table.remove(at, hash_of);
            insert(&mut table, id, hash(id));
        }
        assert!(further(&table) < 3 * before + 300, "{before}, then {}", further(&table));
    }

    #[test]
    fn frequently_found_slots_move_to_their_home_bucket() {
        let mut table = SlotTable::with_room_for(0);
        (0..600).for_each(|id| insert(&mut table, id, hash(id)));
        let is_displaced = |table: &SlotTable, id: u64| {
            table.find(hash(id), is(id)).unwrap().bucket != table.home(hash(id))
        };
        let displaced: Vec<u64> = (0..600).filter(|&id| is_displaced(&table, id)).collect();
        assert!(displaced.len() > 50, "{} are displaced", displaced.len());
        let before: Vec<u8> = passed_by(&table).collect();
        let often = &displaced[..10];
        for id in often.iter().cycle().take(10 * DISPLACED_PER_SWAP as usize * often.len()) {
            assert!(is_found(&mut table, *id, hash(*id)));
        }
        assert!(!often.iter().any(|&id| is_displaced(&table, id)));
        assert_holds(&mut table, &(0..600).map(|id| (id, hash(id))).collect());
        assert_eq!(passed_by(&table).collect::<Vec<u8>>(), before);
    }

    /// A small table stays full for long, with lookups, and is then emptied: the counts of passing slots
    /// return to 0.
    #[test]
    fn swaps_leave_the_counts_of_passing_slots_unchanged() {
        for chunks in 1..=3 {
            let mut table = SlotTable::with_room_for(0);
            let full = chunks * SlotTable::CHUNK_SLOTS as u64 * 31 / 32;
            (0..full).for_each(|id| insert(&mut table, id, hash(id)));
            for id in full..full + 3_000 {
                for known in (id - full..id).step_by(3) {
                    assert!(is_found(&mut table, known, hash(known)));
                }
                let at = table.find(hash(id - full), is(id - full)).unwrap();
                table.remove(at, hash_of);
                assert_counts(&table);
                insert(&mut table, id, hash(id));
            }
            for id in 3_000..3_000 + full {
                let at = table.find(hash(id), is(id)).unwrap();
                table.remove(at, hash_of);
            }
            assert!(passed_by(&table).all(|count| count == 0));
        }
    }
}
