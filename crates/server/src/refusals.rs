//! Finds the keys that are refused most, in bounded memory.
//!
//! The algorithm is "Space-Saving" by Metwally, Agrawal and El Abbadi. A refused key without a counter takes over the
//! counter with the smallest count, and counts on from there. So a count is too high by at most the smallest count, and
//! every key that was refused more often than the smallest count has a counter.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::time::{Duration, Instant};

use ahash::{AHashMap, RandomState};
use parking_lot::Mutex;
use tollgate::Decision;
use tollgate::rules::{RuleName, Ruling};

use crate::logs::RefusalLog;

/// The number of counters.
const MAX_COUNTERS: usize = 256;

/// The part of a key that is kept; the rest is cut off.
const MAX_KEY_BYTES: usize = 256;

/// The interval at which counts are halved, so that recent refusals count more than old ones.
const HALVING_INTERVAL_S: u64 = 60;

/// Counts refusals by key, and logs a sample of them.
#[derive(Debug)]
pub(crate) struct Refusals {
    /// `None` unless refusals are logged.
    log: Option<RefusalLog>,
    /// Hashes keys with random keys, so that no client can choose colliding ones.
    hashes: RandomState,
    table: Mutex<RefusalTable>,
}

/// The recent refusals of one key by one limit or rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusalCount {
    /// The name of the limit, or of the rule with its domain: `api/per-client`.
    pub(crate) by: Box<str>,
    /// The limit that refused the key last: for a rule with tiers, the limit of the client's tier; or `block`.
    pub(crate) limit: Box<str>,
    /// The key, or its first [`MAX_KEY_BYTES`].
    pub(crate) key: Box<[u8]>,
    /// Whether `key` is only the beginning of the key.
    pub(crate) is_cut: bool,
    /// The number of refusals, or more.
    pub(crate) times: u64,
    /// The most by which `times` may be too high.
    pub(crate) excess: u64,
    pub(crate) hash: u64,
}

/// The limit or rule that refuses a request.
#[derive(Clone, Copy, Debug)]
enum Refuser<'n> {
    Limit(&'n str),
    Rule(&'n RuleName),
}

impl Refuser<'_> {
    fn has_name(self, name: &str) -> bool {
        match self {
            Refuser::Limit(own) => own == name,
            Refuser::Rule(own) => {
                let rest = name.strip_prefix(own.domain()).and_then(|rest| rest.strip_prefix('/'));
                rest == Some(own.name())
            }
        }
    }

    /// Returns a hash of the refuser and a key.
    fn hash(self, key: &[u8], hashes: &RandomState) -> u64 {
        let mut hasher = hashes.build_hasher();
        match self {
            Refuser::Limit(name) => hasher.write(name.as_bytes()),
            Refuser::Rule(rule) => {
                hasher.write(rule.domain().as_bytes());
                hasher.write(rule.name().as_bytes());
            }
        }
        hasher.write_usize(key.len());
        hasher.write(key);
        hasher.finish()
    }
}

impl fmt::Display for Refuser<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refuser::Limit(name) => f.write_str(name),
            Refuser::Rule(rule) => rule.fmt(f),
        }
    }
}

/// A refused key, with its refuser.
struct RefusedKey<'r> {
    by: Refuser<'r>,
    limit: &'r str,
    key: &'r [u8],
}

impl RefusalCount {
    fn is_of(&self, by: Refuser<'_>, key: &[u8]) -> bool {
        by.has_name(&self.by) && *self.key == *cut(key).0
    }
}

/// Splits a key into the part that is kept and the rest.
fn cut(key: &[u8]) -> (&[u8], &[u8]) {
    key.split_at(key.len().min(MAX_KEY_BYTES))
}

#[derive(Debug)]
struct RefusalTable {
    counts: Vec<RefusalCount>,
    /// The index in `counts` of the counter with a hash.
    indices: AHashMap<u64, usize>,
    /// When the counts were last halved.
    halved: Instant,
    /// The least count of the last scan of all counters.
    least: u64,
    /// The index at which the next search for a counter with the least count begins.
    search_from: usize,
}

impl Default for Refusals {
    fn default() -> Refusals {
        let table = Mutex::new(RefusalTable::new(Instant::now()));
        Refusals { log: None, hashes: RandomState::new(), table }
    }
}

impl Refusals {
    /// Returns counters that also log refusals, if there is a log.
    pub(crate) fn logging(log: Option<RefusalLog>) -> Refusals {
        Refusals { log, ..Refusals::default() }
    }

    /// Counts a refusal by a limit, and logs it if refusals are logged. A request whose cost is above the size of the
    /// limit is not counted: it is refused even under an unused key, so a client could send one for each of many
    /// made-up keys. While another thread counts, the refusal is not counted, so that no request waits.
    pub(crate) fn count(&self, limit: &str, key: &[u8], decision: &Decision) {
        if !decision.is_allowed() {
            let refusal = RefusedKey { by: Refuser::Limit(limit), limit, key };
            self.record(&refusal, decision.retry_after().is_some());
        }
    }

    /// Counts and logs a refusal in the same way for a ruling, if a rule refuses the request. Blocked requests are
    /// counted.
    pub(crate) fn count_ruling(&self, ruling: &Ruling) {
        if let Some(part) = ruling.refused_by() {
            let limit = part.limit_name().unwrap_or("block");
            let refusal = RefusedKey { by: Refuser::Rule(part.name()), limit, key: part.key() };
            self.record(&refusal, ruling.retry_after().is_some() || ruling.is_blocked());
        }
    }

    fn record(&self, refusal: &RefusedKey<'_>, is_counted: bool) {
        if is_counted {
            let hash = refusal.by.hash(refusal.key, &self.hashes);
            if let Some(mut table) = self.table.try_lock() {
                table.count(refusal, hash, Instant::now());
            }
        }
        if let Some(log) = &self.log {
            log.refused(&refusal.by, refusal.limit, refusal.key);
        }
    }

    /// Logs how many refusals were left out of the log since its last line, if that line is old enough.
    pub(crate) fn log_rest(&self, now: Instant) {
        if let Some(log) = &self.log {
            log.log_rest(now);
        }
    }

    /// Returns the limit under which a rule last refused a key; `None` if the key has no counter.
    pub(crate) fn last_limit(&self, rule: &RuleName, key: &[u8]) -> Option<Box<str>> {
        let by = Refuser::Rule(rule);
        let hash = by.hash(key, &self.hashes);
        let table = self.table.lock();
        let own = table.counts.get(*table.indices.get(&hash)?)?;
        own.is_of(by, key).then(|| own.limit.clone())
    }

    /// Returns up to `count` keys with the most refusals, sorted by the number of refusals that is certain.
    pub(crate) fn most(&self, count: usize) -> Vec<RefusalCount> {
        let mut table = self.table.lock();
        table.age(Instant::now());
        let mut counts = table.counts.clone();
        drop(table);
        counts.retain(|own| own.times > 0);
        counts.sort_by(|one, other| {
            let names = (&one.by, &one.key).cmp(&(&other.by, &other.key));
            let certain = |own: &RefusalCount| own.times - own.excess;
            certain(other).cmp(&certain(one)).then(other.times.cmp(&one.times)).then(names)
        });
        counts.truncate(count);
        counts
    }
}

impl RefusalTable {
    fn new(now: Instant) -> RefusalTable {
        let (counts, indices) = Default::default();
        RefusalTable { counts, indices, halved: now, least: 0, search_from: 0 }
    }

    fn count(&mut self, refusal: &RefusedKey<'_>, hash: u64, now: Instant) {
        self.age(now);
        let RefusedKey { by, limit, key } = *refusal;
        if let Some(own) = self.indices.get(&hash).and_then(|&at| self.counts.get_mut(at)) {
            // A second key with the same hash is not counted. That is so rare that it does not matter.
            if own.is_of(by, key) {
                own.times += 1;
                if *own.limit != *limit {
                    own.limit = limit.into();
                }
            }
            return;
        }
        let (kept, rest) = cut(key);
        let (by, limit, key) = (by.to_string().into(), limit.into(), kept.into());
        let is_cut = !rest.is_empty();
        let mut new = RefusalCount { by, limit, key, is_cut, times: 1, excess: 0, hash };
        if self.counts.len() < MAX_COUNTERS {
            self.indices.insert(hash, self.counts.len());
            self.counts.push(new);
            return;
        }
        let at = self.least_index();
        if let Some(least) = self.counts.get_mut(at) {
            self.indices.remove(&least.hash);
            self.indices.insert(hash, at);
            (new.times, new.excess) = (least.times + 1, least.times);
            *least = new;
        }
    }

    /// Returns the index of a counter with the smallest count. First tries, one after the other, the counters that had
    /// the smallest count in the last scan and still have it. So with many invented keys only one search in 256 scans
    /// all counters.
    fn least_index(&mut self) -> usize {
        let is_least = |own: &RefusalCount| own.times <= self.least;
        let from = self.search_from;
        let next = self.counts.iter().skip(from).position(is_least).map(|at| at + from);
        let all = || self.counts.iter().enumerate().min_by_key(|(_, own)| own.times);
        let at = next.or_else(|| all().map(|(at, _)| at)).unwrap_or(0);
        self.least = self.counts.get(at).map_or(0, |own| own.times);
        self.search_from = at;
        at
    }

    /// Halves the counts once for each [`HALVING_INTERVAL_S`] since they were last halved.
    fn age(&mut self, now: Instant) {
        let minutes = now.saturating_duration_since(self.halved).as_secs() / HALVING_INTERVAL_S;
        if minutes == 0 {
            return;
        }
        self.halved += Duration::from_secs(minutes * HALVING_INTERVAL_S);
        let halvings = u32::try_from(minutes).unwrap_or(u32::MAX);
        for own in &mut self.counts {
            own.times = own.times.checked_shr(halvings).unwrap_or(0);
            own.excess = own.excess.checked_shr(halvings).unwrap_or(0);
        }
        (self.least, self.search_from) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Counts a refusal of the key with a number.
    fn refuse(table: &mut RefusalTable, number: u32, now: Instant) {
        let key = number.to_string();
        let by = Refuser::Limit("free");
        let refusal = RefusedKey { by, limit: "free", key: key.as_bytes() };
        table.count(&refusal, number.into(), now);
    }

    /// Counts a refusal by the limit `free`.
    fn record(refusals: &Refusals, key: &[u8]) {
        refusals.record(&RefusedKey { by: Refuser::Limit("free"), limit: "free", key }, true);
    }

    #[test]
    fn keys_are_sorted_by_refusals() {
        let refusals = Refusals::default();
        for (key, times) in [("a", 2), ("b", 5), ("c", 1)] {
            (0..times).for_each(|_| record(&refusals, key.as_bytes()));
        }
        let most = refusals.most(2);
        let counts: Vec<_> = most.iter().map(|own| (&*own.key, own.times)).collect();
        assert_eq!(counts, [(&b"b"[..], 5), (&b"a"[..], 2)]);
    }

    #[test]
    fn counts_are_halved_every_minute() {
        let now = Instant::now();
        let mut table = RefusalTable::new(now);
        (0..8).for_each(|_| refuse(&mut table, 1, now));
        table.counts[0].excess = 6;
        let later = |minutes: u64| now + Duration::from_secs(minutes * HALVING_INTERVAL_S);
        table.age(later(1) - Duration::from_nanos(1));
        assert_eq!((table.counts[0].times, table.counts[0].excess), (8, 6));
        table.age(later(1));
        assert_eq!((table.counts[0].times, table.counts[0].excess), (4, 3));
        table.age(later(2));
        assert_eq!((table.counts[0].times, table.counts[0].excess), (2, 1));
        table.age(later(1_000));
        assert_eq!((table.counts[0].times, table.counts[0].excess), (0, 0));
    }

    #[test]
    fn keys_with_the_same_hash_do_not_share_a_count() {
        let (mut table, now) = (RefusalTable::new(Instant::now()), Instant::now());
        for (limit, key) in [("free", b"a"), ("free", b"b"), ("pro", b"a")] {
            table.count(&RefusedKey { by: Refuser::Limit(limit), limit, key }, 7, now);
        }
        assert_eq!(
            (&*table.counts[0].key, table.counts[0].times, table.counts.len()),
            (&b"a"[..], 1, 1)
        );
    }

    #[test]
    fn long_keys_are_cut_and_counted_separately() {
        let refusals = Refusals::default();
        for last in *b"ab" {
            let key = [&[b'x'; MAX_KEY_BYTES][..], &[last]].concat();
            record(&refusals, &key);
        }
        record(&refusals, &[b'x'; MAX_KEY_BYTES]);
        let kept: Vec<_> = refusals.most(9).iter().map(|own| (own.key.len(), own.is_cut)).collect();
        assert_eq!(kept, [(MAX_KEY_BYTES, true), (MAX_KEY_BYTES, true), (MAX_KEY_BYTES, false)]);
    }

    #[test]
    fn keys_whose_count_has_become_0_are_left_out() {
        let refusals = Refusals::default();
        record(&refusals, b"a");
        refusals.table.lock().halved -= Duration::from_secs(HALVING_INTERVAL_S);
        assert_eq!(refusals.most(9), []);
    }

    #[test]
    fn keys_are_sorted_by_the_refusals_that_are_certain() {
        let refusals = Refusals::default();
        let now = Instant::now();
        (0..9).for_each(|_| refuse(&mut refusals.table.lock(), 1, now));
        (0..20).for_each(|_| refuse(&mut refusals.table.lock(), 2, now));
        refusals.table.lock().counts[1].excess = 19;
        assert_eq!(&*refusals.most(1)[0].key, b"1");
    }

    proptest! {
        #[test]
        fn counts_are_too_high_by_at_most_their_excess(keys in prop::collection::vec(0_u32..600, 0..3_000)) {
            let now = Instant::now();
            let mut table = RefusalTable::new(now);
            let mut true_counts = AHashMap::<u32, u64>::new();
            for &key in &keys {
                refuse(&mut table, key, now);
                *true_counts.entry(key).or_default() += 1;
            }
            prop_assert!(table.counts.len() <= MAX_COUNTERS);
            prop_assert_eq!(table.counts.len(), table.indices.len());
            let least = table.counts.iter().map(|own| own.times).min().unwrap_or(0);
            for (key, times) in true_counts {
                match table.indices.get(&u64::from(key)) {
                    Some(&at) => {
                        let RefusalCount { times: counted, excess, .. } = table.counts[at];
                        prop_assert!(counted >= times && counted - excess <= times);
                    }
                    None => prop_assert!(times <= least),
                }
            }
        }
    }
}
