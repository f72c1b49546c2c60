//! A layer's settings for holds.

use std::sync::Arc;
use std::time::Duration;

use tollgate_limiter::{Clock, Error, Scope};

use super::actual::{ActualCost, CostSource};
use crate::ResponseHead;
use crate::log_interval::LogInterval;

/// Reads the actual cost from the head of a response.
type SettleFn = Arc<dyn Fn(&dyn ResponseHead) -> ActualCost + Send + Sync>;

/// A layer's settings for holds.
#[derive(Clone)]
pub(crate) struct HoldSettings {
    /// How long units are held, unless the hold is renewed. `None` means as the rule or the limit says.
    pub(crate) hold_for: Option<Duration>,
    /// How long a hold is renewed.
    pub(crate) max_hold: Duration,
    pub(crate) settle: Option<SettleFn>,
    failures: Arc<LogInterval>,
}

impl Default for HoldSettings {
    fn default() -> HoldSettings {
        HoldSettings {
            hold_for: None,
            max_hold: Duration::from_secs(24 * 3_600),
            settle: None,
            failures: Arc::default(),
        }
    }
}

impl HoldSettings {
    /// Returns how long units of this scope are held.
    pub(crate) fn hold_for(&self, scope: &Scope) -> Duration {
        self.hold_for.unwrap_or_else(|| scope.hold_for())
    }

    /// Returns the actual cost, as far as the head of the response says.
    pub(crate) fn actual(&self, response: &dyn ResponseHead) -> CostSource {
        self.settle.as_ref().map_or(CostSource::Unknown, |settle| settle(response).0)
    }

    /// Logs that a hold could not be settled or renewed, at most once in ten seconds.
    pub(super) fn log_failure(&self, clock: &Clock, what: &str, error: &Error) {
        if self.failures.is_due(clock.now_us()) {
            tracing::warn!("the hold of a request was not {what}: {error}");
        }
    }

    /// Logs that a hold ended while its request was under way, at most once in ten seconds.
    pub(super) fn log_early_end(&self, clock: &Clock) {
        if self.failures.is_due(clock.now_us()) {
            tracing::warn!(
                "the hold of a request ended before its response: it could not be renewed in time, or its key was reset"
            );
        }
    }
}
