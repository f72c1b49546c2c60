//! The phases of a server: serving, draining, closing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

/// A phase of the server. Phases come in this order, and none comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Requests are answered.
    Serving,
    /// Requests are answered, and every answer closes its connection: clients should use another server.
    Draining,
    /// No connection is accepted; requests in flight are answered.
    Closing,
}

/// Returns the sender that sets the phase, and the handle that reads it.
pub fn lifecycle() -> (watch::Sender<Phase>, Lifecycle) {
    let (sender, phase) = watch::channel(Phase::Serving);
    (sender, Lifecycle { phase, open: Arc::default() })
}

/// The server's phase, and how many connections it has. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Lifecycle {
    phase: watch::Receiver<Phase>,
    open: Arc<AtomicUsize>,
}

/// An open connection, counted until this is dropped.
#[derive(Debug)]
pub struct ConnectionGuard {
    open: Arc<AtomicUsize>,
}

impl Lifecycle {
    /// Returns the current phase.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Waits until the server is in this phase or a later one, or gone.
    pub async fn reached(&self, phase: Phase) {
        // An error means that the sender is gone, and with it the server.
        let _ = self.phase.clone().wait_for(|now| *now >= phase).await;
    }

    /// Counts a connection until the returned value is dropped.
    pub fn connected(&self) -> ConnectionGuard {
        self.open.fetch_add(1, Ordering::Relaxed);
        ConnectionGuard { open: Arc::clone(&self.open) }
    }

    /// Returns how many connections are open, on both ports.
    pub fn connections(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}
