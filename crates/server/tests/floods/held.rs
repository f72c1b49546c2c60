//! Clients that make the server hold memory for them, on many connections.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use crate::honest::{
    FloodTarget, assert_answers, assert_in_time, ceiling_kib, message, send_checks,
};
use crate::http2::{DATA, END_HEADERS, END_STREAM, HEADERS, NEXT_BLOCK, block, frame, preface};
use crate::raw::{PATH, framed};
use crate::server::ServerProcess;

/// An HTTP/2 setting that allows the server to send 0 bytes of an answer's message.
const NO_WINDOW: &[u8] = &[0, 4, 0, 0, 0, 0];

/// Sends the bytes of `write` on many connections and keeps them open. Asserts the bound of the server's memory, and that
/// honest clients are answered.
fn assert_bounded(
    server: &ServerProcess,
    address: &str,
    connections: usize,
    write: impl Fn() -> Vec<u8>,
    name: &str,
) {
    let mut kept = Vec::new();
    for _ in 0..connections {
        let Ok(mut stream) = TcpStream::connect(address) else { continue };
        stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
        // An error means that the server has already closed the connection.
        let _ = stream.write_all(&write());
        kept.push(stream);
    }
    let honest = send_checks(server, Duration::from_millis(500));
    println!("{name}: at most {} KiB", honest.most_kib);
    assert!(honest.most_kib < ceiling_kib(connections + 2), "{name}: {} KiB", honest.most_kib);
    assert_in_time(name, honest.took);
    assert_answers(server, name);
}

/// Returns the bytes of a new gRPC connection with `count` calls, each with a header block and a message.
fn calls(settings: &[u8], path: &str, count: u32, message: &[u8]) -> Vec<u8> {
    let mut bytes = preface(settings);
    for at in 0..count {
        let block = if at == 0 { block(path) } else { NEXT_BLOCK.to_vec() };
        bytes.extend(frame(HEADERS, END_HEADERS, 2 * at + 1, &block));
        bytes.extend(frame(DATA, END_STREAM, 2 * at + 1, message));
    }
    bytes
}

#[test]
fn header_blocks_that_do_not_end_stay_within_the_memory_bound() {
    let target = FloodTarget::start(&[]);
    // 2,000 headers `accept: ` of one byte each, in a block that does not end.
    let open = [&[0x83, 0x86][..], &[0x80 | 19; 2_000]].concat();
    let open = [calls(&[], PATH, 0, &[]), frame(HEADERS, 0, 1, &open)].concat();
    assert_bounded(&target.server, &target.server.grpc, 1_000, || open.clone(), "header blocks");
    assert!(target.closed("memory") > 0.0);
}

#[test]
fn answers_that_are_not_read_stay_within_the_memory_bound() {
    let target = FloodTarget::start(&[]);
    let bytes = calls(NO_WINDOW, PATH, 1_000, &framed(&message("a")));
    assert_bounded(&target.server, &target.server.grpc, 100, || bytes.clone(), "unread answers");
}

#[test]
fn watches_of_health_stay_within_the_memory_bound() {
    let target = FloodTarget::start(&[]);
    let watches = calls(&[], "/grpc.health.v1.Health/Watch", 1_000, &framed(b""));
    assert_bounded(&target.server, &target.server.grpc, 50, || watches.clone(), "watches");
}

#[test]
fn long_heads_that_do_not_end_stay_within_the_memory_bound() {
    let target = FloodTarget::start(&["--request-timeout", "1m"]);
    let head = format!("GET / HTTP/1.1\r\nx: {}", "x".repeat(32_000)).into_bytes();
    let address = target.server.url.strip_prefix("http://").unwrap();
    assert_bounded(&target.server, address, 2_500, || head.clone(), "long heads");
}
