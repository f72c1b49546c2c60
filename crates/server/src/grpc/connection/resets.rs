//! Bounds how many calls a client may reset.

/// The most resets of a connection beyond its answered calls.
///
/// Envoy resets a call when its own client goes away, and when the call has no answer within 20 ms. After a pause of
/// the server it resets every call of the connection, which are 1,024 at most. Twice as many are allowed.
const MAX_RESETS: u32 = 2_048;

/// The resets that a connection has left. A reset spends one, and an answered call earns one back.
///
/// The connection of a client that resets every other call is never closed. If the client resets all calls, the
/// connection is closed after 2,048.
#[derive(Debug)]
pub(super) struct ResetAllowance {
    left: u32,
}

impl ResetAllowance {
    pub(super) fn new() -> ResetAllowance {
        ResetAllowance { left: MAX_RESETS }
    }

    /// Counts a call that its client reset.
    pub(super) fn count_reset(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// Counts a call that was answered.
    pub(super) fn count_answer(&mut self) {
        self.left = (self.left + 1).min(MAX_RESETS);
    }

    /// Returns whether no reset is left.
    pub(super) fn is_spent(&self) -> bool {
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_alone_spend_the_allowance() {
        let mut allowance = ResetAllowance::new();
        for _ in 0..MAX_RESETS - 1 {
            allowance.count_reset();
        }
        assert!(!allowance.is_spent());
        allowance.count_reset();
        assert!(allowance.is_spent());
    }

    #[test]
    fn answers_earn_resets_back_up_to_the_allowance() {
        let mut allowance = ResetAllowance::new();
        for _ in 0..10 * MAX_RESETS {
            allowance.count_reset();
            allowance.count_answer();
        }
        assert!(!allowance.is_spent());
        for _ in 0..MAX_RESETS {
            allowance.count_reset();
        }
        assert!(allowance.is_spent());
    }
}
