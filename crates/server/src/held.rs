//! Holds back the answers to proxies: if a shaping limit delays a request, its answer is sent after the delay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tollgate::rules::Ruling;

use crate::lifecycle::{Lifecycle, Phase};

/// Counts the held requests, and bounds how many there are at a time.
#[derive(Debug)]
pub(crate) struct HeldRequests {
    held: Arc<AtomicU32>,
    max_held: u32,
}

impl HeldRequests {
    pub(crate) fn new(max_held: u32) -> HeldRequests {
        HeldRequests { held: Arc::default(), max_held }
    }

    /// Returns a permit to hold one request, or `None` if the maximum number of permits is taken.
    ///
    /// The permit is taken before the request is decided. The decision says whether there is a delay, but then the
    /// request is charged, and it is too late to refuse it.
    pub(crate) fn reserve(&self) -> Option<HoldPermit> {
        let one_more = |held: u32| (held < self.max_held).then_some(held + 1);
        let reserved = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        reserved.ok().map(|_| HoldPermit { held: Arc::clone(&self.held) })
    }

    /// Returns how many permits are taken.
    pub(crate) fn count(&self) -> u32 {
        self.held.load(Ordering::Relaxed)
    }
}

/// A permit to hold one request. Dropping it returns the permit.
#[derive(Debug)]
pub(crate) struct HoldPermit {
    held: Arc<AtomicU32>,
}

impl Drop for HoldPermit {
    fn drop(&mut self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An allowed request whose answer is held back for its delay.
///
/// If this is dropped before the delay has passed, the request's charge is refunded, as far as the limit can refund it.
pub(crate) struct HeldRequest {
    /// `None` once the delay has passed.
    ruling: Option<Ruling>,
    _permit: Option<HoldPermit>,
}

impl HeldRequest {
    pub(crate) fn new(ruling: Ruling, permit: Option<HoldPermit>) -> HeldRequest {
        HeldRequest { ruling: Some(ruling), _permit: permit }
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

impl Drop for HeldRequest {
    fn drop(&mut self) {
        if let Some(ruling) = self.ruling.take() {
            ruling.give_back();
        }
    }
}
