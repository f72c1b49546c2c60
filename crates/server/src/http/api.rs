//! The state of the API's handlers. Each handler extracts the parts that it uses.

use std::sync::Arc;

use axum::extract::FromRef;

use super::authorize::Authorizer;
use crate::budget::Budget;
use crate::delays::DelayedRequests;
use crate::metrics::{Metrics, MetricsPage};
use crate::observe::Observer;
use crate::operators::OperatorAccess;
use crate::pipeline::Pipeline;
use crate::readiness::Readiness;
use crate::receipt::Receipts;
use crate::refusals::Refusals;
use crate::ruleset::RuleSet;
use crate::store::StoreKind;
use tollgate_playground::Playground;

/// The parts of the server that the API uses.
pub(crate) struct ApiParts {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) observer: Arc<Observer>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) metrics_page: MetricsPage,
    pub(crate) rules: Arc<RuleSet>,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) receipts: Arc<Receipts>,
    pub(crate) refused: Arc<Refusals>,
    pub(crate) operators: Arc<OperatorAccess>,
    pub(crate) delayed: Arc<DelayedRequests>,
    pub(crate) budget: Budget,
    pub(crate) page_budget: PageBudget,
    /// `None` if the playground is switched off.
    pub(crate) playground: Option<Playground>,
}

/// The memory budget of answers that describe the server, such as the metrics. It is separate, so that an operator can
/// read them while requests have spent their budget.
#[derive(Clone, Debug)]
pub(crate) struct PageBudget(pub(crate) Budget);

/// The state of the router. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Api {
    parts: Arc<ApiState>,
}

struct ApiState {
    own: ApiParts,
    authorizer: Arc<Authorizer>,
}

impl Api {
    pub(crate) fn new(own: ApiParts) -> Api {
        let authorizer = Arc::new(Authorizer::new(
            Arc::clone(&own.pipeline),
            Arc::clone(&own.metrics),
            Arc::clone(&own.delayed),
            own.readiness.lifecycle().clone(),
        ));
        Api { parts: Arc::new(ApiState { own, authorizer }) }
    }

    pub(super) fn pipeline(&self) -> &Pipeline {
        &self.parts.own.pipeline
    }

    pub(super) fn budget(&self) -> &Budget {
        &self.parts.own.budget
    }

    pub(super) fn observer(&self) -> &Arc<Observer> {
        &self.parts.own.observer
    }
}

/// Implements the extraction of single parts.
macro_rules! parts {
    ($($field:ident: $part:ty;)*) => {
        $(impl FromRef<Api> for $part {
            fn from_ref(api: &Api) -> $part {
                api.parts.own.$field.clone()
            }
        })*
    };
}

parts! {
    pipeline: Arc<Pipeline>;
    metrics_page: MetricsPage;
    rules: Arc<RuleSet>;
    readiness: Arc<Readiness>;
    receipts: Arc<Receipts>;
    refused: Arc<Refusals>;
    operators: Arc<OperatorAccess>;
    budget: Budget;
    page_budget: PageBudget;
    playground: Option<Playground>;
}

impl FromRef<Api> for Arc<Authorizer> {
    fn from_ref(api: &Api) -> Arc<Authorizer> {
        Arc::clone(&api.parts.authorizer)
    }
}

impl FromRef<Api> for StoreKind {
    fn from_ref(api: &Api) -> StoreKind {
        api.parts.own.readiness.store().kind()
    }
}
