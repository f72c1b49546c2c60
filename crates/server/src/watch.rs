//! Looks once a second at what has changed, for the log.
//!
//! - `store`: when the store begins to fail, and when it answers again
//! - `ceiling`: when keys no longer fit into memory, and when they fit again

mod ceiling;
mod store;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::store::{Look, News, StoreWatch};
use crate::lifecycle::{Lifecycle, Phase};
use crate::observe::Observer;
use crate::operators::OperatorAccess;
use crate::refusals::Refusals;
use crate::ruleset::RuleSet;
use crate::store::StoreMonitor;
use ceiling::CeilingWatch;

const LOOK: Duration = Duration::from_secs(1);

/// The parts of the server that are looked at.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) rules: Arc<RuleSet>,
    pub(crate) store: Arc<StoreMonitor>,
    pub(crate) observer: Arc<Observer>,
    pub(crate) operators: Arc<OperatorAccess>,
    pub(crate) refused: Arc<Refusals>,
}

impl Watched {
    /// Logs what has changed, once a second, until the server is about to close.
    pub(crate) async fn watch(self, lifecycle: Lifecycle) {
        let Watched { rules, store, observer, operators, refused } = &self;
        let mut store_watch = StoreWatch::default();
        let mut ceiling = CeilingWatch::default();
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = looks.tick() => {}
                () = lifecycle.reached(Phase::Closing) => return,
            }
            if let Some(health) = store.limiter().health() {
                store_watch.look(&Look::new(&health, store, rules)).iter().for_each(News::say);
            }
            observer.log_rest(Instant::now());
            operators.report_rest(Instant::now());
            refused.log_rest(Instant::now());
            if let Some(news) = ceiling.look(store.limiter().ceiling_counts()) {
                news.log(store.max_key_bytes());
            }
        }
    }
}
