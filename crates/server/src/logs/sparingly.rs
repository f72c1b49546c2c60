//! Events that would fill the log if each were a line.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

const PAUSE: Duration = Duration::from_secs(1);

/// Lets an event be logged at most once in a time (a second by default), and counts how often it was not logged.
#[derive(Debug)]
pub(crate) struct Sparingly {
    pause: Duration,
    state: Mutex<State>,
}

impl Default for Sparingly {
    fn default() -> Sparingly {
        Sparingly::every(PAUSE)
    }
}

#[derive(Debug, Default)]
struct State {
    said: Option<Instant>,
    left_out: u64,
}

impl Sparingly {
    /// Lets an event be logged at most once in `pause`.
    pub(crate) fn every(pause: Duration) -> Sparingly {
        Sparingly { pause, state: Mutex::default() }
    }

    /// It happened again. If it is time to say so, how often it was not said since the last time.
    pub(crate) fn again(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        if state.is_too_soon(now, self.pause) {
            state.left_out = state.left_out.saturating_add(1);
            return None;
        }
        state.said = Some(now);
        Some(std::mem::take(&mut state.left_out))
    }

    /// What was left out, if any was and it is time to say so: for when it does not happen again.
    pub(crate) fn rest(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        if state.left_out == 0 || state.is_too_soon(now, self.pause) {
            return None;
        }
        state.said = Some(now);
        Some(std::mem::take(&mut state.left_out))
    }
}

impl State {
    fn is_too_soon(&self, now: Instant, pause: Duration) -> bool {
        self.said.is_some_and(|said| now.saturating_duration_since(said) < pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_once_a_second_with_what_was_left_out() {
        let (sparingly, start) = (Sparingly::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(sparingly.again(at(0)), Some(0));
        assert_eq!(sparingly.rest(at(2_000)), None, "nothing was left out");
        assert_eq!(sparingly.again(at(2_000)), Some(0));
        assert_eq!(sparingly.again(at(2_001)), None);
        assert_eq!(sparingly.again(at(2_999)), None);
        assert_eq!(sparingly.rest(at(2_999)), None);
        assert_eq!(sparingly.again(at(3_000)), Some(2));
        assert_eq!(sparingly.again(at(3_001)), None);
        assert_eq!(sparingly.rest(at(4_000)), Some(1));
        assert_eq!(sparingly.rest(at(9_000)), None);
    }
}
