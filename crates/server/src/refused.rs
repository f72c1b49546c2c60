//! Who is refused most: a few counts, whoever asks and however many they are.
//!
//! The counters of Metwally, Agrawal and El Abbadi ("Space-Saving"): who is refused and has no counter takes that
//! of whoever was refused least, count and all. A count is too high by at most the least one, and nobody is
//! missing who was refused more often than that.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::time::{Duration, Instant};

use ahash::{AHashMap, RandomState};
use parking_lot::Mutex;
use tollgate::rules::{RuleName, Ruling};

/// So many are counted.
const COUNTED: usize = 256;

/// Longer keys are not kept, nor are longer names.
const MAX_BYTES: usize = 256;

/// Counts are halved so often: who is refused now is told before who was.
const HALVED_EVERY: Duration = Duration::from_secs(60);

/// Who is refused most.
#[derive(Debug)]
pub(crate) struct Refused {
    /// How those who are counted are found: by numbers that nobody outside can choose.
    hashes: RandomState,
    table: Mutex<Table>,
}

/// Somebody who is refused, how often of late.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    /// The name of the limit, or of the rule with its domain: `api/per-client`.
    pub(crate) by: Box<str>,
    pub(crate) key: Box<[u8]>,
    /// At most so often.
    pub(crate) times: u64,
    /// By which that may be too high.
    pub(crate) excess: u64,
    hash: u64,
}

/// What refuses.
#[derive(Clone, Copy, Debug)]
enum By<'b> {
    Limit(&'b str),
    Rule(&'b RuleName),
}

impl By<'_> {
    fn len(self) -> usize {
        match self {
            By::Limit(name) => name.len(),
            By::Rule(rule) => rule.domain().len() + rule.name().len() + 1,
        }
    }

    fn is(self, name: &str) -> bool {
        match self {
            By::Limit(own) => own == name,
            By::Rule(own) => {
                let rest = name.strip_prefix(own.domain()).and_then(|rest| rest.strip_prefix('/'));
                rest == Some(own.name())
            }
        }
    }

    /// With a key, as a number.
    fn hash(self, key: &[u8], hashes: &RandomState) -> u64 {
        let mut hasher = hashes.build_hasher();
        match self {
            By::Limit(name) => hasher.write(name.as_bytes()),
            By::Rule(rule) => {
                hasher.write(rule.domain().as_bytes());
                hasher.write(rule.name().as_bytes());
            }
        }
        hasher.write_usize(key.len());
        hasher.write(key);
        hasher.finish()
    }
}

impl fmt::Display for By<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            By::Limit(name) => f.write_str(name),
            By::Rule(rule) => rule.fmt(f),
        }
    }
}

#[derive(Debug)]
struct Table {
    counts: Vec<Count>,
    /// Where in them who has such a hash is.
    places: AHashMap<u64, usize>,
    halved: Instant,
}

impl Default for Refused {
    fn default() -> Refused {
        Refused { hashes: RandomState::new(), table: Mutex::new(Table::new(Instant::now())) }
    }
}

impl Refused {
    /// One more refusal by a limit. If somebody else counts at this very moment it is left out: nobody waits.
    pub(crate) fn count(&self, limit: &str, key: &[u8]) {
        self.count_by(By::Limit(limit), key);
    }

    /// The same of whom a rule refuses, if one does.
    pub(crate) fn count_of(&self, ruling: &Ruling) {
        if let Some(part) = ruling.refused_by() {
            self.count_by(By::Rule(part.name()), part.key());
        }
    }

    fn count_by(&self, by: By<'_>, key: &[u8]) {
        if by.len() > MAX_BYTES || key.len() > MAX_BYTES {
            return;
        }
        let hash = by.hash(key, &self.hashes);
        if let Some(mut table) = self.table.try_lock() {
            table.count(by, key, hash, Instant::now());
        }
    }

    /// Those who were refused most of late, the most first.
    pub(crate) fn most(&self, count: usize) -> Vec<Count> {
        let mut table = self.table.lock();
        table.age(Instant::now());
        let mut counts = table.counts.clone();
        drop(table);
        counts.retain(|own| own.times > 0);
        counts.sort_by(|one, other| {
            let names = (&one.by, &one.key).cmp(&(&other.by, &other.key));
            other.times.cmp(&one.times).then(names)
        });
        counts.truncate(count);
        counts
    }
}

impl Table {
    fn new(now: Instant) -> Table {
        Table { counts: Vec::new(), places: AHashMap::new(), halved: now }
    }

    fn count(&mut self, by: By<'_>, key: &[u8], hash: u64, now: Instant) {
        self.age(now);
        if let Some(own) = self.places.get(&hash).and_then(|&at| self.counts.get_mut(at)) {
            // Two with the same hash are rarer than anything else that goes wrong: the second has no count.
            own.times += u64::from(by.is(&own.by) && *own.key == *key);
            return;
        }
        let mut new =
            Count { by: by.to_string().into(), key: key.into(), times: 1, excess: 0, hash };
        if self.counts.len() < COUNTED {
            self.places.insert(hash, self.counts.len());
            self.counts.push(new);
            return;
        }
        let least = self.counts.iter_mut().enumerate().min_by_key(|(_, own)| own.times);
        if let Some((at, least)) = least {
            self.places.remove(&least.hash);
            self.places.insert(hash, at);
            (new.times, new.excess) = (least.times + 1, least.times);
            *least = new;
        }
    }

    fn age(&mut self, now: Instant) {
        while let Some(next) = self.halved.checked_add(HALVED_EVERY).filter(|next| *next <= now) {
            self.halved = next;
            self.counts.iter_mut().for_each(|own| {
                own.times /= 2;
                own.excess /= 2;
            });
            // After so long nothing is left to halve.
            if self.counts.iter().all(|own| own.times == 0) {
                self.halved = now;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One more refusal of somebody who has a number.
    fn refuse(table: &mut Table, number: u32, now: Instant) {
        let key = number.to_string();
        table.count(By::Limit("free"), key.as_bytes(), number.into(), now);
    }

    #[test]
    fn those_refused_most_come_first() {
        let refused = Refused::default();
        for (key, times) in [("a", 2), ("b", 5), ("c", 1)] {
            (0..times).for_each(|_| refused.count("free", key.as_bytes()));
        }
        let most = refused.most(2);
        let told: Vec<_> = most.iter().map(|own| (&*own.key, own.times)).collect();
        assert_eq!(told, [(&b"b"[..], 5), (&b"a"[..], 2)]);
    }

    #[test]
    fn what_was_long_ago_counts_less_and_then_nothing() {
        let now = Instant::now();
        let mut table = Table::new(now);
        (0..8).for_each(|_| refuse(&mut table, 1, now));
        table.age(now + HALVED_EVERY);
        assert_eq!(table.counts[0].times, 4);
        table.age(now + 10 * HALVED_EVERY);
        assert_eq!(table.counts[0].times, 0);
    }

    #[test]
    fn whoever_has_the_hash_of_another_is_not_taken_for_it() {
        let (mut table, now) = (Table::new(Instant::now()), Instant::now());
        table.count(By::Limit("free"), b"a", 7, now);
        table.count(By::Limit("free"), b"b", 7, now);
        table.count(By::Limit("pro"), b"a", 7, now);
        assert_eq!(
            (&*table.counts[0].key, table.counts[0].times, table.counts.len()),
            (&b"a"[..], 1, 1)
        );
    }

    #[test]
    fn long_keys_are_not_kept() {
        let refused = Refused::default();
        refused.count("free", &[b'x'; MAX_BYTES + 1]);
        refused.count(&"x".repeat(MAX_BYTES + 1), b"a");
        assert_eq!(refused.most(9), []);
    }

    proptest! {
        #[test]
        fn counts_are_as_true_as_they_say(keys in prop::collection::vec(0_u32..600, 0..3_000)) {
            let now = Instant::now();
            let mut table = Table::new(now);
            let mut true_counts = AHashMap::<u32, u64>::new();
            for &key in &keys {
                refuse(&mut table, key, now);
                *true_counts.entry(key).or_default() += 1;
            }
            prop_assert!(table.counts.len() <= COUNTED);
            prop_assert_eq!(table.counts.len(), table.places.len());
            let least = table.counts.iter().map(|own| own.times).min().unwrap_or(0);
            for (key, times) in true_counts {
                match table.places.get(&u64::from(key)) {
                    Some(&at) => {
                        let Count { times: told, excess, .. } = table.counts[at];
                        prop_assert!(told >= times && told - excess <= times);
                    }
                    None => prop_assert!(times <= least),
                }
            }
        }
    }
}
