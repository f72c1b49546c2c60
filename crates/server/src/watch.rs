//! Logs changes in the state of the server. Looks for them once a second.
//!
//! - `store`: the store begins to fail, or answers again
//! - `ceiling`: keys no longer fit into memory, or fit again

mod ceiling;
mod store;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::store::{StoreChange, StoreSample, StoreWatch};
use crate::lifecycle::{Lifecycle, Phase};
use crate::observe::Observer;
use crate::operators::OperatorAccess;
use crate::refusals::Refusals;
use crate::ruleset::RuleSet;
use crate::store::StoreMonitor;
use ceiling::CeilingWatch;

const INTERVAL: Duration = Duration::from_secs(1);

/// Watches the parts of the server, and logs changes.
#[derive(Debug)]
pub(crate) struct ServerWatch {
    pub(crate) rules: Arc<RuleSet>,
    pub(crate) store: Arc<StoreMonitor>,
    pub(crate) observer: Arc<Observer>,
    pub(crate) operators: Arc<OperatorAccess>,
    pub(crate) refusals: Arc<Refusals>,
}

impl ServerWatch {
    /// Logs changes once a second, until the server closes.
    pub(crate) async fn run(self, lifecycle: Lifecycle) {
        let ServerWatch { rules, store, observer, operators, refusals } = &self;
        let mut store_watch = StoreWatch::default();
        let mut ceiling = CeilingWatch::default();
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = lifecycle.reached(Phase::Closing) => return,
            }
            if let Some(health) = store.limiter().health() {
                let sample = StoreSample::new(&health, store, rules);
                store_watch.look(&sample).iter().for_each(StoreChange::log);
            }
            observer.log_rest(Instant::now());
            operators.report_rest(Instant::now());
            refusals.log_rest(Instant::now());
            if let Some(change) = ceiling.look(store.limiter().ceiling_counts()) {
                change.log(store.max_key_bytes());
            }
        }
    }
}
