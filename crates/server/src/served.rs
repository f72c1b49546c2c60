//! What all requests share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ahash::AHashMap;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tollgate::rules::{Counts, Rules, RulesFile};
use tollgate::{Decision, Health, Limiter, Scope};

use crate::budget::{Budget, PAGE_BYTES, REQUEST_BYTES, SMALL_RESERVE_BYTES};
use crate::http::{Authorizing, Guesses, Playground};
use crate::lifecycle::{Lifecycle, Phase};
use crate::listener::Connections;
use crate::logs::Log;
use crate::metrics::Metrics;
use crate::observe::Observer;
use crate::probe::{ByKind, Probe};
use crate::receipt::Receipts;
use crate::refused::Refused;
use crate::secret::Secret;
use crate::store::StoreKind;
use crate::traces::Traces;

/// What all requests share.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) rules: Rules,
    /// Where the rules come from; `None` if they are the example's.
    pub(crate) file: Option<RulesFile>,
    /// A hash of the rules that are from no file.
    pub(crate) example_hash: u64,
    pub(crate) store: StoreKind,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) observer: Arc<Observer>,
    pub(crate) receipts: Receipts,
    pub(crate) connections: Arc<Connections>,
    pub(crate) grpc_connections: Arc<Connections>,
    pub(crate) operator_token: Option<Secret>,
    /// Wrong operator tokens.
    pub(crate) guesses: Guesses,
    /// Who is refused most.
    pub(crate) refused: Refused,
    /// `None` if it is switched off.
    pub(crate) playground: Option<Playground>,
    pub(crate) is_ready_without_store: bool,
    /// `None` if the store is memory.
    pub(crate) probe: Option<Probe>,
    /// `None` unless somebody collects them.
    pub(crate) traces: Option<Traces>,
    /// `None` in tests.
    pub(crate) log: Option<Log>,
    /// What proxies ask before they pass a request on.
    pub(crate) authorizing: Authorizing,
    /// The memory that requests and answers share; and that of pages about the server.
    pub(crate) budget: Budget,
    pub(crate) page_budget: Budget,
    /// What keys in memory may take.
    pub(crate) max_key_bytes: usize,
    /// How many connections a port may have.
    pub(crate) max_connections: u32,
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

/// How many decisions there were.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Decisions {
    pub(crate) all: u64,
    /// Of those, how many the store failed, whatever became of them.
    pub(crate) without_store: u64,
}

impl Decisions {
    /// Those that came after these.
    pub(crate) fn since(self, before: Decisions) -> Decisions {
        Decisions {
            all: self.all.saturating_sub(before.all),
            without_store: self.without_store.saturating_sub(before.without_store),
        }
    }
}

impl Served {
    pub(crate) fn new(rules: Rules, file: Option<RulesFile>, lifecycle: Lifecycle) -> Served {
        let store = StoreKind::of(rules.limiter());
        let metrics = Arc::new(Metrics::new(store));
        let budget = Budget::with_reserve(REQUEST_BYTES, SMALL_RESERVE_BYTES);
        let (connections, grpc_connections) = Connections::of_both_ports(&budget);
        Served {
            rules,
            file,
            example_hash: 0,
            store,
            lifecycle,
            observer: Arc::new(Observer::new(Arc::clone(&metrics), None, store)),
            metrics,
            receipts: Receipts::default(),
            connections,
            grpc_connections,
            operator_token: None,
            guesses: Guesses::default(),
            refused: Refused::default(),
            playground: None,
            is_ready_without_store: false,
            probe: None,
            traces: None,
            log: None,
            max_key_bytes: 0,
            max_connections: 0,
            authorizing: Authorizing::default(),
            budget,
            page_budget: Budget::new(PAGE_BYTES),
            limits: ArcSwap::default(),
            making_limits: Mutex::default(),
        }
    }

    pub(crate) fn limiter(&self) -> &Limiter {
        self.rules.limiter()
    }

    /// How many requests may be held back until their turn comes: others need connections, too.
    pub(crate) fn max_waiting(&self) -> u32 {
        self.max_connections / 2
    }

    /// Whether requests should be sent here, as far as is known: nothing is asked.
    pub(crate) fn is_ready(&self) -> bool {
        let is_decided = self.is_store_answered() || self.is_ready_without_store;
        self.lifecycle.phase() == Phase::Serving && is_decided
    }

    /// Whether the store answered when it was last asked; memory always does.
    pub(crate) fn is_store_answered(&self) -> bool {
        self.probe.as_ref().is_none_or(Probe::was_answered)
    }

    /// How many requests the store failed to decide.
    pub(crate) fn failed_by_kind(&self, health: &Health) -> ByKind {
        let probe = self.probe.as_ref();
        probe.map_or_else(|| health.failed_by_kind.clone(), Probe::failed_of_others)
    }

    /// What rules and limits decided so far. Those that are gone are not in it.
    pub(crate) fn decisions(&self) -> Decisions {
        let rules = self.rules.counts().into_iter().map(|(_, counts)| counts);
        let limits = self.limits().into_iter().map(|(_, named)| named.tally.counts());
        rules.chain(limits).fold(Decisions::default(), |sum, counts| {
            let decided = counts.allowed + counts.denied + counts.shadow_denied;
            Decisions {
                all: sum.all + decided + counts.failed,
                without_store: sum.without_store + counts.degraded + counts.failed,
            }
        })
    }

    /// Of the rules that decide: 16 digits, the same on every server that has the same.
    pub(crate) fn rules_hash(&self) -> String {
        let hash = self.file.as_ref().map_or(self.example_hash, |file| file.status().hash);
        format!("{hash:016x}")
    }

    /// Returns why the rules file was refused, or which domains in use have no rules.
    pub(crate) fn rules_problem(&self) -> Option<String> {
        match &self.file {
            Some(file) => file.status().problem,
            None => {
                let missing = self.rules.missing_domains();
                (!missing.is_empty()).then(|| missing.to_string())
            }
        }
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
