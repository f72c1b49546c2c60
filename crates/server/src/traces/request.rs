//! The span of a request. Its names come from the API and the rules file, and nothing in it comes from a client.

use hyper::{Request, StatusCode};
use opentelemetry::trace::{Span, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, ContextGuard, KeyValue};
use parking_lot::Mutex;
use tollgate::Decision;
use tollgate::rules::Ruling;

use super::{Traces, parent};
use crate::endpoint::{self, RequestEndpoint};
use crate::store::StoreKind;

/// The span of a request. Dropping it ends the span.
#[derive(Debug)]
pub(crate) struct RequestSpan {
    context: Context,
}

impl Traces {
    /// Begins the span of a request.
    pub(crate) fn request<B>(&self, request: &Request<B>, store: StoreKind) -> RequestSpan {
        let method = endpoint::method(request.method());
        let route = RequestEndpoint::of(request.uri().path()).route();
        let name = route.map_or_else(|| method.to_owned(), |route| format!("{method} {route}"));
        let mut attributes = Vec::with_capacity(4);
        attributes.push(KeyValue::new("http.request.method", method));
        attributes.extend(route.map(|route| KeyValue::new("http.route", route)));
        attributes.push(KeyValue::new("url.scheme", "http"));
        attributes.push(KeyValue::new("tollgate.store", store.name()));
        let caller = match parent::parent(request.headers()) {
            Some(parent) => Context::new().with_remote_span_context(parent),
            None => Context::new(),
        };
        let span = self.tracer.span_builder(name).with_kind(SpanKind::Server);
        let span = self.tracer.build_with_context(span.with_attributes(attributes), &caller);
        let context = if span.is_recording() {
            caller.with_value(SpanDecisions::default()).with_span(span)
        } else {
            caller.with_span(span)
        };
        RequestSpan { context }
    }
}

impl RequestSpan {
    /// Makes this the current span until the guard is dropped.
    pub(crate) fn enter(&self) -> ContextGuard {
        self.context.clone().attach()
    }

    /// Ends the span of an answered request. Only a status of 5xx marks it as an error: a denial or a client's mistake
    /// does not.
    pub(crate) fn answered(self, status: StatusCode) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        if let Some(SpanDecisions(summary)) = self.context.get() {
            span.set_attributes(summary.lock().attributes());
        }
        if status.is_server_error() {
            span.set_status(Status::error(""));
        }
        span.end();
    }
}

/// The decisions of a request, which the span of the request gets at its end.
#[derive(Debug, Default)]
struct SpanDecisions(Mutex<DecisionSummary>);

/// A summary of the decisions of a request: of one check, or of all checks of a batch.
#[derive(Debug, Default)]
struct DecisionSummary {
    checks: i64,
    denied: i64,
    is_leased: bool,
    is_degraded: bool,
    /// The limit of the last decision, or the rule that refused it.
    by: Option<KeyValue>,
}

/// Adds the decision of a named limit to the current span.
pub(crate) fn record_decision(limit: &str, decision: &Decision) {
    record(|summary| {
        summary.denied += i64::from(!decision.is_allowed());
        summary.is_leased |= decision.is_leased();
        summary.is_degraded |= decision.is_degraded();
        summary.by = Some(KeyValue::new("tollgate.limit", limit.to_owned()));
    });
}

/// Adds a ruling to the current span, with the rule that refused.
pub(crate) fn record_ruling(ruling: &Ruling) {
    record(|summary| {
        summary.denied += i64::from(!ruling.is_allowed());
        summary.is_leased |= ruling.is_leased();
        summary.is_degraded |= ruling.is_degraded();
        let refuser = ruling.refused_by().map(|part| part.name().to_string());
        summary.by = refuser.map(|name| KeyValue::new("tollgate.rule", name));
    });
}

/// Updates the summary of the current span. Does nothing without a sampled span.
fn record(update: impl FnOnce(&mut DecisionSummary)) {
    Context::map_current(|context| {
        if let Some(SpanDecisions(summary)) = context.get() {
            let mut summary = summary.lock();
            summary.checks += 1;
            update(&mut summary);
        }
    });
}

impl DecisionSummary {
    /// Returns the attributes of the span: the decision itself if there is one, and the numbers of decisions if there
    /// are several.
    fn attributes(&mut self) -> Vec<KeyValue> {
        let leased = KeyValue::new("tollgate.leased", self.is_leased);
        let degraded = KeyValue::new("tollgate.degraded", self.is_degraded);
        let mut attributes = match self.checks {
            0 => return Vec::new(),
            1 => vec![KeyValue::new("tollgate.allowed", self.denied == 0), leased, degraded],
            checks => {
                let checks = KeyValue::new("tollgate.checks", checks);
                let denied = KeyValue::new("tollgate.denied", self.denied);
                return vec![checks, denied, leased, degraded];
            }
        };
        attributes.extend(self.by.take());
        attributes
    }
}

/// Waits for an answer of a store across the network, in a span of its own if there are traces.
pub(crate) async fn in_store_span<T, E>(
    traces: Option<&Traces>,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let mut span = traces.map(|traces| {
        let span = traces.tracer.span_builder("store").with_kind(SpanKind::Client);
        traces.tracer.build_with_context(span, &Context::current())
    });
    let answer = answer.await;
    if let (Some(span), Err(_)) = (&mut span, &answer) {
        span.set_status(Status::error(""));
    }
    // The span ends here, or when this future is dropped because the client has gone away.
    drop(span);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the attributes of a summary whose `tollgate.limit` is `limit`.
    fn attributes(checks: i64, denied: i64, limit: &'static str) -> Vec<String> {
        let by = Some(KeyValue::new("tollgate.limit", limit));
        let mut summary = DecisionSummary { checks, denied, by, ..DecisionSummary::default() };
        let attributes = summary.attributes();
        attributes
            .iter()
            .map(|attribute| format!("{}={}", attribute.key, attribute.value))
            .collect()
    }

    #[test]
    fn a_batch_has_the_number_of_denials_and_no_name() {
        let leased = "tollgate.leased=false";
        let degraded = "tollgate.degraded=false";
        assert_eq!(attributes(0, 0, "free"), [""; 0]);
        assert_eq!(
            attributes(1, 0, "free"),
            ["tollgate.allowed=true", leased, degraded, "tollgate.limit=free"]
        );
        assert_eq!(
            attributes(1, 1, "free"),
            ["tollgate.allowed=false", leased, degraded, "tollgate.limit=free"]
        );
        assert_eq!(
            attributes(3, 2, "free"),
            ["tollgate.checks=3", "tollgate.denied=2", leased, degraded]
        );
    }
}
