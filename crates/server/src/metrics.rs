//! What Prometheus is told.
//!
//! - `requests`: what is recorded of every request; `histogram`: durations, sorted into buckets
//! - `page`: the whole page, with what is read when somebody asks: decisions, the store, rules, connections
//! - `process`: what the system says of this process
//! - `text`: how it is written

mod histogram;
mod page;
mod process;
mod requests;
#[cfg(test)]
mod tests;
mod text;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use hyper::StatusCode;

use histogram::Histogram;
pub(crate) use page::{MetricsPage, Sources};
use requests::Requests;
use text::{Kind, Text};

use crate::endpoint::RequestEndpoint;
use crate::store::StoreKind;

/// What is counted while the server runs. What others count is read when somebody asks for it.
#[derive(Debug)]
pub(crate) struct Metrics {
    store: StoreKind,
    requests: Requests,
    /// `None` in memory: to take the time would cost more than the decision.
    store_calls: Option<Histogram>,
    /// Descriptors of Envoy's that no rule applied to.
    unmatched: AtomicU64,
    /// gRPC calls that clients reset before they were answered.
    reset_calls: AtomicU64,
    /// Requests to `/v1/authorize` of peers that are not trusted proxies.
    untrusted_proxies: AtomicU64,
    started: SystemTime,
}

impl Metrics {
    pub(crate) fn new(store: StoreKind) -> Metrics {
        Metrics {
            store,
            requests: Requests::default(),
            store_calls: store.is_remote().then(Histogram::default),
            unmatched: AtomicU64::new(0),
            reset_calls: AtomicU64::new(0),
            untrusted_proxies: AtomicU64::new(0),
            started: SystemTime::now(),
        }
    }

    /// Counts a request that was answered.
    pub(crate) fn request(&self, endpoint: RequestEndpoint, status: StatusCode, took: Duration) {
        self.requests.count(endpoint, status, took);
    }

    /// When a store across the network is asked; in memory it would take longer to read the clock than to decide.
    pub(crate) fn store_call(&self) -> Option<Instant> {
        self.store_calls.as_ref().map(|_| Instant::now())
    }

    /// Takes the time of a call that is answered now.
    pub(crate) fn store_answered(&self, called: Option<Instant>) {
        if let (Some(calls), Some(called)) = (&self.store_calls, called) {
            calls.record(called.elapsed());
        }
    }

    /// No rule applied to so many descriptors of Envoy's.
    pub(crate) fn unmatched(&self, descriptors: usize) {
        if descriptors > 0 {
            self.unmatched.fetch_add(descriptors as u64, Ordering::Relaxed);
        }
    }

    /// Counts a gRPC call that its client reset before it was answered.
    pub(crate) fn count_reset_call(&self) {
        self.reset_calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request to `/v1/authorize` of a peer that is not a trusted proxy.
    pub(crate) fn count_untrusted_proxy(&self) {
        self.untrusted_proxies.fetch_add(1, Ordering::Relaxed);
    }

    fn untrusted_proxies(&self) -> u64 {
        self.untrusted_proxies.load(Ordering::Relaxed)
    }

    /// Writes what was recorded one by one: requests, and calls of the store.
    fn write_recorded(&self, text: &mut Text) {
        self.requests.write(text, self.store);
        if let Some(calls) = &self.store_calls {
            let help = "How long decisions waited for the store. Remembered refusals do not wait.";
            text.metric("tollgate_store_call_duration_seconds", Kind::Histogram, help);
            text.histogram(&[("store", self.store.name())], calls);
        }
    }

    /// Writes the other counters.
    fn write_counted(&self, text: &mut Text) {
        let help = "Descriptors of Envoy's that no rule applied to: they are not limited.";
        let unmatched = self.unmatched.load(Ordering::Relaxed);
        text.single("tollgate_rls_unmatched_descriptors_total", Kind::Counter, help, unmatched);
        let help = "gRPC calls that clients reset before the server had answered them.";
        let reset_calls = self.reset_calls.load(Ordering::Relaxed);
        text.single("tollgate_grpc_reset_calls_total", Kind::Counter, help, reset_calls);
    }

    fn started(&self) -> SystemTime {
        self.started
    }
}
