//! The keys that have to wait because the server asked for it, and until when.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ahash::RandomState;
use parking_lot::Mutex;
use tokio::time::Instant;

use tollgate_limiter::Gate;

/// The most keys that are held at a time. One more removes the hold that would end first.
const MAX_HOLDS: usize = 10_000;

/// Longer than any hold. An [`Instant`] this far ahead never overflows.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Every hold of a layer.
#[derive(Default)]
pub(super) struct PaceHolds {
    kept: Mutex<HoldTable>,
}

#[derive(Default)]
struct HoldTable {
    ends: HashMap<Arc<str>, Instant, RandomState>,
    /// The same holds, ordered by their end.
    in_order: BTreeSet<(Instant, Arc<str>)>,
}

impl PaceHolds {
    /// Returns how long `key` is still held.
    pub(super) fn remaining(&self, key: &str) -> Duration {
        let end = self.kept.lock().ends.get(key).copied();
        end.map_or(Duration::ZERO, |end| end.saturating_duration_since(Instant::now()))
    }

    /// Holds `key` for `hold` from now on; a hold that ends later is kept.
    pub(super) fn extend(&self, key: &Arc<str>, hold: Duration) {
        let now = Instant::now();
        let end = now + hold.min(LONGEST);
        let mut kept = self.kept.lock();
        kept.drop_ended(now);
        if kept.ends.get(key).is_none_or(|&before| before < end) {
            kept.put(key, end);
        }
    }

    /// Returns the hold on one key, for its queue to wait for.
    pub(super) fn on<'a>(&'a self, key: &'a str) -> KeyHold<'a> {
        KeyHold { holds: self, key }
    }
}

impl HoldTable {
    fn drop_ended(&mut self, now: Instant) {
        while self.in_order.first().is_some_and(|&(end, _)| end <= now) {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some((_, key)) = self.in_order.pop_first() {
            self.ends.remove(&key);
        }
    }

    fn put(&mut self, key: &Arc<str>, end: Instant) {
        if let Some(before) = self.ends.insert(Arc::clone(key), end) {
            self.in_order.remove(&(before, Arc::clone(key)));
        }
        self.in_order.insert((end, Arc::clone(key)));
        if self.ends.len() > MAX_HOLDS {
            self.drop_first();
        }
    }
}

// Without the keys, which may be secret.
impl fmt::Debug for PaceHolds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holds").field("count", &self.kept.lock().ends.len()).finish()
    }
}

/// The hold on one key, if there is one.
pub(super) struct KeyHold<'a> {
    holds: &'a PaceHolds,
    key: &'a str,
}

impl Gate for KeyHold<'_> {
    fn closed_for(&self) -> Duration {
        self.holds.remaining(self.key)
    }
}

impl fmt::Debug for KeyHold<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hold").field(&self.closed_for()).finish()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_hold_is_lengthened_and_never_shortened() {
        let holds = PaceHolds::default();
        let key = Arc::from("key");
        assert_eq!(holds.remaining("key"), Duration::ZERO);
        for (hold_s, want_s) in [(3, 3), (2, 3), (5, 5), (0, 5)] {
            holds.extend(&key, hold_s * SECOND);
            assert_eq!(holds.on("key").closed_for(), want_s * SECOND);
        }
        advance(4 * SECOND).await;
        assert_eq!(holds.remaining("key"), SECOND);
        advance(SECOND).await;
        assert_eq!(holds.remaining("key"), Duration::ZERO);
        assert_eq!(holds.remaining("other"), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn ended_holds_are_dropped() {
        let holds = PaceHolds::default();
        for second in 1..=3 {
            holds.extend(&Arc::from(second.to_string()), second * SECOND);
        }
        holds.extend(&Arc::from("1"), 4 * SECOND); // no longer the first to end
        advance(2 * SECOND).await;
        holds.extend(&Arc::from("5"), SECOND);
        let kept = holds.kept.lock();
        assert_eq!((kept.ends.len(), kept.in_order.len()), (3, 3));
        assert!(!kept.ends.contains_key("2"));
    }

    #[tokio::test(start_paused = true)]
    async fn hold_that_ends_first_is_dropped_when_there_are_too_many() {
        let holds = PaceHolds::default();
        let count = u32::try_from(MAX_HOLDS).unwrap();
        for at in (0..count).rev() {
            holds.extend(&Arc::from(at.to_string()), (10 + at) * SECOND);
        }
        assert_eq!(holds.remaining("0"), 10 * SECOND);
        holds.extend(&Arc::from("more"), 11 * SECOND);
        assert_eq!(holds.remaining("0"), Duration::ZERO);
        assert_eq!(holds.remaining("more"), 11 * SECOND);
        assert_eq!(holds.remaining("1"), 11 * SECOND);
        let kept = holds.kept.lock();
        assert_eq!((kept.ends.len(), kept.in_order.len()), (MAX_HOLDS, MAX_HOLDS));
    }

    #[tokio::test(start_paused = true)]
    async fn longest_duration_does_not_overflow() {
        let holds = PaceHolds::default();
        holds.extend(&Arc::from("key"), Duration::MAX);
        assert_eq!(holds.remaining("key"), LONGEST);
    }
}
