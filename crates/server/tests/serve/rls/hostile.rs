//! Requests that Envoy does not send.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, TestRunner};
use prost::Message;
use rustix::process::Signal;
use tonic::Code;

use super::raw::{CallAnswer, RawClient, call, call_answer, framed, pieces, whole};
use super::{RlsServer, costing, descriptor, limited, request};
use crate::grpc::run;
use crate::memory::peak_kib;
use crate::metrics::scrape;

const RULES: &str = "
limits: { many: fixed-window limit=1000000 window=365d }
rules: [{ name: per-user, domain: api, key: [user], limit: many }]
";

const INVALID_ARGUMENT: u16 = 3;

fn named(name: &str) -> RateLimitDescriptor {
    descriptor(&[("user", name)])
}

#[test]
fn bad_requests_are_refused_with_place_and_remedy() {
    let limits = RlsServer::start(RULES);
    let no_entries = RateLimitDescriptor::default();
    let negative = RateLimitDescriptor { is_negative_hits: true, ..named("a") };
    let many_entries: Vec<_> = (0..33).map(|_| ("a", "b")).collect();
    let (long_key, long_value) = ("k".repeat(129), "v".repeat(65_537));
    let nobody = RateLimitRequest { domain: String::new(), ..request(vec![named("a")]) };
    let most = u64::MAX.to_string();
    let table: [(RateLimitRequest, &str); 11] = [
        (nobody, "domain: is empty; send the domain"),
        (request(vec![]), "descriptors: there are 0; send 1 to 64"),
        (request(vec![named("a"); 65]), "descriptors: there are 65; send 1 to 64"),
        (
            request(vec![named("a"), no_entries]),
            "descriptors[1].entries: there are 0; send 1 to 32",
        ),
        (
            request(vec![descriptor(&many_entries)]),
            "descriptors[0].entries: there are 33; send 1 to 32",
        ),
        (
            request(vec![descriptor(&[("a", "b"), ("", "b")])]),
            "descriptors[0].entries[1].key: has 0 bytes; use 1 to 128",
        ),
        (
            request(vec![descriptor(&[(&long_key, "b")])]),
            "descriptors[0].entries[0].key: has 129 bytes; use 1 to 128",
        ),
        (
            request(vec![descriptor(&[("user", &long_value)])]),
            "descriptors[0].entries[0].value: has 65537 bytes; send at most 65536",
        ),
        (
            request(vec![descriptor(&[("descriptor_keys", "a")])]),
            "descriptors[0].entries[0].key: `descriptor_keys` is made by the server; use another",
        ),
        (request(vec![negative]), "descriptors[0].is_negative_hits: is set; leave it out"),
        (
            request(vec![limited(5, RateLimitUnit::Unknown, &[("user", "a")])]),
            "descriptors[0].limit.unit: 0 is not a unit; use SECOND, MINUTE",
        ),
    ];
    for (message, want) in table {
        let error = limits.try_ask(message).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().starts_with(want), "{}", error.message());
    }
    let error = limits.try_ask(request(vec![costing(u64::MAX, &[("user", "a")])])).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    let want = format!("descriptors[0].hits_addend: is {most}; use at most 9007199254740991");
    assert_eq!(error.message(), want);
}

#[test]
fn largest_legal_request_is_answered() {
    let limits = RlsServer::start(RULES);
    let (key, value) = ("k".repeat(128), "v".repeat(65_536));
    let entries: Vec<_> = (0..32).map(|_| (&*key, "")).collect();
    let answer = limits.ask_all(vec![descriptor(&entries); 60]);
    assert_eq!(answer.statuses.len(), 60);
    limits.ask_all(vec![descriptor(&[("user", &value)])]);
    let mut message = request(vec![named("a"); 64]);
    message.hits_addend = u32::MAX;
    limits.ask(message);
}

/// Asserts that a message was refused with a short, printable text.
fn assert_refused(answer: &CallAnswer) {
    assert_eq!((answer.http, answer.grpc), (200, Some(INVALID_ARGUMENT)), "{answer:?}");
    assert!((10..2_000).contains(&answer.message.len()), "{answer:?}");
    assert!(answer.message.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{answer:?}");
}

#[test]
fn too_long_messages_are_refused_unread() {
    let limits = RlsServer::start(RULES);
    run(async {
        let mut raw = RawClient::connect(&limits.server).await;
        let endless = |bytes: usize| descriptor(&[("user", &"v".repeat(bytes))]);
        let thousands = request((0..5_000).map(|at| named(&format!("user-{at:040}"))).collect());
        for (message, want) in [
            (request(vec![endless(1 << 20)]), "descriptors[0].entries[0].value: has 1048576 bytes"),
            (thousands, "descriptors: there are 5000"),
            (request(vec![endless(1 << 20); 5]), "the message is too long"),
        ] {
            let answer = raw.ask_message(&message.encode_to_vec()).await;
            assert_refused(&answer);
            assert!(answer.message.starts_with(want), "{answer:?}");
        }
        // A message of 4 MiB on a stream that does not end.
        let (sender, body) = pieces();
        sender.send(framed(&[0; 4 << 20]).into()).unwrap();
        assert_refused(&raw.ask(call(&[], body)).await);
        drop(sender);
        let answer = raw.ask_message(&request(vec![named("a")]).encode_to_vec()).await;
        assert_eq!(answer.grpc, Some(0), "{answer:?}");
    });
}

/// Envoy lets a request pass when it gets an error, so no header of a client may cause an error.
#[test]
fn largest_client_headers_are_decided() {
    let limits = RlsServer::start(RULES);
    run(async {
        let mut raw = RawClient::connect(&limits.server).await;
        let whole = |user: &str| descriptor(&[("user", &user.repeat(60 << 10))]);
        let answer = raw.ask_message(&request(vec![whole("a"); 16]).encode_to_vec()).await;
        assert_eq!(answer.grpc, Some(0), "{answer:?}");
        // More charges than one decision can hold are refused, without an error.
        let each: Vec<_> = (0..64).map(|at| whole(&char::from(b'0' + at).to_string())).collect();
        let answer = raw.ask_message(&request(each).encode_to_vec()).await;
        assert_eq!(answer.grpc, Some(0), "{answer:?}");
        assert!(answer.body.windows(9).any(|part| part == b"undecided"), "{answer:?}");
    });
}

#[test]
fn malformed_messages_are_refused() {
    let limits = RlsServer::start(RULES);
    let message = request(vec![named("a")]).encode_to_vec();
    run(async {
        let mut raw = RawClient::connect(&limits.server).await;
        // Invalid UTF-8: `domain` is the byte 255.
        assert_refused(&raw.ask_message(&[0x0a, 1, 0xff]).await);
        assert_refused(&raw.ask_message(b"\x0a\x05ab").await);
        assert_refused(&raw.ask_message(&message[..message.len() - 1]).await);
        assert_refused(&raw.ask_message(b"").await);
        let longer = [&framed(&message)[..], b"x"].concat();
        let twice = framed(&message).repeat(2);
        let promised = [&[0, 0, 0, 1, 0][..], &message].concat();
        for body in [vec![], vec![0], vec![0; 4], longer, twice, promised] {
            assert_refused(&raw.ask(call(&[], whole(body))).await);
        }
        // Other content types for the same message are accepted.
        for kind in ["application/grpc+proto", "application/grpc;charset=utf-8"] {
            let mut call_request = call(&[], whole(framed(&message)));
            call_request.headers_mut().insert("content-type", kind.parse().unwrap());
            assert_eq!(raw.ask(call_request).await.grpc, Some(0), "{kind}");
        }
        let mut compressed = framed(&message);
        compressed[0] = 1;
        let answer = raw.ask(call(&[("grpc-encoding", "gzip")], whole(compressed))).await;
        assert_eq!(answer.grpc, Some(Code::Unimplemented as u16), "{answer:?}");
    });
}

#[test]
fn other_content_types_get_an_http_error() {
    let limits = RlsServer::start(RULES);
    let message = framed(&request(vec![named("a")]).encode_to_vec());
    run(async {
        let mut raw = RawClient::connect(&limits.server).await;
        for kind in ["application/json", "application/grpc-web", "application/grpcx", ""] {
            let mut call_request = call(&[], whole(message.clone()));
            call_request.headers_mut().insert("content-type", kind.parse().unwrap());
            assert_eq!(raw.ask(call_request).await.http, 415, "{kind}");
        }
        let mut call_request = call(&[], whole(message.clone()));
        *call_request.method_mut() = "GET".parse().unwrap();
        assert_eq!(raw.ask(call_request).await.http, 405);
        for path in ["/", "/envoy.service.ratelimit.v3.RateLimitService/Other", "/nobody.Knows/It"]
        {
            let mut call_request = call(&[], whole(message.clone()));
            *call_request.uri_mut() = format!("http://localhost{path}").parse().unwrap();
            assert_eq!(
                raw.ask(call_request).await.grpc,
                Some(Code::Unimplemented as u16),
                "{path}"
            );
        }
    });
    let page = scrape(&limits.server);
    let counted =
        |status| page.value("tollgate_requests_total", &[("endpoint", "rls"), ("status", status)]);
    assert_eq!((counted("415"), counted("405")), (4.0, 1.0));
}

#[test]
fn arbitrary_bytes_are_answered() {
    let limits = RlsServer::start(RULES);
    let message = request(vec![named("a"), costing(2, &[("ip", "192.0.2.1"), ("path", "/a?b")])]);
    let message = message.encode_to_vec();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let raw = runtime.block_on(RawClient::connect(&limits.server));
    let ask = |body: Vec<u8>| {
        let mut raw = raw.clone();
        let call = raw.ask(call(&[], whole(body)));
        runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(60), call).await.unwrap() })
    };
    let mut runner =
        TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    // Random bytes, and the valid message with a few bytes changed.
    let changes = vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4);
    let cases = (vec(any::<u8>(), 0..200), changes, any::<bool>(), any::<bool>());
    let result = runner.run(&cases, |(random, changes, is_random, is_framed)| {
        let mut body = if is_random { random } else { message.clone() };
        for (at, byte) in changes {
            if let Some(place) = (!body.is_empty()).then(|| at.index(body.len())) {
                body[place] = byte;
            }
        }
        let answer = ask(if is_framed { framed(&body) } else { body });
        let is_known = matches!(answer.grpc, Some(0 | INVALID_ARGUMENT | 12));
        assert!(answer.http == 200 && is_known, "{answer:?}");
        Ok(())
    });
    result.unwrap();
    assert_eq!(ask(framed(&message)).grpc, Some(0));
}

#[test]
fn unfinished_messages_take_bounded_memory_and_block_no_small_one() {
    let limits = RlsServer::start_with(RULES, &["--request-timeout", "1m"]);
    let message = request(vec![named("a")]).encode_to_vec();
    run(async {
        let mut kept = Vec::new();
        // 100 MiB in all: 400 messages without their last byte.
        for _ in 0..2 {
            let mut raw = RawClient::connect(&limits.server).await;
            for _ in 0..200 {
                let (sender, body) = pieces();
                sender.send(vec![0; (256 << 10) - 1].into()).unwrap();
                raw.connection().await;
                kept.push((sender, tokio::spawn(raw.send(call(&[], body)))));
            }
        }
        // Small messages are answered while the server refuses the messages for which it has no memory.
        let mut raw = RawClient::connect(&limits.server).await;
        while kept.iter().filter(|(_, answer)| answer.is_finished()).count() < 100 {
            assert_eq!(raw.ask_message(&message).await.grpc, Some(0));
        }
        for (_, answer) in kept.iter_mut().filter(|(_, answer)| answer.is_finished()) {
            // If there is no answer, the server closed the connection because of a flood of small pieces.
            if let Ok(response) = answer.await.unwrap() {
                let answer = call_answer(response).await;
                assert_eq!(answer.grpc, Some(Code::ResourceExhausted as u16), "{answer:?}");
            }
        }
        assert!(peak_kib(&limits.server) < 200 << 10, "{} KiB", peak_kib(&limits.server));
    });
}

/// An empty descriptor has two bytes, and would take much more memory after decoding.
#[test]
fn millions_of_empty_descriptors_take_no_memory() {
    let limits = RlsServer::start(RULES);
    let message = request(vec![named("a")]).encode_to_vec();
    run(async {
        let mut raw = RawClient::connect(&limits.server).await;
        assert_eq!(raw.ask_message(&message).await.grpc, Some(0));
        let before = peak_kib(&limits.server);
        // Many descriptors, and one descriptor of 2 MiB with many entries.
        let entries = [&b"\x12\x80\x80\x80\x01"[..], &b"\x0a\x00".repeat(1 << 20)].concat();
        for many in [b"\x12\x00".repeat(2_000_000), entries] {
            let answer = raw.ask_message(&many).await;
            assert_refused(&answer);
            assert!(answer.message.contains(": there are "), "{answer:?}");
        }
        let after = peak_kib(&limits.server);
        assert!(after < before + (32 << 10), "{before} KiB, then {after} KiB");
    });
}

/// If a server is stopped for longer than Envoy waits, Envoy cancels every open call.
#[test]
fn all_open_calls_can_be_cancelled_at_once() {
    let limits = RlsServer::start(RULES);
    let mut stream = TcpStream::connect(&limits.server.grpc).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    stream.read_exact(&mut [0; 9]).unwrap();
    limits.server.signal(Signal::STOP);
    let all: Vec<u8> = (0..1_024).flat_map(|at| cancelled_call(2 * at + 1)).collect();
    stream.write_all(&all).unwrap();
    // A PING, which an open connection answers with the same bytes.
    stream.write_all(b"\0\0\x08\x06\0\0\0\0\0there is").unwrap();
    limits.server.signal(Signal::CONT);
    let mut received = Vec::new();
    while !received.windows(8).any(|bytes| bytes == b"there is") {
        let mut some = [0; 1_024];
        let count = stream.read(&mut some).unwrap();
        assert!(count > 0, "the connection was closed: {received:?}");
        received.extend_from_slice(&some[..count]);
    }
}

/// Returns a request without a body that is cancelled at once.
fn cancelled_call(stream: u32) -> Vec<u8> {
    let id = stream.to_be_bytes();
    let head = [&[0, 0, 3, 1, 4][..], &id, &[0x83, 0x86, 0x84]].concat();
    [&head[..], &[0, 0, 4, 3, 0], &id, &[0, 0, 0, 8]].concat()
}

#[test]
fn client_that_cancels_every_call_is_cut_off() {
    let limits = RlsServer::start(RULES);
    let mut stream = TcpStream::connect(&limits.server.grpc).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let flood: Vec<u8> = (0..200_000).flat_map(|at| cancelled_call(2 * at + 1)).collect();
    // OK to ignore an error: the server can close the connection before all bytes are sent.
    let _ = stream.write_all(&flood);
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received);
    // GOAWAY, with ENHANCE_YOUR_CALM.
    let is_calmed =
        received.windows(17).any(|frame| frame[3] == 7 && frame[13..17] == [0, 0, 0, 11]);
    assert!(is_calmed, "{} bytes", received.len());
    limits.ask_all(vec![named("a")]);
}
