//! Log lines about a sample of the refused requests, with the rule and the key (`--log-refusals`).

use std::fmt::Display;
use std::time::{Duration, Instant};

use super::{ShownKey, Sparingly};

/// Logs refusals, at most one in a time. The refusals between two lines are counted.
#[derive(Debug)]
pub(crate) struct RefusalLog {
    sample: Sparingly,
}

impl RefusalLog {
    /// Logs at most one refusal in `pause`.
    pub(crate) fn every(pause: Duration) -> RefusalLog {
        RefusalLog { sample: Sparingly::every(pause) }
    }

    /// Logs a refusal by a rule, or by a limit that was called by its name, unless the last line is too young.
    pub(crate) fn refused(&self, by: &dyn Display, limit: &str, key: &[u8]) {
        if let Some(left_out) = self.sample.again(Instant::now()) {
            let key = ShownKey(key).to_string();
            tracing::info!(%by, limit, key, left_out, "refused");
        }
    }

    /// Logs how many refusals were left out since the last line, once refusals have stopped.
    pub(crate) fn log_rest(&self, now: Instant) {
        if let Some(left_out) = self.sample.rest(now) {
            tracing::info!(left_out, "{left_out} more requests were refused since, not logged");
        }
    }
}
