//! The metrics for Prometheus.
//!
//! - `requests`: the metrics of requests; `histogram`: durations, sorted into buckets
//! - `page`: the whole page, with numbers that are read from other parts of the server for each page
//! - `holds`: the metrics of holds; `leases`: the metrics of leases
//! - `process`: the metrics of the process, from the system
//! - `text`: the text format

mod histogram;
mod holds;
mod leases;
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
use requests::RequestMetrics;
use text::{MetricKind, MetricsText};

use crate::endpoint::RequestEndpoint;
use crate::store::StoreKind;

/// The counters and durations that are recorded here. Numbers that other parts keep are read when a page is written.
#[derive(Debug)]
pub(crate) struct Metrics {
    store: StoreKind,
    requests: RequestMetrics,
    /// `None` for the memory store: reading the clock would cost more than the decision.
    store_calls: Option<Histogram>,
    /// Descriptors of Envoy that no rule applied to.
    unmatched: AtomicU64,
    /// gRPC calls that clients reset before the answer.
    reset_calls: AtomicU64,
    /// Requests to `/v1/authorize` from peers that are not trusted proxies.
    untrusted_proxies: AtomicU64,
    started: SystemTime,
}

impl Metrics {
    pub(crate) fn new(store: StoreKind) -> Metrics {
        Metrics {
            store,
            requests: RequestMetrics::default(),
            store_calls: store.is_remote().then(Histogram::default),
            unmatched: AtomicU64::new(0),
            reset_calls: AtomicU64::new(0),
            untrusted_proxies: AtomicU64::new(0),
            started: SystemTime::now(),
        }
    }

    /// Counts an answered request, and records how long it took.
    pub(crate) fn request(&self, endpoint: RequestEndpoint, status: StatusCode, took: Duration) {
        self.requests.count(endpoint, status, took);
    }

    /// Returns the start time of a call of the store; `None` for the memory store, where reading the clock would take
    /// longer than the decision.
    pub(crate) fn store_call(&self) -> Option<Instant> {
        self.store_calls.as_ref().map(|_| Instant::now())
    }

    /// Records how long a call of the store took, which is answered now.
    pub(crate) fn store_answered(&self, called: Option<Instant>) {
        if let (Some(calls), Some(called)) = (&self.store_calls, called) {
            calls.record(called.elapsed());
        }
    }

    /// Counts descriptors of Envoy that no rule applied to.
    pub(crate) fn unmatched(&self, descriptors: usize) {
        if descriptors > 0 {
            self.unmatched.fetch_add(descriptors as u64, Ordering::Relaxed);
        }
    }

    /// Counts a gRPC call that its client reset before the answer.
    pub(crate) fn count_reset_call(&self) {
        self.reset_calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request to `/v1/authorize` from a peer that is not a trusted proxy.
    pub(crate) fn count_untrusted_proxy(&self) {
        self.untrusted_proxies.fetch_add(1, Ordering::Relaxed);
    }

    fn untrusted_proxies(&self) -> u64 {
        self.untrusted_proxies.load(Ordering::Relaxed)
    }

    /// Writes the metrics of requests and of calls of the store.
    fn write_recorded(&self, text: &mut MetricsText) {
        self.requests.write(text, self.store);
        if let Some(calls) = &self.store_calls {
            let help = "Time that decisions waited for the store, in seconds, without refusals from the deny cache and decisions of leases.";
            text.metric("tollgate_store_call_duration_seconds", MetricKind::Histogram, help);
            text.histogram(&[("store", self.store.name())], calls);
        }
    }

    /// Writes the other counters.
    fn write_counted(&self, text: &mut MetricsText) {
        let help = "Descriptors of Envoy that no rule applied to, so that they were not limited.";
        let unmatched = self.unmatched.load(Ordering::Relaxed);
        text.single(
            "tollgate_rls_unmatched_descriptors_total",
            MetricKind::Counter,
            help,
            unmatched,
        );
        let help = "gRPC calls that clients reset before the server answered.";
        let reset_calls = self.reset_calls.load(Ordering::Relaxed);
        text.single("tollgate_grpc_reset_calls_total", MetricKind::Counter, help, reset_calls);
    }

    fn started(&self) -> SystemTime {
        self.started
    }
}
