//! The deny cache: a refusal holds until its wait is over, so a repeated request needs no round trip.
//!
//! A refusal is remembered for at most a second, because this process does not know the requests of other processes: it
//! notices units that another process gives back up to a second late. The entries are in two generations, so that
//! nothing has to search for ended ones. A second after the young generation began, it becomes the old one. The
//! previous old generation is then cleared, because all of its entries have ended.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use ahash::RandomState;
use parking_lot::Mutex;
use siphasher::sip128::SipHasher13;
use tollgate_core::{Limit, LimitDecision, Retry, Verdict};

/// The longest that a refusal is remembered.
const MAX_LIFE_US: u64 = 1_000_000;

/// The most refusals in a generation. Further refusals are not remembered, and such requests go to the server.
///
/// The number is seven eighths of a power of two: with one more, a map would double. That many refusals take 1.6 MB, both
/// generations 3.2 MB, which stay allocated. If many refusals are forgotten, it is at most twice as much, because a map
/// with many removed entries may grow once.
const MAX_PER_GENERATION: usize = 14_336;

/// The refusals of the last second.
///
/// After a refusal of cost 5 at 0 ms with a wait of 400 ms, requests of cost 5 and more are answered here until 400 ms;
/// at 300 ms the answer is a wait of 100 ms. A request of cost 4 might fit, so it goes to the server.
pub(crate) struct Denials {
    fingerprint: SipHasher13,
    limits: RandomState,
    /// The number of refusals, so that an empty cache is not searched.
    count: AtomicUsize,
    generations: Mutex<Generations>,
}

/// A keyed fingerprint of 128 bits of the key on the server.
type KeyFingerprint = u128;

/// A check: its key, its limit and its cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DenialQuery<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) limit: &'a Limit,
    pub(crate) cost: u64,
}

/// A refusal of a key, or a marker that units of the key came back.
#[derive(Clone, Copy)]
struct DenialEntry {
    /// A keyed hash of the limit: 64 bits are enough for the few limits that a key has in a second.
    limit: u64,
    cost: u64,
    sent_us: u64,
    /// The refusal. `None` is the marker: units came back at `sent_us`, so refusals of requests that were sent up to then
    /// are ignored.
    decision: Option<LimitDecision>,
}

/// The refusals of the last two seconds. A key is in at most one of the two maps.
#[derive(Default)]
struct Generations {
    young: HashMap<KeyFingerprint, DenialEntry, RandomState>,
    old: HashMap<KeyFingerprint, DenialEntry, RandomState>,
    /// When the young generation began.
    begun_us: u64,
}

impl Denials {
    pub(crate) fn new() -> Denials {
        let seed = RandomState::new();
        Denials {
            fingerprint: SipHasher13::new_with_keys(seed.hash_one(0_u8), seed.hash_one(1_u8)),
            limits: seed,
            count: AtomicUsize::new(0),
            generations: Mutex::default(),
        }
    }

    /// Remembers the refusal of a request that was sent at `sent_us`; an allowed request is ignored.
    ///
    /// Not for a refusal that `max_wait` caused: a caller with a longer `max_wait` might be allowed.
    pub(crate) fn remember(&self, query: DenialQuery<'_>, sent_us: u64, decision: LimitDecision) {
        if decision.is_allowed() {
            return;
        }
        let limit = self.limits.hash_one(query.limit);
        let refusal = DenialEntry { limit, cost: query.cost, sent_us, decision: Some(decision) };
        let fingerprint = self.fingerprint_of(query.key);
        self.change(|generations| generations.insert(fingerprint, refusal));
    }

    /// Returns the remembered refusal of a request, with what is left of its wait. It also answers requests of a larger
    /// cost, which wait at least as long.
    ///
    /// A refusal under another limit is forgotten: the request will carry the key's state over.
    #[inline]
    pub(crate) fn recall(&self, query: DenialQuery<'_>, now_us: u64) -> Option<LimitDecision> {
        if self.is_empty() {
            return None;
        }
        let (fingerprint, limit) =
            (self.fingerprint_of(query.key), self.limits.hash_one(query.limit));
        self.change(|generations| {
            generations.rotate(now_us);
            let refusal = generations.find(&fingerprint)?;
            if refusal.decision.is_some() && refusal.limit != limit {
                generations.forget(fingerprint, now_us);
                return None;
            }
            refusal.answer(query.cost, now_us)
        })
    }

    /// Forgets the key's refusal, because units came back.
    pub(crate) fn forget(&self, key: &[u8], now_us: u64) {
        let fingerprint = self.fingerprint_of(key);
        self.change(|generations| generations.forget(fingerprint, now_us));
    }

    #[inline]
    fn is_empty(&self) -> bool {
        // Relaxed: a thread that has received a refusal sees that it is counted.
        self.count.load(Ordering::Relaxed) == 0
    }

    fn change<T>(&self, act: impl FnOnce(&mut Generations) -> T) -> T {
        let mut generations = self.generations.lock();
        let answer = act(&mut generations);
        self.count.store(generations.young.len() + generations.old.len(), Ordering::Relaxed);
        answer
    }

    fn fingerprint_of(&self, key: &[u8]) -> KeyFingerprint {
        self.fingerprint.hash(key).as_u128()
    }
}

impl fmt::Debug for Denials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Denials").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Generations {
    fn find(&self, fingerprint: &KeyFingerprint) -> Option<&DenialEntry> {
        self.young.get(fingerprint).or_else(|| self.old.get(fingerprint))
    }

    fn insert(&mut self, fingerprint: KeyFingerprint, new: DenialEntry) {
        // A late answer does not set the time back.
        self.rotate(new.sent_us.max(self.begun_us));
        if self.find(&fingerprint).is_some_and(|kept| kept.outranks(&new)) {
            return;
        }
        if self.young.len() < MAX_PER_GENERATION || self.young.contains_key(&fingerprint) {
            self.old.remove(&fingerprint);
            self.young.insert(fingerprint, new);
        }
    }

    fn forget(&mut self, fingerprint: KeyFingerprint, now_us: u64) {
        self.young.remove(&fingerprint);
        self.old.remove(&fingerprint);
        self.insert(
            fingerprint,
            DenialEntry { limit: 0, cost: 0, sent_us: now_us, decision: None },
        );
    }

    /// Begins a new generation if the young one began at least a second ago, or if the clock has stepped back since.
    fn rotate(&mut self, now_us: u64) {
        if now_us.abs_diff(self.begun_us) >= MAX_LIFE_US {
            std::mem::swap(&mut self.young, &mut self.old);
            // Cleared, not dropped: freeing the map and growing a new one would take milliseconds under the lock.
            self.young.clear();
            self.begun_us = now_us;
        }
    }
}

impl DenialEntry {
    /// Returns when the refusal ends.
    fn until_us(&self) -> u64 {
        let wait_us = self.decision.and_then(|it| it.retry_after_us()).unwrap_or(u64::MAX);
        self.sent_us.saturating_add(wait_us.min(MAX_LIFE_US))
    }

    /// Returns whether this refusal is kept instead of the new one. While two refusals under one limit both hold, the one of
    /// the smaller cost answers every request that the other one answers.
    fn outranks(&self, new: &DenialEntry) -> bool {
        if self.decision.is_none() {
            return new.sent_us <= self.sent_us;
        }
        let both_live = self.sent_us < new.until_us() && new.sent_us < self.until_us();
        if both_live && self.limit == new.limit && self.cost != new.cost {
            return self.cost < new.cost;
        }
        self.sent_us > new.sent_us
    }

    fn answer(&self, cost: u64, now_us: u64) -> Option<LimitDecision> {
        let (decision, since_us) = (self.decision?, now_us.checked_sub(self.sent_us)?);
        if cost < self.cost || now_us >= self.until_us() {
            return None;
        }
        let retry = match decision.retry_after_us() {
            // OK because the refusal has not ended: at least 1 us is left.
            Some(wait_us) if cost <= decision.limit => Retry::AfterUs(wait_us - since_us),
            _ => Retry::Never,
        };
        let verdict = Verdict::Denied { retry };
        let reset_after_us = decision.reset_after_us.saturating_sub(since_us);
        // At least 1, because 0 means that the limit does not report it.
        let first_back_us =
            decision.first_back_us.saturating_sub(since_us).max(decision.first_back_us.min(1));
        Some(LimitDecision { verdict, reset_after_us, first_back_us, ..decision })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const START_US: u64 = 1_700_000_000_000_000;
    const KEY: &[u8] = b"user:42";

    /// A refusal by a limit of 10.
    fn denied(retry: Retry) -> LimitDecision {
        LimitDecision {
            verdict: Verdict::Denied { retry },
            limit: 10,
            remaining: 3,
            reset_after_us: 700_000,
            first_back_us: 200_000,
        }
    }

    fn wait(wait_us: u64) -> LimitDecision {
        denied(Retry::AfterUs(wait_us))
    }

    /// A request to the limit of 10.
    fn query(key: &[u8], cost: u64) -> DenialQuery<'_> {
        static LIMIT: LazyLock<Limit> =
            LazyLock::new(|| "token-bucket capacity=10 refill=1/s".parse().unwrap());
        DenialQuery { key, limit: &LIMIT, cost }
    }

    /// A cache of one key, its times counted from the start.
    struct OneKey(Denials);

    impl OneKey {
        fn new() -> OneKey {
            OneKey(Denials::new())
        }

        fn remember(&self, cost: u64, sent_us: u64, decision: LimitDecision) {
            self.0.remember(query(KEY, cost), START_US + sent_us, decision);
        }

        fn recall(&self, cost: u64, at_us: u64) -> Option<LimitDecision> {
            self.0.recall(query(KEY, cost), START_US + at_us)
        }

        fn retry(&self, cost: u64, at_us: u64) -> Option<Retry> {
            let decision = self.recall(cost, at_us)?;
            match decision.verdict {
                Verdict::Denied { retry } => Some(retry),
                Verdict::Allowed { .. } => panic!("recalled {decision:?}"),
            }
        }
    }

    #[test]
    fn empty_cache_recalls_nothing() {
        let cache = OneKey::new();
        assert_eq!(cache.recall(1, 0), None);
        cache.0.forget(KEY, START_US);
    }

    #[test]
    fn a_refusal_answers_until_its_wait_is_over() {
        let cache = OneKey::new();
        cache.remember(5, 0, wait(400_000));
        assert_eq!(cache.recall(5, 0), Some(wait(400_000)));
        let later =
            LimitDecision { reset_after_us: 550_000, first_back_us: 50_000, ..wait(250_000) };
        assert_eq!(cache.recall(5, 150_000), Some(later));
        let last = LimitDecision { reset_after_us: 300_001, first_back_us: 1, ..wait(1) };
        assert_eq!(cache.recall(5, 399_999), Some(last));
        assert_eq!(cache.recall(5, 400_000), None);
    }

    #[test]
    fn a_refusal_answers_for_a_second_at_most() {
        for refused in [wait(3_600_000_000), wait(1_000_001), denied(Retry::Never)] {
            let cache = OneKey::new();
            cache.remember(11, 0, refused);
            assert!(cache.recall(11, 999_999).is_some(), "{refused:?}");
            assert_eq!(cache.recall(11, 1_000_000), None, "{refused:?}");
        }
        let cache = OneKey::new();
        cache.remember(5, 0, wait(3_600_000_000));
        assert_eq!(cache.retry(5, 999_999), Some(Retry::AfterUs(3_599_000_001)));
    }

    #[test]
    fn the_time_to_the_reset_ends_at_zero() {
        let cache = OneKey::new();
        cache.remember(5, 0, wait(900_000));
        assert_eq!(cache.recall(5, 700_001).unwrap().reset_after_us, 0);
    }

    #[test]
    fn first_back_of_zero_stays_zero() {
        let cache = OneKey::new();
        cache.remember(5, 0, LimitDecision { first_back_us: 0, ..wait(900_000) });
        assert_eq!(cache.recall(5, 100_000).unwrap().first_back_us, 0);
    }

    #[test]
    fn refusal_does_not_answer_before_it_was_sent() {
        let cache = OneKey::new();
        cache.remember(5, 10, wait(400_000));
        assert_eq!(cache.recall(5, 9), None);
        assert!(cache.recall(5, 10).is_some());
    }

    #[test]
    fn smaller_cost_is_not_answered() {
        let cache = OneKey::new();
        cache.remember(5, 0, wait(400_000));
        assert_eq!(cache.recall(4, 0), None);
        assert_eq!(cache.retry(6, 0), Some(Retry::AfterUs(400_000)));
        assert_eq!(cache.retry(10, 0), Some(Retry::AfterUs(400_000)));
    }

    #[test]
    fn a_cost_above_the_limit_waits_for_ever() {
        let cache = OneKey::new();
        cache.remember(5, 0, wait(400_000));
        assert_eq!(cache.retry(11, 0), Some(Retry::Never));

        let cache = OneKey::new();
        cache.remember(20, 0, denied(Retry::Never));
        assert_eq!(cache.retry(20, 0), Some(Retry::Never));
        assert_eq!(cache.retry(21, 0), Some(Retry::Never));
        assert_eq!(cache.recall(19, 0), None);
    }

    #[test]
    fn allowed_decision_is_not_remembered() {
        let cache = OneKey::new();
        let allowed = LimitDecision { verdict: Verdict::Allowed { delay_us: 5 }, ..wait(1) };
        cache.remember(5, 0, allowed);
        assert_eq!(cache.recall(5, 0), None);
        assert!(cache.0.is_empty());
    }

    #[test]
    fn refusal_of_a_smaller_cost_stays_until_it_ends() {
        let cache = OneKey::new();
        cache.remember(5, 0, wait(400_000));
        cache.remember(8, 399_999, wait(900_000));
        assert_eq!(cache.retry(8, 399_999), Some(Retry::AfterUs(1)));
        assert_eq!(cache.recall(8, 400_000), None);
    }

    #[test]
    fn ended_refusal_is_replaced() {
        let cache = OneKey::new();
        cache.remember(5, 0, wait(400_000));
        cache.remember(8, 400_000, wait(900_000));
        assert_eq!(cache.retry(8, 400_000), Some(Retry::AfterUs(900_000)));
        assert_eq!(cache.recall(5, 400_000), None);
    }

    #[test]
    fn a_refusal_of_a_smaller_cost_replaces_one_of_a_larger() {
        let cache = OneKey::new();
        cache.remember(20, 0, denied(Retry::Never));
        cache.remember(5, 100, wait(400_000));
        assert_eq!(cache.retry(5, 100), Some(Retry::AfterUs(400_000)));
        assert_eq!(cache.retry(20, 100), Some(Retry::Never));
    }

    #[test]
    fn later_of_two_refusals_of_one_cost_stays_in_either_order() {
        let cache = OneKey::new();
        cache.remember(5, 100, wait(400_000));
        cache.remember(5, 200, wait(300_000));
        assert_eq!(cache.retry(5, 200), Some(Retry::AfterUs(300_000)));
        cache.remember(5, 150, wait(900_000));
        assert_eq!(cache.retry(5, 200), Some(Retry::AfterUs(300_000)));
    }

    #[test]
    fn refusal_that_has_ended_when_it_arrives_changes_nothing() {
        let cache = OneKey::new();
        cache.remember(8, 2_000_000, wait(400_000));
        cache.remember(5, 1_600_000, wait(400_000));
        cache.remember(5, 0, wait(900_000));
        assert_eq!(cache.retry(8, 2_000_000), Some(Retry::AfterUs(400_000)));
    }

    #[test]
    fn refusals_of_both_generations_can_be_forgotten() {
        let cache = OneKey::new();
        cache.remember(5, 0, wait(400_000));
        cache.0.forget(KEY, START_US);
        assert_eq!(cache.recall(5, 0), None);

        cache.0.remember(query(b"other", 5), START_US, wait(900_000));
        cache.remember(5, 999_999, wait(900_000));
        assert_eq!(cache.0.recall(query(b"third", 5), START_US + 1_000_000), None);
        assert_eq!(cache.0.generations.lock().old.len(), 2);
        assert_eq!(cache.retry(5, 1_000_000), Some(Retry::AfterUs(899_999)));
        cache.0.forget(KEY, START_US + 1_000_000);
        assert_eq!(cache.recall(5, 1_000_000), None);
        assert_eq!(cache.0.generations.lock().old.len(), 1);
    }

    /// A refusal that was in flight when units came back.
    #[test]
    fn refusal_sent_before_it_was_forgotten_is_ignored() {
        let cache = OneKey::new();
        cache.0.forget(KEY, START_US + 100);
        for sent_us in [0, 99, 100] {
            cache.remember(5, sent_us, wait(400_000));
            assert_eq!(cache.recall(5, 200), None, "{sent_us}");
        }
        cache.remember(5, 101, wait(400_000));
        assert!(cache.recall(5, 200).is_some());
    }

    #[test]
    fn keys_do_not_share_refusals() {
        let cache = OneKey::new();
        cache.remember(5, 0, wait(400_000));
        assert_eq!(cache.0.recall(query(b"user:43", 5), START_US), None);
        cache.0.forget(b"user:43", START_US);
        assert!(cache.recall(5, 0).is_some());
    }

    /// A request under another limit changes the state that the refusal was about.
    #[test]
    fn refusal_is_forgotten_when_another_limit_is_checked() {
        let cache = OneKey::new();
        cache.remember(5, 0, wait(400_000));
        let other: Limit = "token-bucket capacity=10 refill=2/s".parse().unwrap();
        let under_other = DenialQuery { limit: &other, ..query(KEY, 5) };
        assert_eq!(cache.0.recall(under_other, START_US + 100), None);
        assert_eq!(cache.recall(5, 100), None);
        // A refusal that was in flight at that time is ignored as well.
        cache.remember(5, 50, wait(400_000));
        assert_eq!(cache.recall(5, 200), None);
        cache.0.remember(under_other, START_US + 150, wait(300_000));
        assert!(cache.0.recall(under_other, START_US + 200).is_some());
    }

    #[test]
    fn later_refusal_of_two_limits_stays() {
        let cache = OneKey::new();
        let other: Limit = "fixed-window limit=10 window=1s".parse().unwrap();
        let under_other = |cost| DenialQuery { limit: &other, ..query(KEY, cost) };
        cache.remember(5, 100, wait(400_000));
        cache.0.remember(under_other(8), START_US + 200, wait(400_000));
        assert!(cache.0.recall(under_other(8), START_US + 300).is_some());
        cache.remember(5, 150, wait(900_000));
        assert!(cache.0.recall(under_other(8), START_US + 300).is_some());
    }

    #[test]
    fn refusal_is_recalled_after_its_generation_became_the_old_one() {
        let cache = OneKey::new();
        cache.0.remember(query(b"first", 5), START_US, wait(1));
        cache.remember(5, 999_999, wait(1_000_000));
        // The next generation begins as late as it can: just after the end of this one.
        assert!(cache.recall(5, 1_000_000).is_some());
        assert!(cache.recall(5, 1_999_998).is_some());
        assert_eq!(cache.recall(5, 1_999_999), None);
        assert!(!cache.0.is_empty());
        assert_eq!(cache.recall(5, 2_000_000), None);
        assert!(cache.0.is_empty());
    }

    #[test]
    fn replaced_refusal_is_counted_once() {
        let cache = OneKey::new();
        cache.remember(5, 0, wait(400_000));
        cache.remember(5, 1_000_000, wait(400_000));
        assert_eq!(cache.0.count.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn full_generation_remembers_no_further_keys() {
        let denials = Denials::new();
        let remember = |key: u32, sent_us| {
            denials.remember(query(&key.to_le_bytes(), 5), START_US + sent_us, wait(900_000));
        };
        let recall =
            |key: u32, at_us| denials.recall(query(&key.to_le_bytes(), 5), START_US + at_us);
        let full = u32::try_from(MAX_PER_GENERATION).unwrap();
        (0..2 * full).for_each(|key| remember(key, 0));
        assert_eq!(denials.count.load(Ordering::Relaxed), MAX_PER_GENERATION);
        assert!(recall(full - 1, 0).is_some());
        assert_eq!(recall(full, 0), None);

        // A refusal that is in the generation already may change.
        remember(0, 200_000);
        assert_eq!(recall(0, 200_000), Some(wait(900_000)));

        (full..3 * full).for_each(|key| remember(key, 1_000_000));
        assert_eq!(denials.count.load(Ordering::Relaxed), 2 * MAX_PER_GENERATION);
        assert!(recall(2 * full - 1, 1_000_000).is_some());
        assert_eq!(recall(2 * full, 1_000_000), None);
        assert!(recall(0, 1_000_000).is_some());
    }

    #[test]
    fn both_generations_take_at_most_3_200_000_bytes() {
        let bytes = (size_of::<(KeyFingerprint, DenialEntry)>() + 1) * 2 * MAX_PER_GENERATION;
        assert!(bytes <= 3_200_000, "{bytes}");
    }

    #[test]
    fn full_cache_remembers_again_when_the_clock_steps_back() {
        let denials = Denials::new();
        for key in 0..=MAX_PER_GENERATION {
            denials.remember(query(&key.to_le_bytes(), 5), 3 * START_US, wait(900_000));
        }
        assert_eq!(denials.recall(query(KEY, 5), START_US), None);
        denials.remember(query(KEY, 5), START_US, wait(900_000));
        assert!(denials.recall(query(KEY, 5), START_US).is_some());
    }

    #[test]
    fn largest_times_do_not_overflow() {
        let denials = Denials::new();
        denials.remember(query(KEY, 5), u64::MAX - 10, wait(u64::MAX));
        assert!(denials.recall(query(KEY, u64::MAX), u64::MAX - 1).is_some());
        assert_eq!(denials.recall(query(KEY, 5), u64::MAX), None);
        assert_eq!(denials.recall(query(KEY, 5), 0), None);
    }

    #[derive(Clone, Copy, Debug)]
    enum Act {
        Remember { key: u8, cost: u64, retry: Retry, lag_us: u64 },
        Recall { key: u8, cost: u64 },
        Forget { key: u8 },
    }

    fn any_act() -> impl Strategy<Value = Act> {
        let (key, cost) = (0..3_u8, 1..14_u64);
        let lag_us = prop_oneof![Just(0), 0..1_500_000_u64];
        let retry = prop_oneof![
            4 => (1..1_500_000_u64).prop_map(Retry::AfterUs),
            1 => Just(Retry::Never),
        ];
        prop_oneof![
            4 => (key.clone(), cost.clone(), retry, lag_us)
                .prop_map(|(key, cost, retry, lag_us)| Act::Remember { key, cost, retry, lag_us }),
            8 => (key.clone(), cost).prop_map(|(key, cost)| Act::Recall { key, cost }),
            1 => key.prop_map(|key| Act::Forget { key }),
        ]
    }

    /// Returns actions, each after some microseconds.
    fn any_acts() -> impl Strategy<Value = Vec<(u64, Act)>> {
        let after_us = prop_oneof![0..3_u64, 0..400_000_u64, 999_998..1_000_002_u64];
        vec((after_us, any_act()), 1..200)
    }

    /// Returns how a refusal answers a request, computed another way: `None` if it does not.
    fn expected(refused: &(u64, u64, Retry), cost: u64, now_us: u64) -> Option<LimitDecision> {
        let &(refused_cost, sent_us, retry) = refused;
        let ages_us = sent_us..sent_us + 1_000_000;
        if cost < refused_cost || !ages_us.contains(&now_us) {
            return None;
        }
        let since_us = now_us - sent_us;
        let reset_after_us = 700_000_u64.saturating_sub(since_us);
        let first_back_us = if since_us < 200_000 { 200_000 - since_us } else { 1 };
        let left = match retry {
            Retry::AfterUs(wait_us) if wait_us <= since_us => return None,
            Retry::AfterUs(wait_us) if cost <= 10 => Retry::AfterUs(wait_us - since_us),
            _ => Retry::Never,
        };
        Some(LimitDecision { reset_after_us, first_back_us, ..denied(left) })
    }

    proptest! {
        /// If answers arrive in the order of their requests, the cache has the last refusal of each key, unless an
        /// earlier refusal with a smaller cost has not ended.
        #[test]
        fn cache_agrees_with_a_list_of_all_keys(acts in any_acts()) {
            let denials = Denials::new();
            let mut model: HashMap<u8, (u64, u64, Retry)> = HashMap::new();
            let mut now_us = START_US;
            for (after_us, act) in acts {
                now_us += after_us;
                match act {
                    Act::Remember { key, cost, retry, .. } => {
                        denials.remember(query(&[key], cost), now_us, denied(retry));
                        let kept = model.get(&key).filter(|kept| {
                            kept.0 < cost && expected(kept, u64::MAX, now_us).is_some()
                        });
                        if kept.is_none() {
                            model.insert(key, (cost, now_us, retry));
                        }
                    }
                    Act::Recall { key, cost } => {
                        let want = model.get(&key).and_then(|kept| expected(kept, cost, now_us));
                        prop_assert_eq!(denials.recall(query(&[key], cost), now_us), want);
                    }
                    Act::Forget { key } => {
                        // Before a request that is sent at the same time: that one may have been refused later.
                        denials.forget(&[key], now_us - 1);
                        model.remove(&key);
                    }
                }
            }
        }

        /// Even if answers arrive late or the clock steps back, every recalled refusal was remembered before, and was
        /// not forgotten since.
        #[test]
        fn cache_recalls_only_what_was_remembered(
            acts in any_acts(),
            steps_back_us in vec(prop_oneof![8 => Just(0), 1 => 0..3_000_000_u64], 200),
        ) {
            let denials = Denials::new();
            let mut remembered: Vec<(u8, (u64, u64, Retry))> = Vec::new();
            let mut now_us = START_US;
            for ((after_us, act), back_us) in acts.into_iter().zip(steps_back_us) {
                now_us = now_us + after_us - back_us;
                match act {
                    Act::Remember { key, cost, retry, lag_us } => {
                        let sent_us = now_us - lag_us;
                        denials.remember(query(&[key], cost), sent_us, denied(retry));
                        remembered.push((key, (cost, sent_us, retry)));
                    }
                    Act::Recall { key, cost } => {
                        let known = denials.recall(query(&[key], cost), now_us);
                        let same = |(other, refused): &(u8, _)| {
                            *other == key && expected(refused, cost, now_us) == known
                        };
                        prop_assert!(known.is_none() || remembered.iter().any(same), "{known:?}");
                    }
                    Act::Forget { key } => {
                        denials.forget(&[key], now_us);
                        remembered.retain(|(other, _)| *other != key);
                    }
                }
            }
        }
    }
}
