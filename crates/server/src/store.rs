//! The store of limits that the server decides on.
//!
//! - `probe`: whether a store across the network answers

mod probe;

use tokio::sync::watch;
use tollgate::{Error, Health, Limiter};

use crate::lifecycle::Lifecycle;
pub(crate) use probe::ByKind;
use probe::Probe;

/// Where the state of keys is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    /// In this process: a decision takes less than reading the clock.
    Memory,
    /// On Redis servers, across the network.
    Redis,
}

impl StoreKind {
    /// Returns the kind of a limiter's store.
    pub(crate) fn of(limiter: &Limiter) -> StoreKind {
        if limiter.health().is_none() { StoreKind::Memory } else { StoreKind::Redis }
    }

    /// The name in metrics, traces and answers: `memory` or `redis`.
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

/// The store, and whether it answers.
#[derive(Debug)]
pub(crate) struct StoreMonitor {
    limiter: Limiter,
    /// `None` if the store is memory, which always answers.
    probe: Option<Probe>,
    max_key_bytes: usize,
}

impl StoreMonitor {
    /// Watches the store of a limiter, whose keys in memory may take `max_key_bytes`.
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

    /// The most memory that keys in this process may take.
    pub(crate) fn max_key_bytes(&self) -> usize {
        self.max_key_bytes
    }

    /// Asks the store whether it answers, unless that was done in the last 100 ms.
    pub(crate) async fn is_answering(&self) -> bool {
        match &self.probe {
            Some(probe) => probe.is_answered().await,
            None => true,
        }
    }

    /// Returns whether the store answered when it was last asked.
    pub(crate) fn was_answering(&self) -> bool {
        self.probe.as_ref().is_none_or(Probe::was_answered)
    }

    /// Returns a receiver of changes of that; `None` if the store is memory.
    pub(crate) fn follow(&self) -> Option<watch::Receiver<bool>> {
        self.probe.as_ref().map(Probe::follow)
    }

    /// Returns how many requests the store failed to decide, by kind. Those of the probe do not count.
    pub(crate) fn failed_by_kind(&self, health: &Health) -> ByKind {
        let probe = self.probe.as_ref();
        probe.map_or_else(|| health.failed_by_kind.clone(), Probe::failed_of_others)
    }

    /// Asks the store every second until the server is about to close.
    pub(crate) async fn watch(&self, lifecycle: &Lifecycle) {
        if let Some(probe) = &self.probe {
            probe.watch(lifecycle).await;
        }
    }
}
