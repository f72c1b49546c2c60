//! Delays the answers to proxies: if a shaping limit delays a request, its answer is sent after the delay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tollgate::rules::Ruling;

use crate::lifecycle::{Lifecycle, Phase};

/// Counts the requests whose answers are delayed, and bounds how many there are at a time.
#[derive(Debug)]
pub(crate) struct DelayedRequests {
    delayed: Arc<AtomicU32>,
    max_delayed: u32,
}

impl DelayedRequests {
    pub(crate) fn new(max_delayed: u32) -> DelayedRequests {
        DelayedRequests { delayed: Arc::default(), max_delayed }
    }

    /// Returns a permit to delay one request, or `None` if the maximum number of permits is taken.
    ///
    /// The permit is taken before the request is decided. The decision says whether there is a delay, but then the
    /// request is charged, and it is too late to refuse it.
    pub(crate) fn reserve(&self) -> Option<DelayPermit> {
        let one_more = |delayed: u32| (delayed < self.max_delayed).then_some(delayed + 1);
        let reserved = self.delayed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        reserved.ok().map(|_| DelayPermit { delayed: Arc::clone(&self.delayed) })
    }

    /// Returns how many permits are taken.
    pub(crate) fn count(&self) -> u32 {
        self.delayed.load(Ordering::Relaxed)
    }
}

/// A permit to delay one request. Dropping it returns the permit.
#[derive(Debug)]
pub(crate) struct DelayPermit {
    delayed: Arc<AtomicU32>,
}

impl Drop for DelayPermit {
    fn drop(&mut self) {
        self.delayed.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An allowed request whose answer is sent after its delay.
///
/// If this is dropped before the delay has passed, the request's charge is refunded, as far as the limit can refund it.
pub(crate) struct DelayedRequest {
    /// `None` once the delay has passed.
    ruling: Option<Ruling>,
    _permit: Option<DelayPermit>,
}

impl DelayedRequest {
    pub(crate) fn new(ruling: Ruling, permit: Option<DelayPermit>) -> DelayedRequest {
        DelayedRequest { ruling: Some(ruling), _permit: permit }
    }

    /// Waits for the delay. If the server closes before it has passed, returns the rest of the delay.
    pub(crate) async fn wait(
        mut self,
        delay: Duration,
        lifecycle: &Lifecycle,
    ) -> Result<(), Duration> {
        let end = Instant::now() + delay;
        tokio::select! {
            () = sleep_until(end) => {
                self.ruling = None;
                Ok(())
            }
            () = lifecycle.reached(Phase::Closing) => Err(end.saturating_duration_since(Instant::now())),
        }
    }
}

impl Drop for DelayedRequest {
    fn drop(&mut self) {
        if let Some(ruling) = self.ruling.take() {
            ruling.give_back();
        }
    }
}
