//! What all requests share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ahash::AHashMap;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tollgate::rules::{Counts, Rules, RulesFile};
use tollgate::{Decision, Limiter, Scope};

use crate::budget::{Budget, PAGE_BYTES, REQUEST_BYTES};
use crate::lifecycle::Lifecycle;
use crate::listener::{Connections, Port};
use crate::logs::Sparingly;
use crate::metrics::Metrics;
use crate::probe::Probe;
use crate::receipt::Receipts;
use crate::secret::Secret;
use crate::traces::Traces;

/// What all requests share.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) rules: Rules,
    /// Where the rules come from; `None` if they are the example's.
    pub(crate) file: Option<RulesFile>,
    /// `memory` or `redis`.
    pub(crate) store: &'static str,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) metrics: Metrics,
    pub(crate) receipts: Receipts,
    pub(crate) connections: Arc<Connections>,
    pub(crate) grpc_connections: Arc<Connections>,
    pub(crate) operator_token: Option<Secret>,
    pub(crate) is_ready_without_store: bool,
    /// `None` if the store is memory.
    pub(crate) probe: Option<Probe>,
    /// `None` unless somebody collects them.
    pub(crate) traces: Option<Traces>,
    /// Requests that came to a 5xx, for the log.
    pub(crate) failures: Sparingly,
    /// What bodies and answers may take in memory; and pages about the server.
    pub(crate) budget: Budget,
    pub(crate) page_budget: Budget,
    limits: ArcSwap<Limits>,
    /// Who holds it makes them again.
    making_limits: Mutex<()>,
}

/// The limits of the rules of one generation, by their names.
#[derive(Debug, Default)]
struct Limits {
    generation: u64,
    named: AHashMap<Box<str>, Arc<Named>>,
}

/// A limit that is asked for by its name.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) scope: Scope,
    /// Kept when the rules are replaced.
    pub(crate) tally: Arc<Tally>,
}

/// How often a limit that was asked for by its name decided what.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    allowed: AtomicU64,
    denied: AtomicU64,
    /// Beside those: decided without the store, which failed.
    degraded_allowed: AtomicU64,
    degraded_denied: AtomicU64,
    /// The store failed, and so did the check.
    failed: AtomicU64,
}

impl Tally {
    pub(crate) fn count(&self, decision: &Decision) {
        let outcome = match (decision.is_allowed(), decision.is_degraded()) {
            (true, false) => &self.allowed,
            (false, false) => &self.denied,
            (true, true) => &self.degraded_allowed,
            (false, true) => &self.degraded_denied,
        };
        outcome.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_failure(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// As rules have them.
    pub(crate) fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut counts = Counts::default();
        counts.degraded_allowed = read(&self.degraded_allowed);
        counts.degraded_denied = read(&self.degraded_denied);
        counts.degraded = counts.degraded_allowed + counts.degraded_denied;
        counts.allowed = read(&self.allowed) + counts.degraded_allowed;
        counts.denied = read(&self.denied) + counts.degraded_denied;
        counts.failed = read(&self.failed);
        counts
    }
}

impl Served {
    pub(crate) fn new(
        rules: Rules,
        file: Option<RulesFile>,
        store: &'static str,
        lifecycle: Lifecycle,
    ) -> Served {
        Served {
            rules,
            file,
            store,
            lifecycle,
            metrics: Metrics::new(store),
            receipts: Receipts::default(),
            connections: Arc::new(Connections::new(Port::Http)),
            grpc_connections: Arc::new(Connections::new(Port::Grpc)),
            operator_token: None,
            is_ready_without_store: false,
            probe: None,
            traces: None,
            failures: Sparingly::default(),
            budget: Budget::new(REQUEST_BYTES),
            page_budget: Budget::new(PAGE_BYTES),
            limits: ArcSwap::default(),
            making_limits: Mutex::default(),
        }
    }

    pub(crate) fn limiter(&self) -> &Limiter {
        self.rules.limiter()
    }

    /// A limit of the file by its name.
    pub(crate) fn limit(&self, name: &str) -> Option<Arc<Named>> {
        let limits = self.limits.load();
        if limits.generation == self.rules.generation() {
            return limits.named.get(name).cloned();
        }
        drop(limits);
        self.limits_anew().named.get(name).cloned()
    }

    /// Every limit of the file, in alphabetical order.
    pub(crate) fn limits(&self) -> Vec<(Box<str>, Arc<Named>)> {
        let limits = self.limits_anew();
        let each = limits.named.iter().map(|(name, named)| (name.clone(), Arc::clone(named)));
        let mut limits: Vec<_> = each.collect();
        limits.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        limits
    }

    /// The limits of the rules as they are now.
    fn limits_anew(&self) -> Arc<Limits> {
        // One at a time: two would give a new limit two tallies.
        let _alone = self.making_limits.lock();
        let before = self.limits.load_full();
        // First: if the rules are replaced now, it is done again.
        let generation = self.rules.generation();
        if before.generation == generation {
            return before;
        }
        let named = self.rules.limits().into_iter().filter_map(|(name, _)| {
            let scope = self.rules.limit(&name)?;
            let before = before.named.get(name.as_str());
            let tally = before.map(|named| Arc::clone(&named.tally)).unwrap_or_default();
            Some((name.into_boxed_str(), Arc::new(Named { scope, tally })))
        });
        let limits = Arc::new(Limits { generation, named: named.collect() });
        self.limits.store(Arc::clone(&limits));
        limits
    }
}
