//! From being told to stop to the end.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::lifecycle::{Lifecycle, Phase};

/// What tells the server to stop.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From here on they do not end the process by themselves.
    pub(crate) fn new() -> io::Result<Signals> {
        let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
        Ok(Signals { terminate: signal(terminate)?, interrupt: signal(interrupt)? })
    }

    /// Waits for the next one; its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// How long the server takes to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    /// It goes on for so long, unready, so that nobody sends it more.
    pub(crate) delay: Duration,
    /// What is in flight may then take so long.
    pub(crate) timeout: Duration,
}

/// Why it ends.
enum End {
    Finished,
    TimedOut,
    ToldAgain(&'static str),
}

impl Drain {
    /// Waits until the server is told to stop, and stops it; at once, if it is told twice.
    pub(crate) async fn when_told(
        self,
        mut signals: Signals,
        phase: &watch::Sender<Phase>,
        lifecycle: &Lifecycle,
        finished: impl Future<Output = ()>,
    ) {
        let Drain { delay, timeout } = self;
        let signal = signals.next().await;
        phase.send_replace(Phase::Draining);
        tracing::info!(signal, ?delay, "told to stop: not ready any more, but still answering");
        let stop = async {
            tokio::time::sleep(delay).await;
            // First: those that are idle may be gone at once.
            let connections = lifecycle.connections();
            phase.send_replace(Phase::Closing);
            tracing::info!(connections, ?timeout, "closing: finishes what is in flight");
            match tokio::time::timeout(timeout, finished).await {
                Ok(()) => End::Finished,
                Err(_) => End::TimedOut,
            }
        };
        let end = tokio::select! {
            end = stop => end,
            signal = signals.next() => End::ToldAgain(signal),
        };
        let cut = lifecycle.connections();
        match end {
            End::Finished => tracing::info!("stopped: everything in flight was answered"),
            End::TimedOut => tracing::warn!(cut, ?timeout, "stopped: some took too long"),
            End::ToldAgain(signal) => tracing::warn!(cut, signal, "stopped at once: told twice"),
        }
    }
}
