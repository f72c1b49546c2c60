//! Readiness: whether requests should be sent to this server.

use std::sync::Arc;

use crate::lifecycle::{Lifecycle, Phase};
use crate::store::StoreMonitor;

/// Whether requests should be sent to this server: its store answers, and no signal has stopped it.
#[derive(Debug)]
pub(crate) struct Readiness {
    lifecycle: Lifecycle,
    store: Arc<StoreMonitor>,
    /// With `--ready-without-store`.
    is_ready_without_store: bool,
}

impl Readiness {
    pub(crate) fn new(
        lifecycle: Lifecycle,
        store: Arc<StoreMonitor>,
        is_ready_without_store: bool,
    ) -> Readiness {
        Readiness { lifecycle, store, is_ready_without_store }
    }

    /// Returns whether requests should be sent here, by the last answer of the store. Sends nothing to the store.
    pub(crate) fn is_ready(&self) -> bool {
        let can_decide = self.store.was_answering() || self.is_ready_without_store;
        self.lifecycle.phase() == Phase::Serving && can_decide
    }

    pub(crate) fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    pub(crate) fn store(&self) -> &StoreMonitor {
        &self.store
    }
}
