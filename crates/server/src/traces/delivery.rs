//! Sends spans, and says when it cannot: once, not for each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use opentelemetry::Context;
use opentelemetry_otlp::SpanExporter as Otlp;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};
use parking_lot::Mutex;

/// A collector that comes and goes is told of no more often.
const PAUSE: Duration = Duration::from_secs(60);

/// How the delivery of spans goes. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Without what may be secret.
    endpoint: String,
    /// Spans that are over.
    ended: AtomicU64,
    delivered: AtomicU64,
    /// Spans that the collector did not take.
    failed: AtomicU64,
    /// Spans that are queued or being sent, and how many that may be.
    waiting: AtomicU64,
    max_waiting: u64,
    /// Spans that found no room.
    dropped: AtomicU64,
    trouble: Mutex<Trouble>,
}

/// Whether it was said that spans are not delivered.
#[derive(Debug, Default)]
struct Trouble {
    said: Option<Instant>,
    is_said: bool,
    /// Spans that were lost since.
    lost: u64,
}

impl Delivery {
    /// To an endpoint, with a queue of so many spans.
    pub(super) fn new(endpoint: String, max_waiting: u64) -> Delivery {
        let (ended, delivered, failed, waiting, dropped, trouble) = Default::default();
        let inner =
            Inner { endpoint, ended, delivered, failed, waiting, max_waiting, dropped, trouble };
        Delivery { inner: Arc::new(inner) }
    }

    /// Spans that nobody will ever see.
    pub(super) fn lost(&self) -> u64 {
        let Inner { failed, dropped, .. } = &*self.inner;
        failed.load(Ordering::Relaxed) + dropped.load(Ordering::Relaxed)
    }

    /// Whether there is room for one more, which then waits. The queue itself would drop it without a count.
    fn wait(&self) -> bool {
        let Inner { ended, waiting, max_waiting, dropped, .. } = &*self.inner;
        ended.fetch_add(1, Ordering::Relaxed);
        let has_room = waiting.fetch_add(1, Ordering::Relaxed) < *max_waiting;
        if !has_room {
            waiting.fetch_sub(1, Ordering::Relaxed);
            dropped.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// What sends them, watched.
    pub(super) fn watched(&self, exporter: Otlp) -> Watched {
        Watched { exporter, delivery: self.clone() }
    }

    /// Spans that found no room are told of here, unless it is known that none are delivered.
    pub(super) fn stopped(&self) {
        let lost = self.left_out();
        if lost > 0 && !self.inner.trouble.lock().is_said {
            let endpoint = &self.inner.endpoint;
            tracing::warn!(lost, endpoint, "traces were lost: the collector is too slow for them");
        }
    }

    /// Spans that were never sent.
    fn left_out(&self) -> u64 {
        let Inner { ended, delivered, failed, .. } = &*self.inner;
        let sent = delivered.load(Ordering::Relaxed) + failed.load(Ordering::Relaxed);
        ended.load(Ordering::Relaxed).saturating_sub(sent)
    }

    fn sent(&self, spans: u64, result: &OTelSdkResult, now: Instant) {
        let Inner { endpoint, delivered, failed, waiting, trouble, .. } = &*self.inner;
        waiting.fetch_sub(spans, Ordering::Relaxed);
        let mut trouble = trouble.lock();
        let Err(error) = result else {
            delivered.fetch_add(spans, Ordering::Relaxed);
            if let Some(lost) = trouble.ends() {
                tracing::info!(endpoint, lost, "traces are delivered again");
            }
            return;
        };
        failed.fetch_add(spans, Ordering::Relaxed);
        if trouble.begins(now) {
            tracing::warn!(endpoint, %error, "traces are not delivered: is the collector there?");
        }
        trouble.lost += spans;
    }
}

impl Trouble {
    /// Whether it is to be said now.
    fn begins(&mut self, now: Instant) -> bool {
        let is_too_soon = self.said.is_some_and(|said| now.saturating_duration_since(said) < PAUSE);
        if self.is_said || is_too_soon {
            return false;
        }
        (self.said, self.is_said) = (Some(now), true);
        true
    }

    /// If it was said, it is to be said that it is over, and how many spans were lost.
    fn ends(&mut self) -> Option<u64> {
        std::mem::take(&mut self.is_said).then(|| std::mem::take(&mut self.lost))
    }
}

/// Sends spans, and notes what became of them. It runs on a thread of the SDK's.
#[derive(Debug)]
pub(super) struct Watched {
    exporter: Otlp,
    delivery: Delivery,
}

impl SpanExporter for Watched {
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

/// Counts spans before they are queued.
#[derive(Debug)]
pub(super) struct Counted {
    batches: BatchSpanProcessor,
    delivery: Delivery,
}

impl Counted {
    pub(super) fn new(batches: BatchSpanProcessor, delivery: Delivery) -> Counted {
        Counted { batches, delivery }
    }
}

impl SpanProcessor for Counted {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batches.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.delivery.wait() {
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
    fn trouble_is_said_when_it_begins_and_not_again_within_a_minute() {
        let (mut trouble, start) = (Trouble::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(trouble.ends(), None, "there was none");
        assert!(trouble.begins(at(0)));
        assert!(!trouble.begins(at(100)), "it has begun already");
        assert_eq!(trouble.ends(), Some(0));
        assert!(trouble.begins(at(100)));
        trouble.lost = 7;
        assert_eq!(trouble.ends(), Some(7));
        assert!(!trouble.begins(at(159)));
        assert_eq!(trouble.ends(), None, "it was not said that it began");
        assert!(trouble.begins(at(160)));
    }

    #[test]
    fn what_is_left_out_ended_and_was_never_sent() {
        let delivery = Delivery::new("http://a".to_owned(), 8);
        let waits: Vec<bool> = (0..9).map(|_| delivery.wait()).collect();
        assert_eq!(waits, [[true; 8].as_slice(), &[false]].concat());
        assert_eq!(delivery.lost(), 1);
        delivery.sent(3, &Ok(()), Instant::now());
        let failure = OTelSdkError::InternalFailure("away".to_owned());
        delivery.sent(4, &Err(failure), Instant::now());
        assert_eq!((delivery.left_out(), delivery.lost()), (2, 5));
        assert!(delivery.wait(), "what was sent makes room");
        assert_eq!(delivery.inner.trouble.lock().ends(), Some(4));
    }
}
