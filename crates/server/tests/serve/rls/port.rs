//! The rate limit service on the gRPC port, next to the other services.

use prost::Message;
use rustix::process::Signal;
use tonic::codegen::tokio_stream;
use tonic::transport::Channel;
use tonic_reflection::pb::{v1, v1alpha};

use super::raw::{RawClient, call, call_answer, framed, pieces, whole};
use super::{RlsServer, descriptor, request};
use crate::collector::{Collector, CollectorMode, attribute};
use crate::grpc::run;
use crate::metrics::scrape;
use crate::server::ServerProcess;

const RULES: &str = "
limits: { one: fixed-window limit=1 window=365d }
rules: [{ name: per-user, domain: api, key: [user], limit: one }]
";

const SERVICES: [&str; 3] = [
    "envoy.service.ratelimit.v3.RateLimitService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
];

fn message() -> Vec<u8> {
    request(vec![descriptor(&[("user", "a")])]).encode_to_vec()
}

async fn channel(server: &ServerProcess) -> Channel {
    let endpoint = Channel::from_shared(format!("http://{}", server.grpc)).unwrap();
    endpoint.connect().await.unwrap()
}

#[test]
fn clients_can_list_the_services() {
    use v1::server_reflection_client::ServerReflectionClient;
    use v1::server_reflection_request::MessageRequest;
    use v1::server_reflection_response::MessageResponse;

    let server = ServerProcess::start(&[]);
    run(async {
        let mut client = ServerReflectionClient::new(channel(&server).await);
        let ask = |message_request| v1::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(message_request),
        };
        let symbol = "envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit".to_owned();
        let requests = [
            ask(MessageRequest::ListServices(String::new())),
            ask(MessageRequest::FileContainingSymbol(symbol)),
        ];
        let answers = client.server_reflection_info(tokio_stream::iter(requests)).await.unwrap();
        let mut answers = answers.into_inner();
        let mut next = async || answers.message().await.unwrap().unwrap().message_response.unwrap();
        let MessageResponse::ListServicesResponse(listed) = next().await else { panic!() };
        let mut names: Vec<_> = listed.service.into_iter().map(|service| service.name).collect();
        names.sort_unstable();
        assert_eq!(names, SERVICES);
        let MessageResponse::FileDescriptorResponse(files) = next().await else { panic!() };
        assert_eq!(files.file_descriptor_proto.len(), 1);
    });
}

#[test]
fn clients_can_use_the_older_reflection_service() {
    use v1alpha::server_reflection_client::ServerReflectionClient;
    use v1alpha::server_reflection_request::MessageRequest;
    use v1alpha::server_reflection_response::MessageResponse;

    let server = ServerProcess::start(&[]);
    run(async {
        let mut client = ServerReflectionClient::new(channel(&server).await);
        let request = v1alpha::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let answers = client.server_reflection_info(tokio_stream::iter([request])).await.unwrap();
        let answer = answers.into_inner().message().await.unwrap().unwrap();
        let Some(MessageResponse::ListServicesResponse(listed)) = answer.message_response else {
            panic!("{answer:?}")
        };
        assert!(listed.service.iter().any(|service| service.name == SERVICES[0]));
    });
}

#[test]
fn calls_are_counted_as_requests() {
    let limits = RlsServer::start_with(RULES, &["--log", "debug"]);
    limits.ask_all(vec![descriptor(&[("user", "a")])]);
    limits.ask_all(vec![descriptor(&[("user", "a")])]);
    limits.try_ask(request(vec![])).unwrap_err();
    let page = scrape(&limits.server);
    let counted =
        |status| page.value("tollgate_requests_total", &[("endpoint", "rls"), ("status", status)]);
    assert_eq!((counted("200"), counted("400")), (2.0, 1.0), "a refusal is an answer");
    let took = page.value("tollgate_request_duration_seconds_count", &[("endpoint", "rls")]);
    assert_eq!(took, 3.0);
    let decided = |outcome| {
        let labels = [("rule", "per-user"), ("outcome", outcome), ("degraded", "false")];
        page.value("tollgate_decisions_total", &labels)
    };
    assert_eq!((decided("allowed"), decided("denied")), (1.0, 1.0));
    let path = super::raw::PATH;
    let log = limits.server.wait_for_log(|log| log.matches(path).count() == 3);
    assert!(!log.contains("user"), "the log has a client's text: {log}");
}

#[test]
fn call_is_a_span_with_its_decision() {
    let collector = Collector::start(CollectorMode::Takes);
    let flags = ["--otlp-endpoint", &collector.url, "--drain-delay", "0s"];
    let limits = RlsServer::start_with(RULES, &flags);
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    run(async {
        let mut raw = RawClient::connect(&limits.server).await;
        for _ in 0..2 {
            raw.ask(call(&[("traceparent", parent)], whole(framed(&message())))).await;
        }
    });
    limits.server.signal(Signal::TERM);
    let spans = collector.spans(2);
    let [allowed, denied] = &spans[..] else { panic!("{spans:#?}") };
    for (span, is_allowed) in [(allowed, "true"), (denied, "false")] {
        assert_eq!(span.name, format!("POST {}", super::raw::PATH));
        assert_eq!(attribute(&span.attributes, "tollgate.allowed").as_deref(), Some(is_allowed));
        assert_eq!(span.parent_span_id, [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]);
    }
    assert_eq!(attribute(&denied.attributes, "tollgate.rule").as_deref(), Some("api/per-user"));
}

#[test]
fn stopping_server_answers_calls_in_flight() {
    let limits = RlsServer::start_with(RULES, &["--drain-delay", "0s", "--drain-timeout", "1m"]);
    run(async {
        let mut raw = RawClient::connect(&limits.server).await;
        let (sender, body) = pieces();
        let message = framed(&message());
        let (first, last) = message.split_at(7);
        sender.send(first.to_vec().into()).unwrap();
        let answer = tokio::spawn(raw.send(call(&[], body)));
        // The server has received the first call, because it answered a later call on the same connection.
        assert_eq!(raw.ask_message(b"").await.grpc, Some(3));
        limits.server.signal(Signal::TERM);
        limits.server.wait_for_log(|log| log.contains("closing: finishes what is in flight"));
        sender.send(last.to_vec().into()).unwrap();
        drop(sender);
        assert_eq!(call_answer(answer.await.unwrap().unwrap()).await.grpc, Some(0));
    });
    let RlsServer { server, .. } = limits;
    let (status, log) = server.wait();
    assert!(status.success(), "{status}: {log}");
    assert!(log.contains("everything in flight was answered"), "{log}");
}
