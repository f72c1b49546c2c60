//! A table of fixed size with the store's last answer about each key.
//!
//! The table is written after every answer of the store, so it is a plain array: a hash picks a set of four entries behind
//! one lock, and nothing is allocated once the array is there. A full set forgets the key whose units matter least. A
//! forgotten key begins with its whole share when the store fails, which the bound of the policy includes.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;

use ahash::RandomState;
use parking_lot::Mutex;

/// The number of keys in a set.
const WAYS: usize = 4;

/// The most sets: 65,536 keys in 2.1 MiB.
const MAX_SETS: usize = 16_384;

/// The sets that are allocated together, by the first key of one of them: 34 KiB, so that no check waits long for memory.
const CHUNK_SETS: usize = 256;

/// The part of a limiter's memory for local decisions that the table may take.
const PART_OF_BYTES: usize = 16;

/// The store's last answer about a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastSeen {
    /// The units that were spent or held, rounded up.
    pub(crate) spent: u64,
    /// When the answer came, by the clock of this process.
    pub(crate) at_us: u64,
    /// How long after that until all units are back.
    pub(crate) back_after_us: u64,
}

impl LastSeen {
    fn back_at_us(&self) -> u64 {
        self.at_us.saturating_add(self.back_after_us)
    }
}

/// A key, as a keyed hash of its name and itself. Two keys share an entry by a chance of 1 in 2^64. Then one of them
/// begins an outage with the state of the other.
type KeyHash = u64;

/// A key of the table; empty if all units are back.
#[derive(Clone, Copy, Debug, Default)]
struct SeenKey {
    key: KeyHash,
    seen: LastSeen,
}

type Set = Mutex<[SeenKey; WAYS]>;

/// The keys that the store last answered about.
pub(crate) struct SeenKeys {
    hasher: RandomState,
    /// A power of two. 0 in a limiter that has no memory for the table.
    sets: usize,
    chunks: Box<[OnceLock<Box<[Set]>>]>,
}

impl SeenKeys {
    /// Returns a table that takes at most a sixteenth of `max_bytes`.
    pub(crate) fn new(max_bytes: Option<usize>) -> SeenKeys {
        let sets = max_bytes.map_or(MAX_SETS, |bytes| bytes / PART_OF_BYTES / size_of::<Set>());
        let sets = match sets.min(MAX_SETS) {
            0 => 0,
            sets => 1_usize << sets.ilog2(),
        };
        let chunks = (0..sets.div_ceil(CHUNK_SETS)).map(|_| OnceLock::new()).collect();
        SeenKeys { hasher: RandomState::new(), sets, chunks }
    }

    /// Returns the most bytes that the table takes.
    pub(crate) fn max_bytes(&self) -> usize {
        self.sets * size_of::<Set>()
    }

    /// Returns the hash of a key of the name with this hash.
    #[inline]
    pub(crate) fn hash(&self, name: u64, key: &[u8]) -> KeyHash {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u64(name);
        hasher.write(key);
        hasher.finish()
    }

    /// Returns the set of a key; `None` if it is not allocated yet and `is_new` is false, or if there is no table.
    #[inline]
    fn set(&self, key: KeyHash, is_new: bool) -> Option<&Set> {
        // OK because both numbers are powers of two, and the result is below `sets`.
        let set = key as usize & self.sets.wrapping_sub(1);
        let chunk = self.chunks.get(set / CHUNK_SETS)?;
        let sets = match chunk.get() {
            Some(sets) => sets,
            None if is_new => chunk.get_or_init(|| self.new_sets()),
            None => return None,
        };
        sets.get(set % CHUNK_SETS)
    }

    #[cold]
    fn new_sets(&self) -> Box<[Set]> {
        (0..self.sets.min(CHUNK_SETS)).map(|_| Set::default()).collect()
    }

    /// Notes an answer of the store. A key of which nothing is spent is forgotten.
    #[inline]
    pub(crate) fn note(&self, key: KeyHash, seen: LastSeen) {
        let is_spent = seen.spent > 0 && seen.back_after_us > 0;
        let Some(set) = self.set(key, is_spent) else { return };
        let mut set = set.lock();
        let known = set.iter_mut().find(|entry| entry.key == key);
        match (known, is_spent) {
            (Some(known), true) => known.seen = seen,
            (Some(known), false) => *known = SeenKey::default(),
            (None, true) => replace(&mut set, SeenKey { key, seen }),
            (None, false) => {}
        }
    }

    /// Forgets a key.
    pub(crate) fn forget(&self, key: KeyHash) {
        self.note(key, LastSeen::default());
    }

    /// Passes the last answer about a key to `use_up`, and forgets it. Other callers with the same key wait
    /// meanwhile, so that they find the result.
    pub(crate) fn take(&self, key: KeyHash, use_up: impl FnOnce(LastSeen)) {
        let Some(set) = self.set(key, false) else { return };
        let mut set = set.lock();
        if let Some(known) = set.iter_mut().find(|entry| entry.key == key) {
            let SeenKey { seen, .. } = std::mem::take(known);
            if seen != LastSeen::default() {
                use_up(seen);
            }
        }
    }
}

/// Writes an entry over the one that matters least: an empty entry, then one whose units are all back, then the one whose
/// units are back first.
#[cold]
fn replace(set: &mut [SeenKey; WAYS], new: SeenKey) {
    if let Some(least) = set.iter_mut().min_by_key(|entry| entry.seen.back_at_us()) {
        *least = new;
    }
}

impl fmt::Debug for SeenKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeenKeys").field("sets", &self.sets).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(spent: u64, back_after_us: u64) -> LastSeen {
        LastSeen { spent, at_us: 1_000, back_after_us }
    }

    fn take(keys: &SeenKeys, key: &[u8]) -> Option<LastSeen> {
        let mut taken = None;
        keys.take(keys.hash(1, key), |seen| taken = Some(seen));
        taken
    }

    #[test]
    fn last_answer_about_a_key_is_taken_once() {
        let keys = SeenKeys::new(None);
        for spent in [3, 5] {
            keys.note(keys.hash(1, b"a"), seen(spent, 60));
        }
        keys.note(keys.hash(2, b"a"), seen(9, 60));
        assert_eq!(take(&keys, b"b"), None);
        assert_eq!(take(&keys, b"a"), Some(seen(5, 60)));
        assert_eq!(take(&keys, b"a"), None);
    }

    #[test]
    fn key_with_nothing_spent_is_forgotten_and_takes_no_memory() {
        let keys = SeenKeys::new(None);
        keys.note(keys.hash(1, b"a"), seen(0, 0));
        assert!(keys.chunks.iter().all(|chunk| chunk.get().is_none()));
        keys.note(keys.hash(1, b"a"), seen(3, 60));
        keys.note(keys.hash(1, b"a"), seen(0, 0));
        assert_eq!(take(&keys, b"a"), None);
        keys.note(keys.hash(1, b"a"), seen(3, 60));
        keys.forget(keys.hash(1, b"a"));
        assert_eq!(take(&keys, b"a"), None);
    }

    /// A table of one set, so that all keys meet.
    #[test]
    fn full_set_forgets_the_key_whose_units_are_back_first() {
        let keys = SeenKeys::new(Some(PART_OF_BYTES * size_of::<Set>()));
        for (key, back_after_us) in [(b"a", 50), (b"b", 20), (b"c", 30), (b"d", 40), (b"e", 60)] {
            keys.note(keys.hash(1, key), seen(1, back_after_us));
        }
        let known = [b"a", b"b", b"c", b"d", b"e"].map(|key| take(&keys, key).is_some());
        assert_eq!(known, [true, false, true, true, true]);
    }

    #[test]
    fn table_takes_a_sixteenth_of_the_memory_and_is_never_larger_than_65_536_keys() {
        for (max_bytes, want) in
            [(None, MAX_SETS), (Some(64 << 20), MAX_SETS), (Some(1 << 20), 256), (Some(100), 0)]
        {
            let keys = SeenKeys::new(max_bytes);
            assert_eq!(keys.sets, want);
            assert!(max_bytes.is_none_or(|bytes| keys.max_bytes() <= bytes / PART_OF_BYTES));
            for key in 0..100_000_u32 {
                keys.note(keys.hash(1, &key.to_le_bytes()), seen(1, 60));
            }
            let allocated = keys.chunks.iter().filter_map(|chunk| chunk.get());
            assert_eq!(allocated.map(|sets| sets.len()).sum::<usize>(), want);
            let is_known = |key: u32| take(&keys, &key.to_le_bytes()).is_some();
            let known = (0..100_000).filter(|key| is_known(*key)).count();
            assert!(known <= want * WAYS && known >= want * WAYS * 9 / 10, "{known} of {want}");
        }
    }
}
