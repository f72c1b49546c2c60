//! When a key set is fetched. Pure: time is an argument.

use std::time::Duration;

use tokio::time::Instant;

use super::JwksUrl;
use crate::jwt::REFETCH_INTERVAL;

const FIRST_RETRY: Duration = Duration::from_secs(5);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// When a set is fetched next.
///
/// With a `max_age` of 600 s the set is fetched again 375 to 450 s after a fetch, at random, so that servers that were
/// started at the same time do not fetch at the same time. Failed fetches are repeated after 5, 10, 20, 40, 60, 60 … s.
#[derive(Debug)]
pub(super) struct Schedule {
    refresh_after: Duration,
    max_stale: Duration,
    /// When the last fetch began.
    attempted: Option<Instant>,
    /// When the last fetch began that succeeded, unless the keys were dropped since.
    fetched: Option<Instant>,
    /// The number of fetches that failed since the last success.
    failures: u32,
}

impl Schedule {
    /// Returns the schedule of a source. `chance` is a random number.
    pub(super) fn new(source: &JwksUrl, chance: u64) -> Schedule {
        let share = 640 + u32::try_from(chance % 128).unwrap_or_default();
        let refresh_after = source.max_age.saturating_mul(share) / 1_024;
        let max_stale = source.max_stale.max(source.max_age);
        Schedule { refresh_after, max_stale, attempted: None, fetched: None, failures: 0 }
    }

    /// Returns when to fetch; `None` if at once, because no fetch was begun yet. `is_wanted` says that a token named a key that
    /// is not in the set.
    pub(super) fn next_fetch(&self, is_wanted: bool) -> Option<Instant> {
        let attempted = self.attempted?;
        let usual = match self.failures {
            0 => self.refresh_after,
            failures => retry_after(failures),
        };
        let after = if is_wanted { usual.min(REFETCH_INTERVAL) } else { usual };
        Some(later(attempted, after))
    }

    /// Returns when the keys are too old; `None` if there are no keys.
    pub(super) fn stale_at(&self) -> Option<Instant> {
        self.fetched.map(|fetched| later(fetched, self.max_stale))
    }

    pub(super) fn begun(&mut self, now: Instant) {
        self.attempted = Some(now);
    }

    /// Notes that the fetch that was begun last succeeded.
    pub(super) fn succeeded(&mut self) {
        (self.fetched, self.failures) = (self.attempted, 0);
    }

    /// Notes that the fetch that was begun last failed. Returns how many fetches failed in a row.
    pub(super) fn failed(&mut self) -> u32 {
        self.failures = self.failures.saturating_add(1);
        self.failures
    }

    pub(super) fn dropped(&mut self) {
        self.fetched = None;
    }
}

fn retry_after(failures: u32) -> Duration {
    let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    FIRST_RETRY.saturating_mul(doubled).min(LONGEST_RETRY)
}

/// Returns the instant `after` a time, at most a year later: an `Instant` cannot be arbitrarily far in the future.
/// Adds at most 366 days, so that the sum does not overflow: a longer time is as good as never.
fn later(then: Instant, after: Duration) -> Instant {
    then + after.min(Duration::from_secs(366 * 24 * 60 * 60))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jwt::Jwks;

    const NO_TIME: Duration = Duration::ZERO;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn schedule(chance: u64) -> Schedule {
        let source = Jwks::url("https://id.example/keys").unwrap();
        Schedule::new(&source.max_age(seconds(1_024)).max_stale(seconds(10_000)), chance)
    }

    #[test]
    fn a_set_is_fetched_at_once_and_again_before_its_max_age() {
        let began = Instant::now();
        for (chance, request_fetch) in [(0, 640), (127, 767), (128, 640), (u64::MAX, 767)] {
            let mut schedule = schedule(chance);
            assert_eq!(schedule.next_fetch(false), None);
            schedule.begun(began);
            schedule.succeeded();
            assert_eq!(
                schedule.next_fetch(false),
                Some(began + seconds(request_fetch)),
                "{chance}"
            );
        }
    }

    #[test]
    fn an_unknown_key_brings_the_next_fetch_forward_but_not_below_the_interval() {
        let began = Instant::now();
        let mut schedule = schedule(0);
        schedule.begun(began);
        schedule.succeeded();
        assert_eq!(schedule.next_fetch(true), Some(began + seconds(30)));
        for failures in 1..=20 {
            assert_eq!(schedule.failed(), failures);
            let next = schedule.next_fetch(true).unwrap() - began;
            assert!(next <= seconds(30) && next >= seconds(5), "{next:?}");
        }
    }

    #[test]
    fn failures_are_retried_ever_less_often() {
        let began = Instant::now();
        let mut schedule = schedule(0);
        schedule.begun(began);
        for request_fetch in [5, 10, 20, 40, 60, 60] {
            schedule.failed();
            assert_eq!(schedule.next_fetch(false), Some(began + seconds(request_fetch)));
        }
        (0..100).for_each(|_| _ = schedule.failed());
        assert_eq!(schedule.next_fetch(false), Some(began + seconds(60)));
        schedule.succeeded();
        assert_eq!(schedule.next_fetch(false), Some(began + seconds(640)));
    }

    #[test]
    fn keys_are_stale_after_the_last_success() {
        let began = Instant::now();
        let mut schedule = schedule(0);
        assert_eq!(schedule.stale_at(), None);
        schedule.begun(began);
        schedule.succeeded();
        schedule.begun(began + seconds(640));
        schedule.failed();
        assert_eq!(schedule.stale_at(), Some(began + seconds(10_000)));
        schedule.dropped();
        assert_eq!(schedule.stale_at(), None);
        // Never below the age at which they are refreshed, and never beyond what a clock can show.
        let source = Jwks::url("https://id.example/keys").unwrap().max_stale(NO_TIME);
        assert_eq!(Schedule::new(&source, 0).max_stale, source.max_age);
        let mut endless = Schedule::new(&source.max_age(Duration::MAX).max_stale(Duration::MAX), 0);
        endless.begun(began);
        endless.succeeded();
        assert!(endless.next_fetch(false) > Some(began) && endless.stale_at() > Some(began));
    }
}
