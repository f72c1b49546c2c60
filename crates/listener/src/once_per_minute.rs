//! Events that would fill a log if each were logged.

use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_secs(60);

/// An event that is logged at most once a minute.
#[derive(Debug, Default)]
pub(super) struct OncePerMinute {
    last_logged: Option<Instant>,
}

impl OncePerMinute {
    /// Whether to log the event now.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let is_due =
            self.last_logged.is_none_or(|last_logged| now.duration_since(last_logged) >= PAUSE);
        if is_due {
            self.last_logged = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_is_logged_at_most_once_a_minute() {
        let start = Instant::now();
        let mut once_per_minute = OncePerMinute::default();
        let last_logged = [0, 1, 59, 60, 61, 119, 120, 500].map(|s| {
            let now = start + Duration::from_secs(s);
            once_per_minute.is_due(now)
        });
        assert_eq!(last_logged, [true, false, false, true, false, false, true, true]);
    }
}
