//! From ready to gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

/// How far the server is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Everything is answered.
    Serving,
    /// The same, but nobody should send more: `/readyz` says so, and every answer closes its connection.
    Draining,
    /// Nobody new is let in; what is in flight is finished.
    Closing,
}

/// Who says how far it is, and who wants to know.
pub fn lifecycle() -> (watch::Sender<Phase>, Lifecycle) {
    let (sender, phase) = watch::channel(Phase::Serving);
    (sender, Lifecycle { phase, open: Arc::default() })
}

/// How far the server is, and how many connections it has. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Lifecycle {
    phase: watch::Receiver<Phase>,
    open: Arc<AtomicUsize>,
}

/// A connection that is open, until this is dropped.
#[derive(Debug)]
pub struct Connected {
    open: Arc<AtomicUsize>,
}

impl Lifecycle {
    /// Returns how far the server is.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Waits until the server is that far, or gone.
    pub async fn reached(&self, phase: Phase) {
        // An error is that nobody is left to say so.
        let _ = self.phase.clone().wait_for(|now| *now >= phase).await;
    }

    /// Counts a connection.
    pub fn connected(&self) -> Connected {
        self.open.fetch_add(1, Ordering::Relaxed);
        Connected { open: Arc::clone(&self.open) }
    }

    /// How many are open, on both ports.
    pub fn connections(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}
