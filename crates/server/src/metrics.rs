//! What Prometheus is told.
//!
//! - `requests`: what is recorded of every request; `histogram`: durations, sorted into buckets
//! - `state`: what is read when somebody asks: decisions, the store, rules, connections
//! - `process`: what the system says of this process
//! - `text`: how it is written

mod histogram;
mod process;
mod requests;
mod state;
#[cfg(test)]
mod tests;
mod text;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};

use histogram::Histogram;
use requests::Requests;
use text::{Kind, Text};

use crate::endpoint::Endpoint;
use crate::http::Problem;
use crate::served::Served;
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
    started: SystemTime,
    /// Who holds it writes the page: at most one at a time, however many ask.
    writing: tokio::sync::Mutex<()>,
}

impl Metrics {
    pub(crate) fn new(store: StoreKind) -> Metrics {
        Metrics {
            store,
            requests: Requests::default(),
            store_calls: store.is_remote().then(Histogram::default),
            unmatched: AtomicU64::new(0),
            reset_calls: AtomicU64::new(0),
            started: SystemTime::now(),
            writing: tokio::sync::Mutex::default(),
        }
    }

    /// Counts a request that was answered.
    pub(crate) fn request(&self, endpoint: Endpoint, status: StatusCode, took: Duration) {
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

    /// Writes what was recorded one by one: requests, and calls of the store.
    fn recorded(&self, text: &mut Text) {
        self.requests.write(text, self.store);
        if let Some(calls) = &self.store_calls {
            let help = "How long decisions waited for the store. Remembered refusals do not wait.";
            text.metric("tollgate_store_call_duration_seconds", Kind::Histogram, help);
            text.histogram(&[("store", self.store.name())], calls);
        }
    }

    /// The text that Prometheus reads.
    pub(crate) fn render(&self, served: &Served) -> String {
        let mut text = Text::default();
        self.recorded(&mut text);
        state::write(&mut text, served, self.started);
        let help = "Descriptors of Envoy's that no rule applied to: they are not limited.";
        let unmatched = self.unmatched.load(Ordering::Relaxed);
        text.single("tollgate_rls_unmatched_descriptors_total", Kind::Counter, help, unmatched);
        let help = "gRPC calls that clients reset before the server had answered them.";
        let reset_calls = self.reset_calls.load(Ordering::Relaxed);
        text.single("tollgate_grpc_reset_calls_total", Kind::Counter, help, reset_calls);
        process::write(&mut text, self.started);
        text.into_string()
    }
}

/// What the server counts, as Prometheus reads it
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "operations",
    responses((status = 200, description = "The text format of Prometheus", body = String, content_type = "text/plain"))
)]
pub(crate) async fn page(State(served): State<Arc<Served>>) -> Response {
    let shared = Arc::clone(&served);
    let _alone = served.metrics.writing.lock().await;
    // With thousands of rules it takes milliseconds, which others should not wait.
    match tokio::task::spawn_blocking(move || shared.metrics.render(&shared)).await {
        Ok(text) => {
            let format = HeaderValue::from_static("text/plain; version=0.0.4");
            match served.page_budget.body(text.into_bytes()) {
                Ok(text) => ([(CONTENT_TYPE, format)], text).into_response(),
                Err(exhausted) => Problem::from(exhausted).into_response(),
            }
        }
        // The server is about to end.
        Err(_) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "no metrics now; ask again")
            .into_response(),
    }
}
