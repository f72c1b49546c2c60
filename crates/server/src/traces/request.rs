//! What the span of a request tells. Names in it are of the API and of the file of rules; nothing is what
//! a client sent.

use hyper::{Request, StatusCode};
use opentelemetry::trace::{Span, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, ContextGuard, KeyValue};
use parking_lot::Mutex;
use tollgate::Decision;
use tollgate::rules::Ruling;

use super::{Traces, parent};
use crate::endpoint::{self, RequestEndpoint};
use crate::store::StoreKind;

/// A request that is traced. It is over when this is dropped.
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
            caller.with_value(Decisions::default()).with_span(span)
        } else {
            caller.with_span(span)
        };
        RequestSpan { context }
    }
}

impl RequestSpan {
    /// What is done until the guard is dropped is done for this request.
    pub(crate) fn enter(&self) -> ContextGuard {
        self.context.clone().attach()
    }

    /// The request is answered. A denial is no error, nor is a client's mistake.
    pub(crate) fn answered(self, status: StatusCode) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        if let Some(Decisions(told)) = self.context.get() {
            span.set_attributes(told.lock().attributes());
        }
        if status.is_server_error() {
            span.set_status(Status::error(""));
        }
        span.end();
    }
}

/// What was decided for a request: one check, or those of a batch.
#[derive(Debug, Default)]
struct Decisions(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    checks: i64,
    denied: i64,
    is_degraded: bool,
    /// The limit, or the rule that refused, of the last.
    by: Option<KeyValue>,
}

/// Tells the request's span what the limit of that name decided.
pub(crate) fn decided(limit: &str, decision: &Decision) {
    tell(|told| {
        told.denied += i64::from(!decision.is_allowed());
        told.is_degraded |= decision.is_degraded();
        told.by = Some(KeyValue::new("tollgate.limit", limit.to_owned()));
    });
}

/// Tells the request's span what the rules decided, and which of them refused.
pub(crate) fn ruled(ruling: &Ruling) {
    tell(|told| {
        told.denied += i64::from(!ruling.is_allowed());
        told.is_degraded |= ruling.is_degraded();
        let refuser = ruling.refused_by().map(|part| part.name().to_string());
        told.by = refuser.map(|name| KeyValue::new("tollgate.rule", name));
    });
}

/// Nothing is told if no span wants it.
fn tell(tell: impl FnOnce(&mut Told)) {
    Context::map_current(|context| {
        if let Some(Decisions(told)) = context.get() {
            let mut told = told.lock();
            told.checks += 1;
            tell(&mut told);
        }
    });
}

impl Told {
    /// Of one decision what it was; of several how many there were.
    fn attributes(&mut self) -> Vec<KeyValue> {
        let degraded = KeyValue::new("tollgate.degraded", self.is_degraded);
        let mut attributes = match self.checks {
            0 => return Vec::new(),
            1 => vec![KeyValue::new("tollgate.allowed", self.denied == 0), degraded],
            checks => {
                let checks = KeyValue::new("tollgate.checks", checks);
                return vec![checks, KeyValue::new("tollgate.denied", self.denied), degraded];
            }
        };
        attributes.extend(self.by.take());
        attributes
    }
}

/// Waits for a store across the network, in a span of its own if there are traces.
pub(crate) async fn store<T, E>(
    traces: Option<&Traces>,
    asked: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let mut span = traces.map(|traces| {
        let span = traces.tracer.span_builder("store").with_kind(SpanKind::Client);
        traces.tracer.build_with_context(span, &Context::current())
    });
    let answer = asked.await;
    if let (Some(span), Err(_)) = (&mut span, &answer) {
        span.set_status(Status::error(""));
    }
    // Here, or with the request that nobody waits for any more, the span ends.
    drop(span);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a span would be told, with that as `tollgate.limit`.
    fn told(checks: i64, denied: i64, limit: &'static str) -> Vec<String> {
        let by = Some(KeyValue::new("tollgate.limit", limit));
        let mut told = Told { checks, denied, is_degraded: false, by };
        let attributes = told.attributes();
        attributes
            .iter()
            .map(|attribute| format!("{}={}", attribute.key, attribute.value))
            .collect()
    }

    #[test]
    fn a_batch_tells_how_many_were_denied_and_no_name() {
        let degraded = "tollgate.degraded=false";
        assert_eq!(told(0, 0, "free"), [""; 0]);
        assert_eq!(told(1, 0, "free"), ["tollgate.allowed=true", degraded, "tollgate.limit=free"]);
        assert_eq!(told(1, 1, "free"), ["tollgate.allowed=false", degraded, "tollgate.limit=free"]);
        assert_eq!(told(3, 2, "free"), ["tollgate.checks=3", "tollgate.denied=2", degraded]);
    }
}
