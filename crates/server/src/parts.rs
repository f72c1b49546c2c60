//! Puts the parts of a server together. Each is complete before the first request, and none changes afterwards.

use std::sync::Arc;

use tollgate_playground::Playground;

use crate::budget::{Budget, PAGE_BYTES, REQUEST_BYTES, SMALL_RESERVE_BYTES};
use crate::grpc::{GrpcParts, RateLimitService};
use crate::held::HeldRequests;
use crate::http::{ApiParts, PageBudget};
use crate::lifecycle::Lifecycle;
use crate::listener::Connections;
use crate::logs::Log;
use crate::metrics::{Metrics, MetricsPage, Sources};
use crate::observe::Observer;
use crate::operators::OperatorAccess;
use crate::pipeline::{Accounts, Pipeline};
use crate::readiness::Readiness;
use crate::receipt::Receipts;
use crate::refused::Refused;
use crate::ruleset::RuleSet;
use crate::store::StoreMonitor;
use crate::traces::Traces;
use crate::watch::Watched;

/// What the configuration of a server determines.
pub(crate) struct Foundation {
    pub(crate) rules: RuleSet,
    pub(crate) store: StoreMonitor,
    pub(crate) receipts: Receipts,
    pub(crate) refused: Refused,
    pub(crate) operators: OperatorAccess,
    /// `None` if it is switched off.
    pub(crate) playground: Option<Playground>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) log: Log,
    /// `None` unless traces are collected.
    pub(crate) traces: Option<Traces>,
    pub(crate) is_ready_without_store: bool,
    /// The most connections that each port may have.
    pub(crate) max_connections: u32,
}

/// The parts of a server, by what they are for.
pub(crate) struct Parts {
    pub(crate) api: ApiParts,
    pub(crate) grpc: GrpcParts,
    pub(crate) watched: Watched,
    pub(crate) http_connections: Arc<Connections>,
}

impl Parts {
    pub(crate) fn new(foundation: Foundation) -> Parts {
        let Foundation { lifecycle, log, traces, is_ready_without_store, max_connections, .. } =
            foundation;
        let rules = Arc::new(foundation.rules);
        let store = Arc::new(foundation.store);
        let receipts = Arc::new(foundation.receipts);
        let refused = Arc::new(foundation.refused);
        let operators = Arc::new(foundation.operators);

        let metrics = Arc::new(Metrics::new(store.kind()));
        let observer = Observer::new(Arc::clone(&metrics), traces.clone(), store.kind());
        let observer = Arc::new(observer);
        let readiness = Readiness::new(lifecycle, Arc::clone(&store), is_ready_without_store);
        let readiness = Arc::new(readiness);
        // Half of the connections: other requests need some, too.
        let held = Arc::new(HeldRequests::new(max_connections / 2));
        let budget = Budget::with_reserve(REQUEST_BYTES, SMALL_RESERVE_BYTES);
        let (http_connections, grpc_connections) = Connections::of_both_ports(&budget);

        let accounts = Accounts {
            metrics: Arc::clone(&metrics),
            refused: Arc::clone(&refused),
            traces: traces.clone(),
        };
        let pipeline = Pipeline::new(Arc::clone(&rules), accounts, Arc::clone(&receipts));
        let pipeline = Arc::new(pipeline);
        let metrics_page = MetricsPage::new(Sources {
            metrics: Arc::clone(&metrics),
            rules: Arc::clone(&rules),
            readiness: Arc::clone(&readiness),
            operators: Arc::clone(&operators),
            held: Arc::clone(&held),
            connections: [Arc::clone(&http_connections), Arc::clone(&grpc_connections)],
            max_connections,
            log,
            traces,
        });
        Parts {
            watched: Watched {
                rules: Arc::clone(&rules),
                store,
                observer: Arc::clone(&observer),
                operators: Arc::clone(&operators),
                refused: Arc::clone(&refused),
            },
            grpc: GrpcParts {
                envoy: RateLimitService {
                    pipeline: Arc::clone(&pipeline),
                    observer: Arc::clone(&observer),
                    metrics: Arc::clone(&metrics),
                    budget: budget.clone(),
                },
                readiness: Arc::clone(&readiness),
                connections: grpc_connections,
            },
            api: ApiParts {
                pipeline,
                observer,
                metrics,
                metrics_page,
                rules,
                readiness,
                receipts,
                refused,
                operators,
                held,
                budget,
                page_budget: PageBudget(Budget::new(PAGE_BYTES)),
                playground: foundation.playground,
            },
            http_connections,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use tollgate::Limiter;
    use tollgate::rules::{Config, Rules};

    use super::*;
    use crate::lifecycle;

    /// The parts of a server that decides by the rules of a text, on the store of a limiter.
    pub(crate) fn on(limiter: &Limiter, rules: &str) -> Parts {
        let config = Config::parse("rules.yaml", rules).unwrap();
        let (_, lifecycle) = lifecycle::lifecycle();
        Parts::new(Foundation {
            rules: RuleSet::of_text(Rules::new(limiter, &config).unwrap(), rules),
            store: StoreMonitor::new(limiter, 0).unwrap(),
            receipts: Receipts::default(),
            refused: Refused::default(),
            operators: OperatorAccess::default(),
            playground: None,
            lifecycle,
            log: Log::silent().unwrap(),
            traces: None,
            is_ready_without_store: false,
            max_connections: 0,
        })
    }

    pub(crate) fn in_memory(rules: &str) -> Parts {
        on(&Limiter::memory(), rules)
    }
}
