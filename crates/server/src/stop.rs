//! The shutdown of the server, from a signal to the end of the process.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::lifecycle::{Lifecycle, Phase};

/// The signals that stop the server.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens for the signals. From then on they do not end the process by themselves.
    pub(crate) fn new() -> io::Result<Signals> {
        let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
        Ok(Signals { terminate: signal(terminate)?, interrupt: signal(interrupt)? })
    }

    /// Waits for the next signal. Returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// The times of a shutdown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    /// How long the server still accepts requests while it reports that it is not ready, so that load balancers stop
    /// sending requests to it.
    pub(crate) delay: Duration,
    /// How long requests in flight may take after that.
    pub(crate) timeout: Duration,
}

/// The way in which a shutdown ended.
enum ShutdownEnd {
    Finished,
    TimedOut,
    SecondSignal(&'static str),
}

impl Drain {
    /// Waits for a signal, then stops the server, and does what is left to do at `last`, which bounds its own time. A second
    /// signal stops it at once.
    pub(crate) async fn after_signal(
        self,
        mut signals: Signals,
        phase: &watch::Sender<Phase>,
        lifecycle: &Lifecycle,
        finished: impl Future<Output = ()>,
        last: impl Future<Output = ()>,
    ) {
        let Drain { delay, timeout } = self;
        let signal = signals.next().await;
        phase.send_replace(Phase::Draining);
        tracing::info!(signal, ?delay, "stopping: not ready, but still accepting requests");
        let stop = async {
            tokio::time::sleep(delay).await;
            // Counted before the phase changes: idle connections may close at once.
            let connections = lifecycle.connections();
            phase.send_replace(Phase::Closing);
            tracing::info!(connections, ?timeout, "closing: finishing the requests in flight");
            let end = match tokio::time::timeout(timeout, finished).await {
                Ok(()) => ShutdownEnd::Finished,
                Err(_) => ShutdownEnd::TimedOut,
            };
            last.await;
            end
        };
        let end = tokio::select! {
            end = stop => end,
            signal = signals.next() => ShutdownEnd::SecondSignal(signal),
        };
        let cut = lifecycle.connections();
        match end {
            ShutdownEnd::Finished => {
                tracing::info!("stopped: all requests in flight were answered")
            }
            ShutdownEnd::TimedOut => {
                tracing::warn!(cut, ?timeout, "stopped: the drain timeout has passed");
            }
            ShutdownEnd::SecondSignal(signal) => {
                tracing::warn!(cut, signal, "stopped at once: second signal");
            }
        }
    }
}
