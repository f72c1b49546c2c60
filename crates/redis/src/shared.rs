//! The parts of a limiter that all its servers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tollgate_core::LimitDecision;
use tollgate_limiter::store::Fallback;
use tollgate_limiter::{Clock, StoreError};

use super::denials::Denials;
use super::executor::Executor;
use super::outage::Outages;
use super::wire::ServerCharge;

/// The parts that all servers of a limiter share: the deadline, the executor, the deny cache and the counts of failures.
pub(super) struct StoreContext {
    /// The limiter's deadline. A server that does not reply within this time has failed.
    pub(super) deadline: Duration,
    pub(super) executor: Arc<Executor>,
    /// The clock of the deny cache, the breakers and the outages.
    pub(super) clock: Clock,
    pub(super) denials: Denials,
    pub(super) fallback: Arc<Fallback>,
    failed: Mutex<FailureCounts>,
    outages: Mutex<Outages>,
    /// Whether there is an outage, so that answers take the lock of `outages` only during one.
    is_failing: AtomicBool,
}

/// How many requests no server decided.
#[derive(Clone, Default)]
pub(super) struct FailureCounts {
    /// The number of failures of each kind, in the order of [`StoreError::KINDS`].
    by_kind: [u64; StoreError::KINDS.len()],
    /// The last failure.
    pub(super) last: Option<StoreError>,
}

impl FailureCounts {
    fn count(&mut self, error: &StoreError) {
        let kind = StoreError::KINDS.iter().position(|kind| *kind == error.kind());
        if let Some(count) = kind.and_then(|at| self.by_kind.get_mut(at)) {
            *count += 1;
        }
        self.last = Some(error.clone());
    }

    pub(super) fn by_kind(&self) -> Vec<(&'static str, u64)> {
        StoreError::KINDS.into_iter().zip(self.by_kind).collect()
    }
}

impl StoreContext {
    pub(super) fn new(
        deadline: Duration,
        fallback: Arc<Fallback>,
    ) -> std::io::Result<StoreContext> {
        Ok(StoreContext {
            deadline,
            executor: Arc::new(Executor::new()?),
            clock: Clock::system(),
            denials: Denials::new(),
            fallback,
            failed: Mutex::default(),
            outages: Mutex::default(),
            is_failing: AtomicBool::new(false),
        })
    }

    /// Returns the refusal of a check at the server's time, if the deny cache has one.
    pub(super) fn recall(&self, charge: &ServerCharge) -> Option<LimitDecision> {
        self.denials.recall(charge.denial_query(), self.clock.now_us())
    }

    /// Counts a request that the servers failed to decide, and logs the first one of an outage. `is_degraded` says whether
    /// the failure policy decides the request instead.
    pub(super) fn count_failure(&self, error: &StoreError, is_degraded: bool) {
        self.failed.lock().count(error);
        let now_us = self.clock.now_us();
        let started = {
            let mut outages = self.outages.lock();
            self.is_failing.store(true, Ordering::Relaxed);
            outages.note_failure(now_us, error, is_degraded)
        };
        // Without the lock: a subscriber may call the limiter.
        if let Some(started) = started {
            started.log();
        }
    }

    /// Notes a reply of a server. Logs the end of an outage, if the reply ends one.
    pub(super) fn note_answer(&self) {
        if !self.is_failing.load(Ordering::Relaxed) {
            return;
        }
        let ended = {
            let mut outages = self.outages.lock();
            let ended = outages.note_answer(self.clock.now_us());
            if ended.is_some() {
                self.is_failing.store(false, Ordering::Relaxed);
            }
            ended
        };
        if let Some(ended) = ended {
            ended.log();
        }
    }

    /// Returns how many requests no server decided, and the last failure.
    pub(super) fn failures(&self) -> FailureCounts {
        self.failed.lock().clone()
    }
}
