//! Requests that are held back until a shaping limit lets them go.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tollgate::rules::Ruling;

use crate::lifecycle::{Lifecycle, Phase};

/// The requests that are held back, at most so many at a time.
#[derive(Debug)]
pub(crate) struct HeldRequests {
    held: Arc<AtomicU32>,
    max_held: u32,
}

impl HeldRequests {
    pub(crate) fn new(max_held: u32) -> HeldRequests {
        HeldRequests { held: Arc::default(), max_held }
    }

    /// Returns a place, taken before it is known whether the request has to wait; `None` if all are taken.
    pub(crate) fn join(&self) -> Option<Place> {
        let room = |held: u32| (held < self.max_held).then_some(held + 1);
        let joined = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        joined.ok().map(|_| Place { held: Arc::clone(&self.held) })
    }

    /// Returns how many places are taken.
    pub(crate) fn count(&self) -> u32 {
        self.held.load(Ordering::Relaxed)
    }
}

/// A place among the held requests, which is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    held: Arc<AtomicU32>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that is held back. If this is dropped before its turn, its charge is given back, as far as the limit can.
pub(crate) struct HeldRequest {
    /// `None` once it has gone.
    ruling: Option<Ruling>,
    _place: Option<Place>,
}

impl HeldRequest {
    pub(crate) fn new(ruling: Ruling, place: Option<Place>) -> HeldRequest {
        HeldRequest { ruling: Some(ruling), _place: place }
    }

    /// Waits for its turn. If the server closes before that, how long it would have had to wait.
    pub(crate) async fn until_its_turn(
        mut self,
        delay: Duration,
        lifecycle: &Lifecycle,
    ) -> Result<(), Duration> {
        let turn = Instant::now() + delay;
        tokio::select! {
            () = sleep_until(turn) => {
                self.ruling = None;
                Ok(())
            }
            () = lifecycle.reached(Phase::Closing) => Err(turn.saturating_duration_since(Instant::now())),
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
