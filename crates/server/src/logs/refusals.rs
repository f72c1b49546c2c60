//! Log lines about a sample of the refused requests, with the rule and the key (`--log-refusals`).

use std::fmt::Display;
use std::time::{Duration, Instant};

use super::{LogThrottle, ShownKey};

/// Logs a sample of the refusals, and counts the refusals between two lines.
#[derive(Debug)]
pub(crate) struct RefusalLog {
    throttle: LogThrottle,
}

impl RefusalLog {
    /// Returns a log of at most one refusal per `pause`.
    pub(crate) fn every(pause: Duration) -> RefusalLog {
        RefusalLog { throttle: LogThrottle::every(pause) }
    }

    /// Logs a refusal by a rule, or by a limit in a check by name, if the last line is old enough; otherwise counts it.
    pub(crate) fn refused(&self, by: &dyn Display, limit: &str, key: &[u8]) {
        if let Some(left_out) = self.throttle.admit(Instant::now()) {
            let key = ShownKey(key).to_string();
            tracing::info!(%by, limit, key, left_out, "refused");
        }
    }

    /// Logs how many refusals were left out since the last line, if any were and the last line is old enough.
    pub(crate) fn log_rest(&self, now: Instant) {
        if let Some(left_out) = self.throttle.take_rest(now) {
            tracing::info!(left_out, "{left_out} more requests were refused since the last line");
        }
    }
}
