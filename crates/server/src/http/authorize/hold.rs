//! A request that waits for its turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tollgate::rules::Ruling;

use crate::lifecycle::{Lifecycle, Phase};

/// Those that wait for their turn.
#[derive(Debug, Default)]
pub(super) struct Line {
    waiting: Arc<AtomicU32>,
}

impl Line {
    /// A place, taken before it is known whether one has to wait; `None` if so many do.
    pub(super) fn join(&self, most: u32) -> Option<Place> {
        let room = |waiting: u32| (waiting < most).then_some(waiting + 1);
        let joined = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        joined.ok().map(|_| Place { waiting: Arc::clone(&self.waiting) })
    }

    pub(super) fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// One of those that wait; dropped, it is none any more.
#[derive(Debug)]
pub(super) struct Place {
    waiting: Arc<AtomicU32>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What was charged for a request that has not gone. Dropped, it is given back, as far as the limit can.
pub(super) struct Held {
    /// `None` once it has gone.
    ruling: Option<Ruling>,
    _place: Option<Place>,
}

impl Held {
    pub(super) fn new(ruling: Ruling, place: Option<Place>) -> Held {
        Held { ruling: Some(ruling), _place: place }
    }

    /// Waits for its turn. If the server closes before that, how long it would have had to wait.
    pub(super) async fn until_its_turn(
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

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(ruling) = self.ruling.take() {
            ruling.give_back();
        }
    }
}
