//! Traces: a span for each request, sent by OTLP over HTTP if a collector is configured.
//!
//! - `endpoint`: the URL of the collector
//! - `request`: the span of a request
//! - `parent`: reads the caller's trace
//! - `delivery`: sends spans, counts lost ones and logs failures
//!
//! Spans wait in a queue of bounded size, and a thread of the SDK sends them. A request never waits for the collector;
//! when the collector is too slow and the queue is full, spans are lost.

mod delivery;
mod endpoint;
mod parent;
mod request;

use std::time::Duration;

use anyhow::Context;
use opentelemetry::trace::TracerProvider;
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, OTEL_BSP_MAX_QUEUE_SIZE, OTEL_BSP_MAX_QUEUE_SIZE_DEFAULT, SdkTracer,
    SdkTracerProvider,
};

use delivery::{CountingProcessor, Delivery};
use endpoint::OtlpEndpoint;

pub(crate) use request::{RequestSpan, in_store_span, record_decision, record_ruling};

/// How long the process waits at its end until all spans are sent.
const MAX_FLUSH: Duration = Duration::from_secs(3);

/// Creates and sends spans. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    delivery: Delivery,
}

/// Starts traces to `--otlp-endpoint` or the endpoint of the environment; `None` if neither is set.
///
/// Must not be called inside a runtime: the client that sends spans blocks on a runtime of its own.
pub(crate) fn start(flag: Option<&str>) -> anyhow::Result<Option<Traces>> {
    let Some(endpoint) = endpoint::find(flag, |name| std::env::var(name).ok())? else {
        return Ok(None);
    };
    let OtlpEndpoint { url, shown } = endpoint;
    let exporter = SpanExporter::builder().with_http().with_endpoint(url).build();
    let exporter =
        exporter.context("cannot send traces; check the variables OTEL_EXPORTER_OTLP_*")?;
    let delivery = Delivery::new(shown, max_waiting());
    let batches = BatchSpanProcessor::builder(delivery.monitored(exporter)).build();
    let provider = SdkTracerProvider::builder()
        .with_span_processor(CountingProcessor::new(batches, delivery.clone()))
        .with_resource(resource())
        .build();
    let scope = InstrumentationScope::builder("tollgate").with_version(env!("CARGO_PKG_VERSION"));
    let tracer = provider.tracer_with_scope(scope.build());
    Ok(Some(Traces { provider, tracer, delivery }))
}

/// Returns the size of the queue of spans, from the SDK's variable.
fn max_waiting() -> u64 {
    let set = std::env::var(OTEL_BSP_MAX_QUEUE_SIZE).ok().and_then(|size| size.parse().ok());
    set.unwrap_or(OTEL_BSP_MAX_QUEUE_SIZE_DEFAULT as u64)
}

impl Traces {
    /// Returns the number of lost spans: the collector did not accept them, or the queue was full.
    pub(crate) fn lost(&self) -> u64 {
        self.delivery.lost()
    }

    /// Sends the remaining spans, for three seconds at most. Must not be called inside a runtime.
    pub(crate) fn stop(&self) {
        // An error is ignored: `stopped` logs the spans that were not delivered in time.
        let _ = self.provider.shutdown_with_timeout(MAX_FLUSH);
        self.delivery.stopped();
    }
}

/// Returns the resource of the spans: the name in `OTEL_SERVICE_NAME` or `tollgate`, and `OTEL_RESOURCE_ATTRIBUTES`.
fn resource() -> Resource {
    let name = Resource::builder().build().get(&"service.name".into());
    let is_named = name.is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder().with_attribute(version);
    if is_named { resource.build() } else { resource.with_service_name("tollgate").build() }
}
