//! Traces: a span for each request, sent by OTLP over HTTP, if anybody collects them.
//!
//! - `endpoint`: where they go
//! - `request`: what the span of a request tells
//! - `parent`: the caller's trace
//! - `delivery`: sends them, and says when it cannot
//!
//! Spans wait in a queue of bounded size and are sent by a thread of the SDK's own: a request never waits
//! for a collector, and what it cannot take is lost.

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

use delivery::{Counted, Delivery};
use endpoint::Endpoint;

pub(crate) use request::{RequestSpan, decided, ruled, store};

/// How long the end waits for what is not sent yet.
const MAX_FLUSH: Duration = Duration::from_secs(3);

/// Where spans go. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    delivery: Delivery,
}

/// Spans go to `--otlp-endpoint`, or to where the environment says; `None` if neither says where.
///
/// Not inside a runtime: the client that sends them waits on one of its own.
pub(crate) fn start(flag: Option<&str>) -> anyhow::Result<Option<Traces>> {
    let Some(endpoint) = endpoint::find(flag, |name| std::env::var(name).ok())? else {
        return Ok(None);
    };
    let Endpoint { url, shown } = endpoint;
    let exporter = SpanExporter::builder().with_http().with_endpoint(url).build();
    let exporter =
        exporter.context("traces cannot be sent; see the variables OTEL_EXPORTER_OTLP_*")?;
    let delivery = Delivery::new(shown, max_waiting());
    let batches = BatchSpanProcessor::builder(delivery.watched(exporter)).build();
    let provider = SdkTracerProvider::builder()
        .with_span_processor(Counted::new(batches, delivery.clone()))
        .with_resource(resource())
        .build();
    let scope = InstrumentationScope::builder("tollgate").with_version(env!("CARGO_PKG_VERSION"));
    let tracer = provider.tracer_with_scope(scope.build());
    Ok(Some(Traces { provider, tracer, delivery }))
}

/// How many spans the queue holds, by the variable that says so.
fn max_waiting() -> u64 {
    let set = std::env::var(OTEL_BSP_MAX_QUEUE_SIZE).ok().and_then(|size| size.parse().ok());
    set.unwrap_or(OTEL_BSP_MAX_QUEUE_SIZE_DEFAULT as u64)
}

impl Traces {
    /// Spans that nobody will ever see: they were not taken, or found no room.
    pub(crate) fn lost(&self) -> u64 {
        self.delivery.lost()
    }

    /// Sends what is left, for three seconds at most. Not inside a runtime.
    pub(crate) fn stop(&self) {
        // An error is that it took longer, or that it was not delivered: which is said.
        let _ = self.provider.shutdown_with_timeout(MAX_FLUSH);
        self.delivery.stopped();
    }
}

/// Who sends them: `OTEL_SERVICE_NAME`, and what `OTEL_RESOURCE_ATTRIBUTES` adds.
fn resource() -> Resource {
    let name = Resource::builder().build().get(&"service.name".into());
    let is_named = name.is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder().with_attribute(version);
    if is_named { resource.build() } else { resource.with_service_name("tollgate").build() }
}
