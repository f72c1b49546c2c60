//! Puts the parts of a server together. Every part is complete before the first request, and is not replaced
//! afterwards.

use std::sync::Arc;

use tollgate_playground::Playground;

use crate::budget::{Budget, PAGE_BYTES, REQUEST_BYTES, SMALL_RESERVE_BYTES};
use crate::delays::DelayedRequests;
use crate::grpc::{GrpcParts, RateLimitService};
use crate::http::{ApiParts, PageBudget};
use crate::lifecycle::Lifecycle;
use crate::listener::Connections;
use crate::logs::ServerLog;
use crate::metrics::{Metrics, MetricsPage, Sources};
use crate::observe::Observer;
use crate::operators::OperatorAccess;
use crate::pipeline::{DecisionRecorder, Pipeline};
use crate::readiness::Readiness;
use crate::receipt::Receipts;
use crate::refusals::Refusals;
use crate::ruleset::RuleSet;
use crate::store::StoreMonitor;
use crate::traces::Traces;
use crate::watch::ServerWatch;

/// The parts that the server's configuration determines.
pub(crate) struct ConfiguredParts {
    pub(crate) rules: RuleSet,
    pub(crate) store: StoreMonitor,
    pub(crate) receipts: Receipts,
    pub(crate) refused: Refusals,
    pub(crate) operators: OperatorAccess,
    /// `None` if the playground is switched off.
    pub(crate) playground: Option<Playground>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) log: ServerLog,
    /// `None` unless traces are collected.
    pub(crate) traces: Option<Traces>,
    pub(crate) is_ready_without_store: bool,
    /// The most connections that each port may have.
    pub(crate) max_connections: u32,
}

/// The parts of a server, grouped by their users.
pub(crate) struct ServerParts {
    pub(crate) api: ApiParts,
    pub(crate) grpc: GrpcParts,
    pub(crate) watch: ServerWatch,
    pub(crate) http_connections: Arc<Connections>,
}

impl ServerParts {
    pub(crate) fn new(configured: ConfiguredParts) -> ServerParts {
        let ConfiguredParts {
            lifecycle, log, traces, is_ready_without_store, max_connections, ..
        } = configured;
        let rules = Arc::new(configured.rules);
        let store = Arc::new(configured.store);
        let receipts = Arc::new(configured.receipts);
        let refused = Arc::new(configured.refused);
        let operators = Arc::new(configured.operators);

        let metrics = Arc::new(Metrics::new(store.kind()));
        let observer = Observer::new(Arc::clone(&metrics), traces.clone(), store.kind());
        let observer = Arc::new(observer);
        let readiness = Readiness::new(lifecycle, Arc::clone(&store), is_ready_without_store);
        let readiness = Arc::new(readiness);
        // A delayed request keeps a connection open: half of the connections are left for other requests.
        let delayed = Arc::new(DelayedRequests::new(max_connections / 2));
        let budget = Budget::with_reserve(REQUEST_BYTES, SMALL_RESERVE_BYTES);
        let (http_connections, grpc_connections) = Connections::of_both_ports(&budget);

        let recorder = DecisionRecorder {
            metrics: Arc::clone(&metrics),
            refused: Arc::clone(&refused),
            traces: traces.clone(),
        };
        let pipeline = Pipeline::new(Arc::clone(&rules), recorder, Arc::clone(&receipts));
        let pipeline = Arc::new(pipeline);
        let metrics_page = MetricsPage::new(Sources {
            metrics: Arc::clone(&metrics),
            rules: Arc::clone(&rules),
            readiness: Arc::clone(&readiness),
            operators: Arc::clone(&operators),
            delayed: Arc::clone(&delayed),
            connections: [Arc::clone(&http_connections), Arc::clone(&grpc_connections)],
            max_connections,
            log,
            traces,
        });
        ServerParts {
            watch: ServerWatch {
                rules: Arc::clone(&rules),
                store,
                observer: Arc::clone(&observer),
                operators: Arc::clone(&operators),
                refusals: Arc::clone(&refused),
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
                delayed,
                budget,
                page_budget: PageBudget(Budget::new(PAGE_BYTES)),
                playground: configured.playground,
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

    /// Makes the parts of a server that has the rules in `rules` and the store of `limiter`.
    pub(crate) fn on(limiter: &Limiter, rules: &str) -> ServerParts {
        let config = Config::parse("rules.yaml", rules).unwrap();
        let (_, lifecycle) = lifecycle::lifecycle();
        ServerParts::new(ConfiguredParts {
            rules: RuleSet::of_text(Rules::new(limiter, &config).unwrap(), rules),
            store: StoreMonitor::new(limiter, 0).unwrap(),
            receipts: Receipts::default(),
            refused: Refusals::default(),
            operators: OperatorAccess::default(),
            playground: None,
            lifecycle,
            log: ServerLog::silent().unwrap(),
            traces: None,
            is_ready_without_store: false,
            max_connections: 0,
        })
    }

    /// Makes the parts of a server that has the rules in `rules`, in memory.
    pub(crate) fn in_memory(rules: &str) -> ServerParts {
        on(&Limiter::memory(), rules)
    }
}
