//! Sends spans, and logs once when they are no longer delivered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use opentelemetry::Context;
use opentelemetry_otlp::SpanExporter as Otlp;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};
use parking_lot::Mutex;

/// The least time between two log lines about a failing collector.
const PAUSE: Duration = Duration::from_secs(60);

/// Counts spans on their way to the collector, and logs failures. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    counts: Arc<DeliveryCounts>,
}

#[derive(Debug)]
struct DeliveryCounts {
    /// The URL without parts that may be secret.
    endpoint: String,
    /// Spans that have ended.
    ended: AtomicU64,
    delivered: AtomicU64,
    /// Spans that the collector did not accept.
    failed: AtomicU64,
    /// Spans that are queued or being sent, and the most that may be.
    waiting: AtomicU64,
    max_waiting: u64,
    /// Spans for which the queue was full.
    dropped: AtomicU64,
    outage: Mutex<DeliveryOutage>,
}

/// The outages of the collector that were logged.
#[derive(Debug, Default)]
struct DeliveryOutage {
    /// When the last outage was logged.
    logged: Option<Instant>,
    /// Whether a logged outage has not ended.
    is_open: bool,
    /// The spans that were lost since the end of an outage was last logged.
    lost: u64,
}

impl Delivery {
    /// Returns the delivery to an endpoint, with a queue of `max_waiting` spans.
    pub(super) fn new(endpoint: String, max_waiting: u64) -> Delivery {
        let (ended, delivered, failed, waiting, dropped, outage) = Default::default();
        let counts = DeliveryCounts {
            endpoint,
            ended,
            delivered,
            failed,
            waiting,
            max_waiting,
            dropped,
            outage,
        };
        Delivery { counts: Arc::new(counts) }
    }

    /// Returns the number of spans that were lost so far.
    pub(super) fn lost(&self) -> u64 {
        let DeliveryCounts { failed, dropped, .. } = &*self.counts;
        failed.load(Ordering::Relaxed) + dropped.load(Ordering::Relaxed)
    }

    /// Counts a span that has ended. Returns whether it may be queued. If the queue is full, the span is counted as
    /// dropped; the SDK's queue would drop it without a count.
    fn admit(&self) -> bool {
        let DeliveryCounts { ended, waiting, max_waiting, dropped, .. } = &*self.counts;
        ended.fetch_add(1, Ordering::Relaxed);
        let has_room = waiting.fetch_add(1, Ordering::Relaxed) < *max_waiting;
        if !has_room {
            waiting.fetch_sub(1, Ordering::Relaxed);
            dropped.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Wraps an exporter, to count what it sends.
    pub(super) fn monitored(&self, exporter: Otlp) -> MonitoredExporter {
        MonitoredExporter { exporter, delivery: self.clone() }
    }

    /// Logs how many spans were never sent, at the end of the process. Logs nothing during a logged outage.
    pub(super) fn stopped(&self) {
        let lost = self.unsent();
        if lost > 0 && !self.counts.outage.lock().is_open {
            let endpoint = &self.counts.endpoint;
            tracing::warn!(lost, endpoint, "traces were lost: the collector is too slow for them");
        }
    }

    /// Returns the number of spans that ended and were never sent.
    fn unsent(&self) -> u64 {
        let DeliveryCounts { ended, delivered, failed, .. } = &*self.counts;
        let sent = delivered.load(Ordering::Relaxed) + failed.load(Ordering::Relaxed);
        ended.load(Ordering::Relaxed).saturating_sub(sent)
    }

    /// Counts spans that were delivered or lost, and logs the beginning or the end of an outage.
    fn sent(&self, spans: u64, result: &OTelSdkResult, now: Instant) {
        let DeliveryCounts { endpoint, delivered, failed, waiting, outage, .. } = &*self.counts;
        waiting.fetch_sub(spans, Ordering::Relaxed);
        let mut outage = outage.lock();
        let Err(error) = result else {
            delivered.fetch_add(spans, Ordering::Relaxed);
            if let Some(lost) = outage.end() {
                tracing::info!(endpoint, lost, "traces are delivered again");
            }
            return;
        };
        failed.fetch_add(spans, Ordering::Relaxed);
        if outage.begin(now) {
            tracing::warn!(
                endpoint,
                %error,
                "traces are not delivered; check that a collector answers at the endpoint"
            );
        }
        outage.lost += spans;
    }
}

impl DeliveryOutage {
    /// Called when spans were not delivered. Returns whether to log the outage now.
    fn begin(&mut self, now: Instant) -> bool {
        let is_too_soon =
            self.logged.is_some_and(|logged| now.saturating_duration_since(logged) < PAUSE);
        if self.is_open || is_too_soon {
            return false;
        }
        (self.logged, self.is_open) = (Some(now), true);
        true
    }

    /// Called when spans were delivered. If an outage was logged, returns the number of lost spans, to log its end.
    fn end(&mut self) -> Option<u64> {
        std::mem::take(&mut self.is_open).then(|| std::mem::take(&mut self.lost))
    }
}

/// Sends spans, and counts which were delivered. Runs on a thread of the SDK.
#[derive(Debug)]
pub(super) struct MonitoredExporter {
    exporter: Otlp,
    delivery: Delivery,
}

impl SpanExporter for MonitoredExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len() as u64;
        let result = self.exporter.export(batch).await;
        self.delivery.sent(spans, &result, Instant::now());
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn shutdown(&self) -> OTelSdkResult {
        self.exporter.shutdown()
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// Counts spans before they are queued, and drops a span if the queue is full.
#[derive(Debug)]
pub(super) struct CountingProcessor {
    batches: BatchSpanProcessor,
    delivery: Delivery,
}

impl CountingProcessor {
    pub(super) fn new(batches: BatchSpanProcessor, delivery: Delivery) -> CountingProcessor {
        CountingProcessor { batches, delivery }
    }
}

impl SpanProcessor for CountingProcessor {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batches.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.delivery.admit() {
            self.batches.on_end(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::error::OTelSdkError;

    use super::*;

    #[test]
    fn outages_are_logged_at_most_once_a_minute() {
        let (mut outage, start) = (DeliveryOutage::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(outage.end(), None, "no outage has begun");
        assert!(outage.begin(at(0)));
        assert!(!outage.begin(at(100)), "the outage is logged already");
        assert_eq!(outage.end(), Some(0));
        assert!(outage.begin(at(100)));
        outage.lost = 7;
        assert_eq!(outage.end(), Some(7));
        assert!(!outage.begin(at(159)));
        assert_eq!(outage.end(), None, "its beginning was not logged");
        assert!(outage.begin(at(160)));
    }

    #[test]
    fn unsent_spans_have_ended_and_were_never_sent() {
        let delivery = Delivery::new("http://a".to_owned(), 8);
        let admitted: Vec<bool> = (0..9).map(|_| delivery.admit()).collect();
        assert_eq!(admitted, [[true; 8].as_slice(), &[false]].concat());
        assert_eq!(delivery.lost(), 1);
        delivery.sent(3, &Ok(()), Instant::now());
        let failure = OTelSdkError::InternalFailure("away".to_owned());
        delivery.sent(4, &Err(failure), Instant::now());
        assert_eq!((delivery.unsent(), delivery.lost()), (2, 5));
        assert!(delivery.admit(), "sent spans make room");
        assert_eq!(delivery.counts.outage.lock().end(), Some(4));
    }
}
