//! From ready to gone.

use tokio::sync::watch;

/// How far the server is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Everything is answered.
    Serving,
    /// The same, but nobody should send more: `/readyz` says so, and every answer closes its connection.
    Draining,
    /// Nobody new is let in; what is in flight is finished.
    Closing,
}

/// Who says how far it is, and who wants to know.
pub(crate) fn lifecycle() -> (watch::Sender<Phase>, Lifecycle) {
    let (sender, phase) = watch::channel(Phase::Serving);
    (sender, Lifecycle { phase })
}

/// How far the server is. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Lifecycle {
    phase: watch::Receiver<Phase>,
}

impl Lifecycle {
    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Waits until the server is that far, or gone.
    pub(crate) async fn reached(&self, phase: Phase) {
        // An error is that nobody is left to say so.
        let _ = self.phase.clone().wait_for(|now| *now >= phase).await;
    }
}
