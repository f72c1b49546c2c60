//! Who is refused most: a few counts, whoever asks and however many they are.
//!
//! The counters of Metwally, Agrawal and El Abbadi ("Space-Saving"): who is refused and has no counter takes that
//! of whoever was refused least, count and all. A count is too high by at most the least one, and nobody is
//! missing who was refused more often than that.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ahash::RandomState;
use parking_lot::Mutex;
use tollgate::rules::Ruling;

/// So many are counted.
const COUNTED: usize = 256;

/// Longer keys are not kept, nor are longer names.
const MAX_BYTES: usize = 256;

/// Counts are halved so often: who is refused now is told before who was.
const HALVED_EVERY: Duration = Duration::from_secs(60);

/// Who is refused most.
#[derive(Debug)]
pub(crate) struct Refused {
    table: Mutex<Table>,
}

/// Somebody who is refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Who {
    /// The name of the limit, or of the rule with its domain: `api/per-client`.
    pub(crate) by: Box<str>,
    pub(crate) key: Box<[u8]>,
}

/// How often, of late.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) who: Who,
    /// At most so often.
    pub(crate) times: u64,
    /// By which that may be too high.
    pub(crate) excess: u64,
}

#[derive(Debug)]
struct Table {
    counts: Vec<Count>,
    places: HashMap<Who, usize, RandomState>,
    halved: Instant,
}

impl Default for Refused {
    fn default() -> Refused {
        let (counts, places) = Default::default();
        Refused { table: Mutex::new(Table { counts, places, halved: Instant::now() }) }
    }
}

impl Refused {
    /// One more refusal. If somebody else counts at this very moment it is left out: nobody waits.
    pub(crate) fn count(&self, by: &str, key: &[u8]) {
        if by.len() > MAX_BYTES || key.len() > MAX_BYTES {
            return;
        }
        if let Some(mut table) = self.table.try_lock() {
            table.count(Who { by: by.into(), key: key.into() }, Instant::now());
        }
    }

    /// The same of whom a rule refuses.
    pub(crate) fn count_of(&self, ruling: &Ruling) {
        if let Some(part) = ruling.refused_by() {
            self.count(&part.name().to_string(), part.key());
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
            let names = (&one.who.by, &one.who.key).cmp(&(&other.who.by, &other.who.key));
            other.times.cmp(&one.times).then(names)
        });
        counts.truncate(count);
        counts
    }
}

impl Table {
    fn count(&mut self, who: Who, now: Instant) {
        self.age(now);
        if let Some(own) = self.places.get(&who).and_then(|&at| self.counts.get_mut(at)) {
            own.times += 1;
            return;
        }
        if self.counts.len() < COUNTED {
            self.places.insert(who.clone(), self.counts.len());
            self.counts.push(Count { who, times: 1, excess: 0 });
            return;
        }
        let least = self.counts.iter_mut().enumerate().min_by_key(|(_, own)| own.times);
        if let Some((at, least)) = least {
            self.places.remove(&least.who);
            self.places.insert(who.clone(), at);
            *least = Count { who, times: least.times + 1, excess: least.times };
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

    fn who(number: u32) -> Who {
        Who { by: "api/per-client".into(), key: number.to_string().as_bytes().into() }
    }

    fn table() -> Table {
        let (counts, places) = Default::default();
        Table { counts, places, halved: Instant::now() }
    }

    #[test]
    fn those_refused_most_come_first() {
        let refused = Refused::default();
        for (key, times) in [("a", 2), ("b", 5), ("c", 1)] {
            (0..times).for_each(|_| refused.count("free", key.as_bytes()));
        }
        let most = refused.most(2);
        let told: Vec<_> = most.iter().map(|own| (&*own.who.key, own.times)).collect();
        assert_eq!(told, [(&b"b"[..], 5), (&b"a"[..], 2)]);
    }

    #[test]
    fn what_was_long_ago_counts_less_and_then_nothing() {
        let (mut table, now) = (table(), Instant::now());
        (0..8).for_each(|_| table.count(who(1), now));
        table.age(now + HALVED_EVERY);
        assert_eq!(table.counts[0].times, 4);
        table.age(now + 10 * HALVED_EVERY);
        assert_eq!(table.counts[0].times, 0);
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
            let (mut table, now) = (table(), Instant::now());
            let mut true_counts = HashMap::<u32, u64>::new();
            for &key in &keys {
                table.count(who(key), now);
                *true_counts.entry(key).or_default() += 1;
            }
            prop_assert!(table.counts.len() <= COUNTED);
            prop_assert_eq!(table.counts.len(), table.places.len());
            let least = table.counts.iter().map(|own| own.times).min().unwrap_or(0);
            for (key, times) in true_counts {
                match table.places.get(&who(key)) {
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
