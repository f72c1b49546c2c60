//! The answer to a check.

use std::time::Duration;

use tollgate_core::{Receipt, Verdict};

/// The answer to one request on one limit.
#[derive(Debug, PartialEq, Eq)]
pub struct Decision {
    decided: tollgate_core::Decision,
    receipt: Option<Receipt>,
}

impl Decision {
    pub(crate) fn new(decided: tollgate_core::Decision, receipt: Option<Receipt>) -> Decision {
        Decision { decided, receipt }
    }

    /// Whether the request may go.
    pub fn is_allowed(&self) -> bool {
        self.decided.is_allowed()
    }

    /// The limit's size: its `limit` or `capacity`.
    pub fn limit(&self) -> u64 {
        self.decided.limit
    }

    /// The largest cost that would be allowed at this same instant.
    pub fn remaining(&self) -> u64 {
        self.decided.remaining
    }

    /// How long a denied request must wait, exactly; `None` when it was allowed, and when waiting
    /// cannot help because it costs more than the limit.
    pub fn retry_after(&self) -> Option<Duration> {
        self.decided.retry_after_us().map(Duration::from_micros)
    }

    /// How long until nothing is spent any more, exactly.
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.decided.reset_after_us)
    }

    /// How long an allowed request should wait before it goes; zero except from a shaping limit.
    pub fn delay(&self) -> Duration {
        Duration::from_micros(self.decided.delay_us())
    }

    /// The same in microseconds, as the algorithms have it.
    pub fn decided(&self) -> &tollgate_core::Decision {
        &self.decided
    }

    /// Yes or no, and when.
    pub fn verdict(&self) -> Verdict {
        self.decided.verdict
    }

    /// Takes the receipt, with which the charge can be refunded; `None` if nothing was charged.
    pub fn into_receipt(self) -> Option<Receipt> {
        self.receipt
    }
}
