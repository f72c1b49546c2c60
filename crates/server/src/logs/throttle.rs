//! Limits how often an event is logged, for events that would fill the log.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

const DEFAULT_PAUSE: Duration = Duration::from_secs(1);

/// Lets an event be logged at most once per `pause` (1 s by default), and counts the events that were left out.
#[derive(Debug)]
pub(crate) struct LogThrottle {
    pause: Duration,
    state: Mutex<ThrottleState>,
}

impl Default for LogThrottle {
    fn default() -> LogThrottle {
        LogThrottle::every(DEFAULT_PAUSE)
    }
}

#[derive(Debug, Default)]
struct ThrottleState {
    logged: Option<Instant>,
    left_out: u64,
}

impl LogThrottle {
    /// Returns a throttle that lets an event be logged at most once per `pause`.
    pub(crate) fn every(pause: Duration) -> LogThrottle {
        LogThrottle { pause, state: Mutex::default() }
    }

    /// Counts an event. If it may be logged now, returns how many events were left out since the last line; `None` if
    /// this event is left out, too.
    pub(crate) fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        if state.is_too_soon(now, self.pause) {
            state.left_out = state.left_out.saturating_add(1);
            return None;
        }
        state.logged = Some(now);
        Some(std::mem::take(&mut state.left_out))
    }

    /// Returns how many events were left out since the last line, if any were and a line may be logged now. Called from
    /// time to time, so that the end of a series is logged, too.
    pub(crate) fn take_rest(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        if state.left_out == 0 || state.is_too_soon(now, self.pause) {
            return None;
        }
        state.logged = Some(now);
        Some(std::mem::take(&mut state.left_out))
    }
}

impl ThrottleState {
    fn is_too_soon(&self, now: Instant, pause: Duration) -> bool {
        self.logged.is_some_and(|logged| now.saturating_duration_since(logged) < pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_logged_once_a_second_with_the_number_left_out() {
        let (throttle, start) = (LogThrottle::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(throttle.admit(at(0)), Some(0));
        assert_eq!(throttle.take_rest(at(2_000)), None, "nothing was left out");
        assert_eq!(throttle.admit(at(2_000)), Some(0));
        assert_eq!(throttle.admit(at(2_001)), None);
        assert_eq!(throttle.admit(at(2_999)), None);
        assert_eq!(throttle.take_rest(at(2_999)), None);
        assert_eq!(throttle.admit(at(3_000)), Some(2));
        assert_eq!(throttle.admit(at(3_001)), None);
        assert_eq!(throttle.take_rest(at(4_000)), Some(1));
        assert_eq!(throttle.take_rest(at(9_000)), None);
    }
}
