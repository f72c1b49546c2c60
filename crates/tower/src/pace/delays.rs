//! The delays that the server asked for: which keys have to wait, and until when.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ahash::RandomState;
use parking_lot::Mutex;
use tokio::time::Instant;

use tollgate_limiter::Gate;

/// The most keys that are delayed at a time. One more removes the delay that would end first.
const MAX_DELAYS: usize = 10_000;

/// Longer than any delay. An [`Instant`] this far ahead never overflows.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// All delays of a layer.
#[derive(Default)]
pub(super) struct ServerDelays {
    kept: Mutex<DelayTable>,
}

#[derive(Default)]
struct DelayTable {
    ends: HashMap<Arc<str>, Instant, RandomState>,
    /// The same delays, ordered by their end.
    in_order: BTreeSet<(Instant, Arc<str>)>,
}

impl ServerDelays {
    /// Returns how long `key` is still delayed.
    pub(super) fn remaining(&self, key: &str) -> Duration {
        let end = self.kept.lock().ends.get(key).copied();
        end.map_or(Duration::ZERO, |end| end.saturating_duration_since(Instant::now()))
    }

    /// Delays `key` for `delay` from now on. A delay that ends later is kept.
    pub(super) fn extend(&self, key: &Arc<str>, delay: Duration) {
        let now = Instant::now();
        let end = now + delay.min(LONGEST);
        let mut kept = self.kept.lock();
        kept.drop_ended(now);
        if kept.ends.get(key).is_none_or(|&before| before < end) {
            kept.put(key, end);
        }
    }

    /// Returns the delay of one key, for its queue to wait for.
    pub(super) fn on<'a>(&'a self, key: &'a str) -> KeyDelay<'a> {
        KeyDelay { delays: self, key }
    }
}

impl DelayTable {
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
        if self.ends.len() > MAX_DELAYS {
            self.drop_first();
        }
    }
}

// Without the keys, which may be secret.
impl fmt::Debug for ServerDelays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerDelays").field("count", &self.kept.lock().ends.len()).finish()
    }
}

/// The delay of one key, if there is one.
pub(super) struct KeyDelay<'a> {
    delays: &'a ServerDelays,
    key: &'a str,
}

impl Gate for KeyDelay<'_> {
    fn closed_for(&self) -> Duration {
        self.delays.remaining(self.key)
    }
}

impl fmt::Debug for KeyDelay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyDelay").field(&self.closed_for()).finish()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn delay_is_lengthened_and_never_shortened() {
        let delays = ServerDelays::default();
        let key = Arc::from("key");
        assert_eq!(delays.remaining("key"), Duration::ZERO);
        for (delay_s, want_s) in [(3, 3), (2, 3), (5, 5), (0, 5)] {
            delays.extend(&key, delay_s * SECOND);
            assert_eq!(delays.on("key").closed_for(), want_s * SECOND);
        }
        advance(4 * SECOND).await;
        assert_eq!(delays.remaining("key"), SECOND);
        advance(SECOND).await;
        assert_eq!(delays.remaining("key"), Duration::ZERO);
        assert_eq!(delays.remaining("other"), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn ended_delays_are_dropped() {
        let delays = ServerDelays::default();
        for second in 1..=3 {
            delays.extend(&Arc::from(second.to_string()), second * SECOND);
        }
        delays.extend(&Arc::from("1"), 4 * SECOND); // no longer the first to end
        advance(2 * SECOND).await;
        delays.extend(&Arc::from("5"), SECOND);
        let kept = delays.kept.lock();
        assert_eq!((kept.ends.len(), kept.in_order.len()), (3, 3));
        assert!(!kept.ends.contains_key("2"));
    }

    #[tokio::test(start_paused = true)]
    async fn delay_that_ends_first_is_dropped_when_there_are_too_many() {
        let delays = ServerDelays::default();
        let count = u32::try_from(MAX_DELAYS).unwrap();
        for at in (0..count).rev() {
            delays.extend(&Arc::from(at.to_string()), (10 + at) * SECOND);
        }
        assert_eq!(delays.remaining("0"), 10 * SECOND);
        delays.extend(&Arc::from("more"), 11 * SECOND);
        assert_eq!(delays.remaining("0"), Duration::ZERO);
        assert_eq!(delays.remaining("more"), 11 * SECOND);
        assert_eq!(delays.remaining("1"), 11 * SECOND);
        let kept = delays.kept.lock();
        assert_eq!((kept.ends.len(), kept.in_order.len()), (MAX_DELAYS, MAX_DELAYS));
    }

    #[tokio::test(start_paused = true)]
    async fn longest_duration_does_not_overflow() {
        let delays = ServerDelays::default();
        delays.extend(&Arc::from("key"), Duration::MAX);
        assert_eq!(delays.remaining("key"), LONGEST);
    }
}
