//! Floods of frames that carry no call.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::honest::{FloodTarget, resident_kib};
use crate::http2::{CONTINUATION, DATA, END_HEADERS, HEADERS, SETTINGS, block, frame, preface};
use crate::raw::PATH;
use crate::server::ServerProcess;

const PRIORITY: u8 = 2;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const UNKNOWN: u8 = 99;

/// The time for which each kind of frame is sent.
const TIME: Duration = Duration::from_millis(300);

/// The largest amount of memory that one connection can add.
const MAX_GROWTH_KIB: u64 = 16 << 10;

#[derive(Clone, Copy)]
enum AnswerReading {
    Never,
    Always,
}

/// Sends frames repeatedly until the server closes the connection or the time is over. Returns the number of bytes that
/// were sent.
fn flood(server: &ServerProcess, first: &[u8], frames: &[u8], reading: AnswerReading) -> usize {
    let mut stream = TcpStream::connect(&server.grpc).unwrap();
    stream.write_all(&[&preface(&[])[..], first].concat()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let (start, mut sent_bytes) = (Instant::now(), 0);
    while start.elapsed() < TIME {
        match stream.write(&frames[sent_bytes % frames.len()..]) {
            Ok(bytes) => sent_bytes += bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(_) => break,
        }
        if let AnswerReading::Always = reading {
            let _ = stream.read(&mut [0; 64 << 10]);
        }
    }
    sent_bytes
}

#[test]
fn frames_that_carry_no_call_take_no_memory() {
    let target = FloodTarget::start(&[]);
    let server = &target.server;
    let call = frame(HEADERS, END_HEADERS, 1, &block(PATH));
    let open_block = frame(HEADERS, 0, 1, &[0x83]);
    let cases: [(&str, &[u8], Vec<u8>, AnswerReading); 10] = [
        ("PING, unread", &[], frame(PING, 0, 0, b"12345678"), AnswerReading::Never),
        ("PING", &[], frame(PING, 0, 0, b"12345678"), AnswerReading::Always),
        ("SETTINGS, unread", &[], frame(SETTINGS, 0, 0, b""), AnswerReading::Never),
        ("SETTINGS", &[], frame(SETTINGS, 0, 0, b""), AnswerReading::Always),
        ("WINDOW_UPDATE", &[], frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]), AnswerReading::Never),
        ("PRIORITY", &[], frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 0]), AnswerReading::Never),
        ("an unknown frame", &[], frame(UNKNOWN, 0, 1, &[0; 100]), AnswerReading::Never),
        ("empty DATA", &call, frame(DATA, 0, 1, b""), AnswerReading::Always),
        ("DATA of one byte", &call, frame(DATA, 0, 1, b"x"), AnswerReading::Always),
        ("CONTINUATION", &open_block, frame(CONTINUATION, 0, 1, b""), AnswerReading::Always),
    ];
    let before_kib = resident_kib(server);
    for (name, first, one, reading) in cases {
        let sent_bytes = flood(server, first, &one.repeat(1_000), reading);
        let after_kib = resident_kib(server);
        println!("{name}: {sent_bytes} bytes, {before_kib} KiB, then {after_kib} KiB");
        assert!(after_kib < before_kib + MAX_GROWTH_KIB, "{name}: {after_kib} KiB");
    }
    assert_eq!(server.check(r#"{"limit":"partner","key":"honest"}"#)["allowed"], true);
}
