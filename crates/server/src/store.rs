//! The store that the server decides on.
//!
//! - `probe`: finds out whether a store across the network answers

mod probe;

use tokio::sync::watch;
use tollgate::{Error, Health, Limiter};

use crate::lifecycle::Lifecycle;
pub(crate) use probe::FailuresByKind;
use probe::Probe;

/// The kind of store that keeps the states of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    /// In this process. A decision takes less time than reading the clock.
    Memory,
    /// On Redis servers, across the network.
    Redis,
}

impl StoreKind {
    /// Returns the kind of a limiter's store.
    pub(crate) fn of(limiter: &Limiter) -> StoreKind {
        if limiter.health().is_none() { StoreKind::Memory } else { StoreKind::Redis }
    }

    /// Returns the name in metrics, traces and answers: `memory` or `redis`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            StoreKind::Memory => "memory",
            StoreKind::Redis => "redis",
        }
    }

    /// Returns whether a decision waits for the network.
    pub(crate) fn is_remote(self) -> bool {
        self != StoreKind::Memory
    }
}

/// The store, with a probe that finds out whether it answers.
#[derive(Debug)]
pub(crate) struct StoreMonitor {
    limiter: Limiter,
    /// `None` if the store is memory, which always answers.
    probe: Option<Probe>,
    max_key_bytes: usize,
}

impl StoreMonitor {
    /// Monitors the store of a limiter, whose keys may take `max_key_bytes` in this process.
    pub(crate) fn new(limiter: &Limiter, max_key_bytes: usize) -> Result<StoreMonitor, Error> {
        let probe = Probe::new(limiter)?;
        Ok(StoreMonitor { limiter: limiter.clone(), probe, max_key_bytes })
    }

    pub(crate) fn kind(&self) -> StoreKind {
        StoreKind::of(&self.limiter)
    }

    pub(crate) fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// Returns the most memory that keys in this process may take, in bytes.
    pub(crate) fn max_key_bytes(&self) -> usize {
        self.max_key_bytes
    }

    /// Returns whether the store answers. Probes it, unless the last probe was less than 100 ms ago.
    pub(crate) async fn is_answering(&self) -> bool {
        match &self.probe {
            Some(probe) => probe.is_answering().await,
            None => true,
        }
    }

    /// Returns whether the store answered the last probe.
    pub(crate) fn was_answering(&self) -> bool {
        self.probe.as_ref().is_none_or(Probe::was_answering)
    }

    /// Returns a receiver of changes of [`was_answering`](Self::was_answering); `None` if the store is memory.
    pub(crate) fn follow(&self) -> Option<watch::Receiver<bool>> {
        self.probe.as_ref().map(Probe::follow)
    }

    /// Returns how many requests the store failed to decide, by kind of failure. Probes do not count.
    pub(crate) fn failed_by_kind(&self, health: &Health) -> FailuresByKind {
        let probe = self.probe.as_ref();
        probe.map_or_else(|| health.failed_by_kind.clone(), Probe::failed_by_kind)
    }

    /// Probes the store every second until the server closes.
    pub(crate) async fn watch(&self, lifecycle: &Lifecycle) {
        if let Some(probe) = &self.probe {
            probe.watch(lifecycle).await;
        }
    }
}
