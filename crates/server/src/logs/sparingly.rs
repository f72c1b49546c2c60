//! What happens often is said once a second.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

const PAUSE: Duration = Duration::from_secs(1);

/// Lets something be said at most once a second, and counts how often it was not.
#[derive(Debug, Default)]
pub(crate) struct Sparingly {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    said: Option<Instant>,
    left_out: u64,
}

impl Sparingly {
    /// It happened again. If it is time to say so, how often it was not said since the last time.
    pub(crate) fn again(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        if state.is_too_soon(now) {
            state.left_out = state.left_out.saturating_add(1);
            return None;
        }
        state.said = Some(now);
        Some(std::mem::take(&mut state.left_out))
    }

    /// What was left out, if any was and it is time to say so: for when it does not happen again.
    pub(crate) fn rest(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        if state.left_out == 0 || state.is_too_soon(now) {
            return None;
        }
        state.said = Some(now);
        Some(std::mem::take(&mut state.left_out))
    }
}

impl State {
    fn is_too_soon(&self, now: Instant) -> bool {
        self.said.is_some_and(|said| now.saturating_duration_since(said) < PAUSE)
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
