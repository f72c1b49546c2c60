//! A collector of traces that accepts requests, answers with an error, or does not answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

/// How a collector answers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CollectorMode {
    Takes,
    /// Answers with status 500.
    Fails,
    /// Never answers.
    Silent,
    /// Answers once another mode is set.
    Later,
}

/// A collector on a free port.
pub(crate) struct Collector {
    /// `http://127.0.0.1:40125`.
    pub(crate) url: String,
    received: Arc<ReceivedRequests>,
}

#[derive(Default)]
struct ReceivedRequests {
    requests: Mutex<Vec<ExportRequest>>,
    arrived: Condvar,
    mode: Mutex<Option<CollectorMode>>,
    changed: Condvar,
}

#[derive(Clone)]
struct ExportRequest {
    head: String,
    body: Vec<u8>,
}

impl Collector {
    pub(crate) fn start(mode: CollectorMode) -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::<ReceivedRequests>::default();
        *received.mode.lock().unwrap() = Some(mode);
        let shared = Arc::clone(&received);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let received = Arc::clone(&shared);
                std::thread::spawn(move || received.serve(&stream));
            }
        });
        Collector { url, received }
    }

    /// Changes how later requests are answered.
    pub(crate) fn set(&self, mode: CollectorMode) {
        *self.received.mode.lock().unwrap() = Some(mode);
        self.received.changed.notify_all();
    }

    /// Waits until at least `count` spans have arrived, and returns all spans.
    pub(crate) fn spans(&self, count: usize) -> Vec<Span> {
        let until = Instant::now() + Duration::from_secs(60);
        let mut requests = self.received.requests.lock().unwrap();
        loop {
            let spans: Vec<_> = requests.iter().flat_map(spans).collect();
            if spans.len() >= count {
                return spans;
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{} of {count} spans arrived", spans.len());
            requests = self.received.arrived.wait_timeout(requests, left).unwrap().0;
        }
    }

    /// Returns the resource attributes of the first request.
    pub(crate) fn resource(&self) -> Vec<KeyValue> {
        let requests = self.received.requests.lock().unwrap();
        let decoded = ExportTraceServiceRequest::decode(requests[0].body.as_slice()).unwrap();
        decoded.resource_spans[0].resource.clone().unwrap().attributes
    }

    /// Returns the heads and bodies of the requests, with invalid UTF-8 replaced.
    pub(crate) fn texts(&self) -> Vec<(String, String)> {
        let requests = self.received.requests.lock().unwrap();
        let text = |request: &ExportRequest| {
            (request.head.clone(), String::from_utf8_lossy(&request.body).into_owned())
        };
        requests.iter().map(text).collect()
    }
}

impl ReceivedRequests {
    fn serve(&self, stream: &TcpStream) {
        let mut reader = BufReader::new(stream);
        while let Some(request) = read(&mut reader) {
            let status = match self.mode() {
                CollectorMode::Fails => "500 Oh",
                CollectorMode::Takes | CollectorMode::Later => {
                    self.keep(request);
                    "200 OK"
                }
                CollectorMode::Silent => {
                    // Reads until the client stops waiting and closes the connection.
                    let _ = reader.read_to_end(&mut Vec::new());
                    return;
                }
            };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            if (&*stream).write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    /// Waits until the mode is not `Later`, and returns it.
    fn mode(&self) -> CollectorMode {
        let is_later = |mode: &mut Option<CollectorMode>| *mode == Some(CollectorMode::Later);
        let mode = self.mode.lock().unwrap();
        self.changed.wait_while(mode, is_later).unwrap().unwrap()
    }

    fn keep(&self, request: ExportRequest) {
        self.requests.lock().unwrap().push(request);
        self.arrived.notify_all();
    }
}

fn read(reader: &mut impl BufRead) -> Option<ExportRequest> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    })?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(ExportRequest { head, body })
}

fn spans(request: &ExportRequest) -> Vec<Span> {
    let decoded = ExportTraceServiceRequest::decode(request.body.as_slice()).unwrap();
    let scopes = decoded.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
    scopes.flat_map(|scope| scope.spans).collect()
}

/// Returns an attribute as text, or `None` if no attribute has this name.
pub(crate) fn attribute(attributes: &[KeyValue], name: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == name)?;
    let AnyValue { value } = found.value.clone()?;
    Some(match value? {
        Value::StringValue(text) => text,
        Value::BoolValue(is) => is.to_string(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    })
}
