//! The operator token, with which operators read and reset keys.
//!
//! - `guesses`: slows down, counts and logs wrong tokens

mod guesses;

use std::time::Instant;

pub(crate) use guesses::Attempt;
use guesses::Guesses;

use crate::secret::Secret;

/// The operator token, and the attempts to guess it.
#[derive(Debug, Default)]
pub(crate) struct OperatorAccess {
    /// `None` if every request from the server's own machine is an operator's.
    token: Option<Secret>,
    guesses: Guesses,
}

impl OperatorAccess {
    /// Requires this token; without one, every request from the server's own machine is an operator's.
    pub(crate) fn new(token: Option<Secret>) -> OperatorAccess {
        OperatorAccess { token, guesses: Guesses::default() }
    }

    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Compares the token of a request with the operator token, if its address has not sent too many wrong ones; `None`
    /// if the server has no token.
    pub(crate) fn attempt(&self, address: &str, sent: &[u8]) -> Option<Attempt> {
        let token = self.token.as_ref()?;
        Some(self.guesses.attempt(address, || token.is(sent)))
    }

    /// Returns how many wrong tokens were compared since the start.
    pub(crate) fn wrong(&self) -> u64 {
        self.guesses.wrong()
    }

    /// Returns how many tokens were not compared since the start, because their address had sent too many wrong ones.
    pub(crate) fn not_compared(&self) -> u64 {
        self.guesses.not_compared()
    }

    /// Logs attempts that were not logged yet, if the last line is old enough.
    pub(crate) fn report_rest(&self, now: Instant) {
        self.guesses.report_rest(now);
    }
}
