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
use tollgate::Decision;
use tollgate::rules::{RuleName, Ruling};

use crate::logs::RefusalLog;

/// So many are counted.
const COUNTED: usize = 256;

/// Of longer keys so much is kept.
const MAX_KEY_BYTES: usize = 256;

/// Counts are halved so often: who is refused now is told before who was.
const HALVED_EVERY_S: u64 = 60;

/// Who is refused most.
#[derive(Debug)]
pub(crate) struct Refused {
    /// `None` unless refusals are logged.
    log: Option<RefusalLog>,
    /// How those who are counted are found, and told apart: by numbers that nobody outside can choose.
    hashes: RandomState,
    table: Mutex<Table>,
}

/// Somebody who is refused, how often of late.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    /// The name of the limit, or of the rule with its domain: `api/per-client`.
    pub(crate) by: Box<str>,
    /// The limit that refused the key last: of a rule, the one of the client's tier, or `block`.
    pub(crate) limit: Box<str>,
    /// As much of it as is kept.
    pub(crate) key: Box<[u8]>,
    pub(crate) is_cut: bool,
    /// At most so often.
    pub(crate) times: u64,
    /// By which that may be too high.
    pub(crate) excess: u64,
    pub(crate) hash: u64,
}

/// What refuses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By<'b> {
    Limit(&'b str),
    Rule(&'b RuleName),
}

impl By<'_> {
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

/// A refusal to be counted.
struct RefusedKey<'r> {
    by: By<'r>,
    limit: &'r str,
    key: &'r [u8],
}

impl Count {
    fn is_of(&self, by: By<'_>, key: &[u8]) -> bool {
        by.is(&self.by) && *self.key == *cut(key).0
    }
}

/// As much of a key as is kept, and the rest.
fn cut(key: &[u8]) -> (&[u8], &[u8]) {
    key.split_at(key.len().min(MAX_KEY_BYTES))
}

#[derive(Debug)]
struct Table {
    counts: Vec<Count>,
    /// Where in them who has such a hash is.
    places: AHashMap<u64, usize>,
    halved: Instant,
    /// The least count when all were last looked at, and where to look next.
    least: u64,
    hand: usize,
}

impl Default for Refused {
    fn default() -> Refused {
        let table = Mutex::new(Table::new(Instant::now()));
        Refused { log: None, hashes: RandomState::new(), table }
    }
}

impl Refused {
    /// Logs refusals too.
    pub(crate) fn logging(log: Option<RefusalLog>) -> Refused {
        Refused { log, ..Refused::default() }
    }

    /// Counts a refusal by a limit, and logs it if refusals are logged. A request for more than the limit ever has is
    /// not counted: a client could invent a key for each. While another thread counts, the refusal is not counted, so
    /// that no request waits.
    pub(crate) fn count(&self, limit: &str, key: &[u8], decision: &Decision) {
        if !decision.is_allowed() {
            let refusal = RefusedKey { by: By::Limit(limit), limit, key };
            self.note(&refusal, decision.retry_after().is_some());
        }
    }

    /// Does the same for a ruling, if a rule refuses the request. Blocked requests are counted.
    pub(crate) fn count_of(&self, ruling: &Ruling) {
        if let Some(part) = ruling.refused_by() {
            let limit = part.limit_name().unwrap_or("block");
            let refusal = RefusedKey { by: By::Rule(part.name()), limit, key: part.key() };
            self.note(&refusal, ruling.retry_after().is_some() || ruling.is_blocked());
        }
    }

    fn note(&self, refusal: &RefusedKey<'_>, is_counted: bool) {
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

    /// Logs how many refusals were left out of the log since its last line.
    pub(crate) fn log_rest(&self, now: Instant) {
        if let Some(log) = &self.log {
            log.log_rest(now);
        }
    }

    /// Returns the limit under which a rule last refused a key; `None` if the key has no counter.
    pub(crate) fn last_limit(&self, rule: &RuleName, key: &[u8]) -> Option<Box<str>> {
        let by = By::Rule(rule);
        let hash = by.hash(key, &self.hashes);
        let table = self.table.lock();
        let own = table.counts.get(*table.places.get(&hash)?)?;
        own.is_of(by, key).then(|| own.limit.clone())
    }

    /// Those who were refused most of late, by what is certain, the most first.
    pub(crate) fn most(&self, count: usize) -> Vec<Count> {
        let mut table = self.table.lock();
        table.age(Instant::now());
        let mut counts = table.counts.clone();
        drop(table);
        counts.retain(|own| own.times > 0);
        counts.sort_by(|one, other| {
            let names = (&one.by, &one.key).cmp(&(&other.by, &other.key));
            let certain = |own: &Count| own.times - own.excess;
            certain(other).cmp(&certain(one)).then(other.times.cmp(&one.times)).then(names)
        });
        counts.truncate(count);
        counts
    }
}

impl Table {
    fn new(now: Instant) -> Table {
        Table { counts: Vec::new(), places: AHashMap::new(), halved: now, least: 0, hand: 0 }
    }

    fn count(&mut self, refusal: &RefusedKey<'_>, hash: u64, now: Instant) {
        self.age(now);
        let RefusedKey { by, limit, key } = *refusal;
        if let Some(own) = self.places.get(&hash).and_then(|&at| self.counts.get_mut(at)) {
            // Two with the same hash are rarer than anything else that goes wrong: the second has no count.
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
        let mut new = Count { by, limit, key, is_cut: !rest.is_empty(), times: 1, excess: 0, hash };
        if self.counts.len() < COUNTED {
            self.places.insert(hash, self.counts.len());
            self.counts.push(new);
            return;
        }
        let at = self.least();
        if let Some(least) = self.counts.get_mut(at) {
            self.places.remove(&least.hash);
            self.places.insert(hash, at);
            (new.times, new.excess) = (least.times + 1, least.times);
            *least = new;
        }
    }

    /// Where the least count is. Those that were least when all were last looked at come first, in turn: with many
    /// invented keys one look in 256 is at all of them.
    fn least(&mut self) -> usize {
        let is_least = |own: &Count| own.times <= self.least;
        let next = self.counts.iter().skip(self.hand).position(is_least).map(|at| at + self.hand);
        let all = || self.counts.iter().enumerate().min_by_key(|(_, own)| own.times);
        let at = next.or_else(|| all().map(|(at, _)| at)).unwrap_or(0);
        self.least = self.counts.get(at).map_or(0, |own| own.times);
        self.hand = at;
        at
    }

    fn age(&mut self, now: Instant) {
        let minutes = now.saturating_duration_since(self.halved).as_secs() / HALVED_EVERY_S;
        if minutes == 0 {
            return;
        }
        self.halved += Duration::from_secs(minutes * HALVED_EVERY_S);
        let halvings = u32::try_from(minutes).unwrap_or(u32::MAX);
        for own in &mut self.counts {
            own.times = own.times.checked_shr(halvings).unwrap_or(0);
            own.excess = own.excess.checked_shr(halvings).unwrap_or(0);
        }
        (self.least, self.hand) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One more refusal of somebody who has a number.
    fn refuse(table: &mut Table, number: u32, now: Instant) {
        let key = number.to_string();
        let refusal = RefusedKey { by: By::Limit("free"), limit: "free", key: key.as_bytes() };
        table.count(&refusal, number.into(), now);
    }

    /// One more refusal by the limit `free`.
    fn note(refused: &Refused, key: &[u8]) {
        refused.note(&RefusedKey { by: By::Limit("free"), limit: "free", key }, true);
    }

    #[test]
    fn those_refused_most_come_first() {
        let refused = Refused::default();
        for (key, times) in [("a", 2), ("b", 5), ("c", 1)] {
            (0..times).for_each(|_| note(&refused, key.as_bytes()));
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
        table.counts[0].excess = 6;
        let later = |minutes: u64| now + Duration::from_secs(minutes * HALVED_EVERY_S);
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
    fn whoever_has_the_hash_of_another_is_not_taken_for_it() {
        let (mut table, now) = (Table::new(Instant::now()), Instant::now());
        for (limit, key) in [("free", b"a"), ("free", b"b"), ("pro", b"a")] {
            table.count(&RefusedKey { by: By::Limit(limit), limit, key }, 7, now);
        }
        assert_eq!(
            (&*table.counts[0].key, table.counts[0].times, table.counts.len()),
            (&b"a"[..], 1, 1)
        );
    }

    #[test]
    fn of_long_keys_the_beginning_is_kept_and_they_are_told_apart() {
        let refused = Refused::default();
        for last in *b"ab" {
            let key = [&[b'x'; MAX_KEY_BYTES][..], &[last]].concat();
            note(&refused, &key);
        }
        note(&refused, &[b'x'; MAX_KEY_BYTES]);
        let told: Vec<_> = refused.most(9).iter().map(|own| (own.key.len(), own.is_cut)).collect();
        assert_eq!(told, [(MAX_KEY_BYTES, true), (MAX_KEY_BYTES, true), (MAX_KEY_BYTES, false)]);
    }

    #[test]
    fn what_nobody_counts_any_more_is_told_no_longer() {
        let refused = Refused::default();
        note(&refused, b"a");
        refused.table.lock().halved -= Duration::from_secs(HALVED_EVERY_S);
        assert_eq!(refused.most(9), []);
    }

    #[test]
    fn what_is_certain_comes_before_what_may_be() {
        let refused = Refused::default();
        let now = Instant::now();
        (0..9).for_each(|_| refuse(&mut refused.table.lock(), 1, now));
        (0..20).for_each(|_| refuse(&mut refused.table.lock(), 2, now));
        refused.table.lock().counts[1].excess = 19;
        assert_eq!(&*refused.most(1)[0].key, b"1");
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
