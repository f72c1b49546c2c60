//! Floods of gRPC calls: the server's memory stays within its documented bound, and other clients are answered.
//!
//! A few seconds each; SOAK_SECONDS makes them longer, with as many connections as an attacker would have.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use prost::Message;

use crate::grpc::run;
use crate::metrics::scrape;
use crate::rls::raw::{PATH, Raw, framed};
use crate::rls::{Limits, descriptor, request};
use crate::server::Server;

const RULES: &str = "
limits:
  many: fixed-window limit=1000000000 window=365d
  partner: token-bucket capacity=1000000000 refill=1/s
rules: [{ name: per-user, domain: api, key: [user], limit: many }]
";

/// The most memory that the server may have with this many connections: the sum of docs/operations.md without keys and
/// without the playground, neither of which is used here. 64 MiB for the program and its allocator, 80 for requests, 16 for
/// pages, and 48 KiB a connection.
fn ceiling_kib(connections: usize) -> u64 {
    ((64 + 80 + 16) << 10) + 48 * connections as u64
}

/// How long a flood lasts, and how many connections it has of every kind.
struct Scale {
    time: Duration,
    connections: usize,
}

fn scale() -> Scale {
    let soak = std::env::var("SOAK_SECONDS").ok().map(|seconds| seconds.parse().unwrap());
    match soak {
        Some(seconds) => Scale { time: Duration::from_secs(seconds), connections: 200 },
        None => Scale { time: Duration::from_secs(4), connections: 50 },
    }
}

/// The memory that a server has now.
fn resident_kib(server: &Server) -> u64 {
    let path = format!("/proc/{}/status", server.pid().as_raw_nonzero());
    let status = std::fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header block: a call of a path. Path and type enter the table of the connection.
fn block(path: &str) -> Vec<u8> {
    let literal = |name: u8, value: &[u8]| {
        let length = u8::try_from(value.len()).unwrap();
        [&[0x40 | name, length], value].concat()
    };
    let path = literal(4, path.as_bytes());
    let content_type = literal(31, b"application/grpc");
    [&[0x83, 0x86][..], &path, &content_type].concat()
}

/// The same block by its places in that table.
const NEXT_BLOCK: &[u8] = &[0x83, 0x86, 0xbf, 0xbe];

const HEADERS: u8 = 1;
const DATA: u8 = 0;
const RST_STREAM: u8 = 3;
const END_HEADERS: u8 = 4;

/// A connection that an attacker writes to.
struct Attack {
    stream: TcpStream,
    next_id: u32,
}

impl Attack {
    fn start(server: &Server) -> Option<Attack> {
        let mut stream = TcpStream::connect(&server.grpc).ok()?;
        stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").ok()?;
        Some(Attack { stream, next_id: 1 })
    }

    /// Begins a call; its id.
    fn headers(&mut self, bytes: &mut Vec<u8>) -> u32 {
        let id = self.next_id;
        self.next_id += 2;
        let block = if id == 1 { block(PATH) } else { NEXT_BLOCK.to_vec() };
        bytes.extend(frame(HEADERS, END_HEADERS, id, &block));
        id
    }

    /// Calls that are reset at once.
    fn resets(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..count {
            let id = self.headers(&mut bytes);
            bytes.extend(frame(RST_STREAM, 0, id, &[0, 0, 0, 8]));
        }
        bytes
    }

    /// Calls with 4,000 bytes of a message that does not end.
    fn unfinished(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..count {
            let id = self.headers(&mut bytes);
            bytes.extend(frame(DATA, 0, id, &[0; 4_000]));
        }
        bytes
    }

    /// Whether the server has closed the connection. Reads what came, so that the server can write.
    fn is_closed(&mut self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let mut bytes = [0; 4096];
        let is_closed = loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => break true,
                Ok(_) => {}
                Err(error) => break error.kind() != ErrorKind::WouldBlock,
            }
        };
        self.stream.set_nonblocking(false).unwrap();
        is_closed
    }
}

/// Makes calls and resets them, on one connection after another; how many.
fn reset_for_ever(server: &Server, is_over: &AtomicBool) -> u64 {
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        let Some(mut attack) = Attack::start(server) else { continue };
        while !is_over.load(Ordering::Relaxed) && !attack.is_closed() {
            let bytes = attack.resets(1_000);
            if attack.stream.write_all(&bytes).is_err() {
                break;
            }
            count += 1_000;
        }
    }
    count
}

/// Keeps connections full of unfinished calls, and opens another for each that is closed; how many there were.
fn stall_for_ever(server: &Server, connections: usize, is_over: &AtomicBool) -> u64 {
    let mut count = 0;
    let mut open: Vec<Option<Attack>> = Vec::new();
    open.resize_with(connections, || None);
    while !is_over.load(Ordering::Relaxed) {
        for place in &mut open {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            if place.as_mut().is_some_and(|attack| !attack.is_closed()) {
                continue;
            }
            *place = Attack::start(server).and_then(|mut attack| {
                let bytes = attack.unfinished(1_024);
                attack.stream.write_all(&bytes).ok().map(|()| attack)
            });
            count += 1;
        }
    }
    count
}

/// How long each answer took that honest clients had, and the most memory that the server had meanwhile.
#[derive(Default)]
struct Honest {
    took: Vec<Duration>,
    most_kib: u64,
}

/// How many answers honest clients have at least.
const MIN_ANSWERS: usize = 40;

/// Checks over HTTP until a flood is over. Every answer must be right.
fn check_meanwhile(server: &Server, time: Duration) -> Honest {
    let mut honest = Honest::default();
    let start = Instant::now();
    while start.elapsed() < time || honest.took.len() < MIN_ANSWERS {
        let asked = Instant::now();
        let decision = server.check(r#"{"limit":"partner","key":"honest"}"#);
        assert_eq!(decision["allowed"], true);
        honest.took.push(asked.elapsed());
        honest.most_kib = honest.most_kib.max(resident_kib(server));
    }
    honest
}

/// The same over gRPC.
fn call_meanwhile(server: &Server, time: Duration) -> Vec<Duration> {
    let message = request(vec![descriptor(&[("user", "honest")])]).encode_to_vec();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut raw = Raw::connect(server).await;
        let (mut took, start) = (Vec::new(), Instant::now());
        while start.elapsed() < time || took.len() < MIN_ANSWERS {
            let asked = Instant::now();
            let told = raw.ask_message(&message).await;
            assert_eq!(told.grpc, Some(0), "{told:?}");
            took.push(asked.elapsed());
        }
        took
    })
}

fn assert_in_time(name: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let late = took.iter().filter(|took| **took > Duration::from_secs(1)).count();
    let (median, slowest) = (took[took.len() / 2], took[took.len() - 1]);
    println!("{name}: {} answers, median {median:?}, slowest {slowest:?}", took.len());
    assert!(late * 10 <= took.len(), "{name}: {late} of {} took over a second", took.len());
}

/// Ends a flood when it is dropped, also if a test fails.
struct EndFlood<'a>(&'a AtomicBool);

impl Drop for EndFlood<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs attackers while honest clients ask, and asserts the memory during it and after it.
fn flood(
    attackers: &[&(dyn Fn(&Server, &AtomicBool) -> u64 + Sync)],
    Scale { time, connections }: Scale,
) -> Limits {
    // Two more are for the honest clients.
    let ceiling_kib = ceiling_kib(connections + 2);
    let limits = Limits::start(RULES);
    let server = &limits.server;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = EndFlood(&is_over);
        let attacks: Vec<_> =
            attackers.iter().map(|attack| scope.spawn(|| attack(server, &is_over))).collect();
        let calls = scope.spawn(|| call_meanwhile(server, time));
        let checks = check_meanwhile(server, time);
        let calls = calls.join().unwrap();
        drop(end);
        let attacks: Vec<_> = attacks.into_iter().map(|attack| attack.join().unwrap()).collect();
        println!("attacks {attacks:?}, at most {} KiB", checks.most_kib);
        assert!(checks.most_kib < ceiling_kib, "{} KiB during the flood", checks.most_kib);
        assert_in_time("HTTP", checks.took);
        assert_in_time("gRPC", calls);
    });
    // The connections are gone once the server has noticed.
    let start = Instant::now();
    while scrape(server).value("tollgate_connections", &[("port", "grpc")]) > 0.0 {
        assert!(start.elapsed() < Duration::from_secs(30), "connections are left");
    }
    let after_kib = resident_kib(server);
    println!("{after_kib} KiB after the flood");
    assert!(after_kib < ceiling_kib, "{after_kib} KiB after the flood");
    limits
}

fn closed(server: &Server, reason: &str) -> f64 {
    let labels = [("port", "grpc"), ("reason", reason)];
    scrape(server).value("tollgate_connections_closed_total", &labels)
}

#[test]
fn a_reset_flood_is_cut_off_within_the_memory_bound() {
    let limits = flood(&[&reset_for_ever, &reset_for_ever], scale());
    assert!(closed(&limits.server, "resets") > 0.0);
    let page = scrape(&limits.server);
    assert!(page.value("tollgate_grpc_reset_calls_total", &[]) > 2_000.0);
    let is_wrong = |status: &str| status.starts_with('4');
    let wrong = page.of("tollgate_requests_total").find(|count| is_wrong(&count.labels["status"]));
    assert!(wrong.is_none(), "a reset call is not a request that was answered: {wrong:?}");
}

#[test]
fn a_flood_of_unfinished_calls_stays_within_the_memory_bound() {
    let connections = scale().connections;
    let stall =
        move |server: &Server, is_over: &AtomicBool| stall_for_ever(server, connections, is_over);
    let limits = flood(&[&stall], scale());
    assert!(closed(&limits.server, "memory") > 0.0);
}

#[test]
fn both_floods_at_once_stay_within_the_memory_bound() {
    let connections = scale().connections;
    let stall =
        move |server: &Server, is_over: &AtomicBool| stall_for_ever(server, connections, is_over);
    let limits = flood(&[&stall, &reset_for_ever], scale());
    // The server is as good as before.
    run(async {
        let message = request(vec![descriptor(&[("user", "after")])]).encode_to_vec();
        let told = Raw::connect(&limits.server).await.ask_message(&message).await;
        assert_eq!(told.grpc, Some(0), "{told:?}");
    });
}

/// A setting that lets the server send no byte of an answer's message.
const NO_WINDOW: &[u8] = &[0, 4, 0, 0, 0, 0];
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;

/// Sends what `write` makes on each of many connections, keeps them, and asserts the memory and an honest answer.
fn assert_bounded(
    server: &Server,
    address: &str,
    connections: usize,
    write: impl Fn() -> Vec<u8>,
    name: &str,
) {
    let mut kept = Vec::new();
    for _ in 0..connections {
        let Ok(mut stream) = TcpStream::connect(address) else { continue };
        stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
        // An error is that the server has closed the connection already.
        let _ = stream.write_all(&write());
        kept.push(stream);
    }
    let honest = check_meanwhile(server, Duration::from_millis(500));
    println!("{name}: at most {} KiB", honest.most_kib);
    assert!(honest.most_kib < ceiling_kib(connections + 2), "{name}: {} KiB", honest.most_kib);
    assert_in_time(name, honest.took);
    let message = request(vec![descriptor(&[("user", "honest")])]).encode_to_vec();
    run(async {
        let told = Raw::connect(server).await.ask_message(&message).await;
        assert_eq!(told.grpc, Some(0), "{name}: {told:?}");
    });
}

/// The bytes of a new gRPC connection with `count` calls: their first header block, and what follows each block.
fn calls(settings: &[u8], path: &str, count: u32, message: &[u8]) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, settings));
    for at in 0..count {
        let block = if at == 0 { block(path) } else { NEXT_BLOCK.to_vec() };
        bytes.extend(frame(HEADERS, END_HEADERS, 2 * at + 1, &block));
        bytes.extend(frame(DATA, END_STREAM, 2 * at + 1, message));
    }
    bytes
}

#[test]
fn header_blocks_that_do_not_end_stay_within_the_memory_bound() {
    let limits = Limits::start(RULES);
    // 2,000 headers `accept: ` of one byte each, in a block that does not end.
    let open = [&[0x83, 0x86][..], &[0x80 | 19; 2_000]].concat();
    let open = [calls(&[], PATH, 0, &[]), frame(HEADERS, 0, 1, &open)].concat();
    assert_bounded(&limits.server, &limits.server.grpc, 1_000, || open.clone(), "header blocks");
    assert!(closed(&limits.server, "memory") > 0.0);
}

#[test]
fn answers_that_are_not_read_stay_within_the_memory_bound() {
    let limits = Limits::start(RULES);
    let message = request(vec![descriptor(&[("user", "a")])]).encode_to_vec();
    let asked = calls(NO_WINDOW, PATH, 1_000, &framed(&message));
    assert_bounded(&limits.server, &limits.server.grpc, 100, || asked.clone(), "unread answers");
}

#[test]
fn watches_of_health_stay_within_the_memory_bound() {
    let limits = Limits::start(RULES);
    let watches = calls(&[], "/grpc.health.v1.Health/Watch", 1_000, &framed(b""));
    assert_bounded(&limits.server, &limits.server.grpc, 50, || watches.clone(), "watches");
}

#[test]
fn long_heads_that_do_not_end_stay_within_the_memory_bound() {
    let limits = Limits::start_with(RULES, &["--request-timeout", "1m"]);
    let head = format!("GET / HTTP/1.1\r\nx: {}", "x".repeat(32_000)).into_bytes();
    let address = limits.server.url.strip_prefix("http://").unwrap();
    assert_bounded(&limits.server, address, 2_500, || head.clone(), "long heads");
}
