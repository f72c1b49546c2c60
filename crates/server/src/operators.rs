//! Who may read and reset keys: whoever has the operator token.
//!
//! - `guesses`: wrong tokens, slowed and logged

mod guesses;

use std::time::Instant;

pub(crate) use guesses::Attempt;
use guesses::Guesses;

use crate::secret::Secret;

/// The operator token, and the attempts to guess it.
#[derive(Debug, Default)]
pub(crate) struct OperatorAccess {
    /// `None` if operators are on the server's own machine.
    token: Option<Secret>,
    guesses: Guesses,
}

impl OperatorAccess {
    /// With a token; without one, operators are on the server's own machine.
    pub(crate) fn new(token: Option<Secret>) -> OperatorAccess {
        OperatorAccess { token, guesses: Guesses::default() }
    }

    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Compares what a request shows with the token, if its address has not sent too many wrong ones; `None` if there
    /// is no token.
    pub(crate) fn attempt(&self, address: &str, shown: &[u8]) -> Option<Attempt> {
        let token = self.token.as_ref()?;
        Some(self.guesses.attempt(address, || token.is(shown)))
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
