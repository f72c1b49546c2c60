//! The traces that a collector receives.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};
use rustix::process::Signal;
use tollgate_launcher::{Flavour, Launch};

use crate::collector::{Collector, CollectorMode, attribute};
use crate::server::ServerProcess;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";
const CHECK: &str = r#"{"limit":"free","key":"user:42"}"#;

/// Starts a server that sends its traces to a collector, and stops without a drain delay.
fn server(collector: &Collector, flags: &[&str]) -> ServerProcess {
    let always = ["--otlp-endpoint", &collector.url, "--drain-delay", "0s"];
    ServerProcess::start(&[&always[..], flags].concat())
}

fn stop(server: ServerProcess) -> String {
    server.signal(Signal::TERM);
    let (status, log) = server.wait();
    assert!(status.success(), "{status}: {log}");
    log
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_error(span: &Span) -> bool {
    span.status.as_ref().is_some_and(|status| status.code == StatusCode::Error as i32)
}

#[track_caller]
fn assert_attributes(span: &Span, expected: &[(&str, &str)]) {
    let of = |name| attribute(&span.attributes, name);
    for (name, value) in expected {
        assert_eq!(of(name).as_deref(), Some(*value), "{name} of {}", span.name);
    }
    assert_eq!(span.attributes.len(), expected.len(), "{:?}", span.attributes);
}

#[test]
fn request_is_a_span_with_its_decision() {
    let collector = Collector::start(CollectorMode::Takes);
    let server = server(&collector, &[]);
    server.check(CHECK);
    assert_eq!(server.check(r#"{"limit":"login","key":"a","cost":6}"#)["allowed"], false);
    assert_eq!(server.post("/v1/check", "{}").send().unwrap().status(), 400);
    assert_eq!(server.get("/nowhere").send().unwrap().status(), 404);
    stop(server);
    let spans = collector.spans(4);
    let [allowed, denied, bad, nowhere] = &spans[..] else { panic!("{spans:#?}") };
    let common = [("url.scheme", "http"), ("tollgate.store", "memory")];
    let check = [("http.request.method", "POST"), ("http.route", "/v1/check")];
    let answered = |status, more: &[(&'static str, &'static str)]| {
        [&common[..], &[("http.response.status_code", status)], more].concat()
    };
    let decided = |limit, allowed| {
        let decision = [("tollgate.limit", limit), ("tollgate.allowed", allowed)];
        [&check[..], &decision, &[("tollgate.leased", "false"), ("tollgate.degraded", "false")]]
            .concat()
    };
    assert_attributes(allowed, &answered("200", &decided("free", "true")));
    assert_attributes(denied, &answered("200", &decided("login", "false")));
    assert_attributes(bad, &answered("400", &check));
    assert_attributes(nowhere, &answered("404", &[("http.request.method", "GET")]));
    for span in &spans {
        assert_eq!(span.kind, SpanKind::Server as i32);
        assert!(!is_error(span), "neither a denial nor a client's mistake is an error: {span:?}");
        assert!(
            span.parent_span_id.is_empty() && span.end_time_unix_nano >= span.start_time_unix_nano
        );
    }
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["POST /v1/check", "POST /v1/check", "POST /v1/check", "GET"]);
    let resource = collector.resource();
    assert_eq!(attribute(&resource, "service.name").as_deref(), Some("tollgate"));
    let version = attribute(&resource, "service.version");
    assert_eq!(version.as_deref(), Some(env!("CARGO_PKG_VERSION")));
    assert!(collector.texts()[0].0.starts_with("POST /v1/traces HTTP/1.1\r\n"));
}

#[test]
fn proxys_request_is_a_span_with_its_rule() {
    let file = crate::check::rules(
        "identity: { trusted_proxies: [127.0.0.1] }\n\
         rules: [{ name: none, domain: web, when: { path: /closed }, key: [], limit: block }]",
    );
    let collector = Collector::start(CollectorMode::Takes);
    let server = server(&collector, &["--config", file.path().to_str().unwrap()]);
    let request = server.get("/v1/authorize").header("x-forwarded-method", "PUT");
    assert_eq!(request.header("x-forwarded-uri", "/closed").send().unwrap().status(), 403);
    stop(server);
    let spans = collector.spans(1);
    let expected = [
        ("url.scheme", "http"),
        ("tollgate.store", "memory"),
        ("http.request.method", "GET"),
        ("http.route", "/v1/authorize"),
        ("http.response.status_code", "403"),
        ("tollgate.allowed", "false"),
        ("tollgate.leased", "false"),
        ("tollgate.degraded", "false"),
        ("tollgate.rule", "web/none"),
    ];
    assert_attributes(&spans[0], &expected);
}

#[test]
fn callers_trace_is_the_parent_and_decides_on_recording() {
    let collector = Collector::start(CollectorMode::Takes);
    let server = server(&collector, &[]);
    let send_with = |traceparent: &str| {
        let request = server.post("/v1/check", CHECK).header("traceparent", traceparent);
        assert_eq!(request.send().unwrap().status(), 200);
    };
    send_with(&format!("00-{TRACE}-{CALLER}-01"));
    send_with(&format!("00-{TRACE}-{CALLER}-00"));
    send_with("00-oh-no-01");
    stop(server);
    let spans = collector.spans(2);
    let [child, alone] = &spans[..] else { panic!("{spans:#?}") };
    assert_eq!((hex(&child.trace_id), hex(&child.parent_span_id)), (TRACE.into(), CALLER.into()));
    assert!(hex(&alone.trace_id) != TRACE && alone.parent_span_id.is_empty());
}

#[test]
fn spans_contain_no_client_text() {
    let collector = Collector::start(CollectorMode::Takes);
    let server = server(&collector, &[]);
    let sent = [
        server.post("/v1/check", r#"{"limit":"free","key":"invented"}"#),
        server.post("/v1/check", r#"{"limit":"invented","key":"invented"}"#),
        server.post("/v1/check?invented=invented", "invented"),
        server.get("/invented/invented"),
        server.get("/v1/limits/invented/keys/invented"),
    ];
    for request in sent {
        let request = request.header("user-agent", "invented").header("x-invented", "invented");
        let request = request.header("traceparent", format!("00-{TRACE}-{CALLER}-01"));
        request
            .header("tracestate", "vendor=invented")
            .header("baggage", "a=invented")
            .send()
            .unwrap();
    }
    let mut stream = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    stream
        .write_all(b"INVENTED / HTTP/1.1\r\nhost: invented\r\nconnection: close\r\n\r\n")
        .unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
    stop(server);
    let spans = collector.spans(6);
    assert_eq!(attribute(&spans[5].attributes, "http.request.method").as_deref(), Some("_OTHER"));
    assert_eq!(spans[4].name, "GET /v1/limits/{name}/keys/{key}");
    for (head, body) in collector.texts() {
        let text = format!("{head}{body}").to_lowercase();
        assert!(!text.contains("invented") && !text.contains("vendor"), "{text}");
    }
}

#[test]
fn waiting_for_redis_has_its_own_span_and_a_failure_is_an_error() {
    let collector = Collector::start(CollectorMode::Takes);
    let mut redis = Launch::new(Flavour::Redis).start().unwrap();
    let url = format!("redis://{}", redis.addr());
    let mut file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let limits = "limits: { free: token-bucket capacity=60 refill=1/s }\nrules: []\n";
    write!(file, "defaults: {{ on_store_failure: closed, deadline: 5s }}\n{limits}").unwrap();
    let config = file.path().to_str().unwrap();
    let server = server(&collector, &["--store", &url, "--config", config]);
    server.check(CHECK);
    redis.kill();
    assert_eq!(server.post("/v1/check", CHECK).send().unwrap().status(), 503);
    stop(server);
    let spans = collector.spans(4);
    let [store_answered, answered, failed, unavailable] = &spans[..] else { panic!("{spans:#?}") };
    for (store, request) in [(store_answered, answered), (failed, unavailable)] {
        assert_eq!((&*store.name, &*request.name), ("store", "POST /v1/check"));
        assert_eq!(store.kind, SpanKind::Client as i32);
        assert_eq!(store.parent_span_id, request.span_id);
        assert_eq!(store.trace_id, request.trace_id);
        assert_eq!(attribute(&request.attributes, "tollgate.store").as_deref(), Some("redis"));
    }
    assert_eq!(spans.iter().map(is_error).collect::<Vec<_>>(), [false, false, true, true]);
    let status = attribute(&unavailable.attributes, "http.response.status_code");
    assert_eq!(status.as_deref(), Some("503"));
}

#[test]
fn decision_without_the_store_is_degraded() {
    let collector = Collector::start(CollectorMode::Takes);
    let redis = Launch::new(Flavour::Redis).start().unwrap();
    let url = format!("redis://{}", redis.addr());
    drop(redis);
    let server = server(&collector, &["--store", &url]);
    assert_eq!(server.check(CHECK)["allowed"], true);
    stop(server);
    let spans = collector.spans(2);
    assert_eq!(attribute(&spans[1].attributes, "tollgate.degraded").as_deref(), Some("true"));
    assert!(!is_error(&spans[1]), "the request was answered");
}

#[test]
fn standard_variables_configure_traces() {
    let collector = Collector::start(CollectorMode::Takes);
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.url),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=one"),
        ("OTEL_SERVICE_NAME", "gate"),
        ("OTEL_BSP_SCHEDULE_DELAY", "10"),
    ];
    let server = ServerProcess::start_with(&["--drain-delay", "0s"], &variables);
    server.check(CHECK);
    assert_eq!(collector.spans(1).len(), 1, "spans are sent before the server stops");
    let resource = collector.resource();
    assert_eq!(attribute(&resource, "service.name").as_deref(), Some("gate"));
    let (head, _) = &collector.texts()[0];
    assert!(head.to_lowercase().contains("x-tenant: one"), "{head}");
    drop(server);

    let quiet = Collector::start(CollectorMode::Takes);
    let sampler = [("OTEL_TRACES_SAMPLER", "always_off"), ("TOLLGATE_OTLP_ENDPOINT", &*quiet.url)];
    let server = ServerProcess::start_with(&["--drain-delay", "0s"], &sampler);
    server.check(CHECK);
    stop(server);
    assert_eq!(quiet.texts().len(), 0);
}

/// Sends the head of a request. The server then waits for the body.
fn begin(server: &ServerProcess) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
         expect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        CHECK.len()
    );
    (&stream).write_all(head.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "HTTP/1.1 100 Continue\r\n");
    reader
}

#[test]
fn spans_in_flight_are_sent_when_the_server_stops() {
    let collector = Collector::start(CollectorMode::Takes);
    let finished = server(&collector, &[]);
    let mut request = begin(&finished);
    finished.signal(Signal::TERM);
    request.get_mut().write_all(CHECK.as_bytes()).unwrap();
    let mut answer = String::new();
    request.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("200 OK"), "{answer}");
    assert!(finished.wait().0.success());
    assert_eq!(collector.spans(1).len(), 1);

    let unfinished = server(&collector, &["--drain-timeout", "100ms"]);
    let _request = begin(&unfinished);
    stop(unfinished);
    let spans = collector.spans(2);
    assert_eq!(attribute(&spans[1].attributes, "http.response.status_code"), None);
}

/// Sends more checks than the queue of spans holds, stops the server, and returns its log.
fn without_collector(url: &str, timeout_ms: &str) -> String {
    let flags = ["--otlp-endpoint", url, "--drain-delay", "0s"];
    let timeout = ("OTEL_EXPORTER_OTLP_TIMEOUT", timeout_ms);
    let server = ServerProcess::start_with(&flags, &[("OTEL_BSP_SCHEDULE_DELAY", "50"), timeout]);
    let mut slowest = Duration::ZERO;
    for _ in 0..2_500 {
        let begun = Instant::now();
        server.check(CHECK);
        slowest = slowest.max(begun.elapsed());
    }
    assert!(slowest < Duration::from_secs(5), "a request waited for the collector: {slowest:?}");
    let begun = Instant::now();
    let log = stop(server);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    log
}

#[track_caller]
fn assert_logged_once(log: &str) {
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("traces")).collect();
    let [line] = lines[..] else { panic!("{} lines: {log}", lines.len()) };
    assert!(line.contains("WARN") && line.contains("traces are not delivered"), "{line}");
    assert_eq!(log.lines().count(), 7, "{log}");
}

#[test]
fn unreachable_collector_is_logged_once_and_delays_no_request() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    assert_logged_once(&without_collector(&url, "10000"));
}

#[test]
fn failing_collector_is_logged_once_and_delays_no_request() {
    assert_logged_once(&without_collector(&Collector::start(CollectorMode::Fails).url, "10000"));
}

#[test]
fn silent_collector_is_logged_once_and_delays_no_request() {
    let collector = Collector::start(CollectorMode::Silent);
    assert_logged_once(&without_collector(&collector.url, "100"));
    // The server does not wait for the collector's timeout when it stops.
    let log = without_collector(&collector.url, "60000");
    assert_eq!(log.lines().filter(|line| line.contains("traces were lost")).count(), 1, "{log}");
    assert_eq!(log.lines().count(), 7, "{log}");
}

#[test]
fn recovery_of_the_collector_is_logged() {
    let collector = Collector::start(CollectorMode::Fails);
    let variables = [("OTEL_BSP_SCHEDULE_DELAY", "10"), ("TOLLGATE_OTLP_ENDPOINT", &collector.url)];
    let server = ServerProcess::start_with(&["--drain-delay", "0s"], &variables);
    server.check(CHECK);
    server.wait_for_log(|log| log.contains("traces are not delivered"));
    collector.set(CollectorMode::Takes);
    server.check(CHECK);
    assert_eq!(collector.spans(1).len(), 1);
    let lost = crate::metrics::scrape(&server).value("tollgate_spans_lost_total", &[]);
    assert_eq!(lost, 1.0);
    let log = stop(server);
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("traces")).collect();
    assert!(lines.len() == 2 && lines[1].contains("traces are delivered again"), "{log}");
    assert!(lines[1].ends_with("lost=1"), "{log}");
    assert!(lines.iter().all(|line| line.contains(&collector.url)), "{log}");
}

#[test]
fn spans_dropped_from_a_full_queue_are_counted() {
    let collector = Collector::start(CollectorMode::Later);
    let variables = [("OTEL_BSP_MAX_QUEUE_SIZE", "10"), ("TOLLGATE_OTLP_ENDPOINT", &collector.url)];
    let server = ServerProcess::start_with(&["--drain-delay", "0s"], &variables);
    for _ in 0..100 {
        server.check(CHECK);
    }
    let lost = crate::metrics::scrape(&server).value("tollgate_spans_lost_total", &[]);
    assert_eq!(lost, 90.0, "ten are in the queue");
    collector.set(CollectorMode::Takes);
    let log = stop(server);
    let lost = log.lines().find(|line| line.contains("traces were lost")).expect(&log);
    let lost = lost.split_once("lost=").unwrap().1.split_once(' ').unwrap().0;
    let lost: usize = lost.parse().unwrap();
    assert!((50..100).contains(&lost), "{log}");
    // The scrape is also a request with a span.
    assert_eq!(collector.spans(1).len() + lost, 101);
}

#[test]
fn bad_endpoint_is_an_error_that_names_the_flag() {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["serve", "--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"])
        .args(["--otlp-endpoint", "127.0.0.1:4318"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.starts_with("error: --otlp-endpoint: "), "{error}");
}
