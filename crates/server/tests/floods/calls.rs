//! Floods of gRPC calls.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::honest::{
    FloodTarget, assert_answers, assert_in_time, ceiling_kib, resident_kib, send_calls, send_checks,
};
use crate::http2::{DATA, END_HEADERS, HEADERS, RST_STREAM, block_of_call, frame, preface};
use crate::server::ServerProcess;

/// The duration of a flood, and its number of connections of each kind.
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

/// A connection that an attacker writes to.
struct Attack {
    stream: TcpStream,
    next_id: u32,
}

impl Attack {
    fn start(server: &ServerProcess) -> Option<Attack> {
        let mut stream = TcpStream::connect(&server.grpc).ok()?;
        stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(&preface(&[])).ok()?;
        Some(Attack { stream, next_id: 1 })
    }

    /// Begins a call, and returns its stream id.
    fn headers(&mut self, bytes: &mut Vec<u8>) -> u32 {
        let id = self.next_id;
        self.next_id += 2;
        bytes.extend(frame(HEADERS, END_HEADERS, id, &block_of_call(id)));
        id
    }

    /// Returns the bytes of calls that are reset at once.
    fn resets(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..count {
            let id = self.headers(&mut bytes);
            bytes.extend(frame(RST_STREAM, 0, id, &[0, 0, 0, 8]));
        }
        bytes
    }

    /// Returns the bytes of calls with 4,000 bytes of a message that does not end.
    fn unfinished(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..count {
            let id = self.headers(&mut bytes);
            bytes.extend(frame(DATA, 0, id, &[0; 4_000]));
        }
        bytes
    }

    /// Whether the server has closed the connection. Reads all received bytes, so that the server can write.
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

/// Makes calls and resets them until `is_over`, on one connection after another. Returns the number of calls.
fn reset_calls_until_over(server: &ServerProcess, is_over: &AtomicBool) -> u64 {
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

/// Keeps connections full of unfinished calls until `is_over`, and replaces each connection that is closed. Returns the
/// number of connections.
fn stall_calls_until_over(server: &ServerProcess, connections: usize, is_over: &AtomicBool) -> u64 {
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

/// Ends a flood when it is dropped, even if the test fails.
struct EndFlood<'a>(&'a AtomicBool);

impl Drop for EndFlood<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A function that attacks a server until the flag is set, and returns the number of attacks.
type Attacker<'a> = &'a (dyn Fn(&ServerProcess, &AtomicBool) -> u64 + Sync);

/// Runs attackers while honest clients send requests. Asserts the bound of the memory during the flood and after it.
fn flood(attackers: &[Attacker<'_>], Scale { time, connections }: Scale) -> FloodTarget {
    // The honest clients have two more connections.
    let ceiling_kib = ceiling_kib(connections + 2);
    let target = FloodTarget::start(&[]);
    let server = &target.server;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = EndFlood(&is_over);
        let attacks: Vec<_> =
            attackers.iter().map(|attack| scope.spawn(|| attack(server, &is_over))).collect();
        let calls = scope.spawn(|| send_calls(server, time));
        let checks = send_checks(server, time);
        let calls = calls.join().unwrap();
        drop(end);
        let attacks: Vec<_> = attacks.into_iter().map(|attack| attack.join().unwrap()).collect();
        println!("attacks {attacks:?}, at most {} KiB", checks.most_kib);
        assert!(checks.most_kib < ceiling_kib, "{} KiB during the flood", checks.most_kib);
        assert_in_time("HTTP", checks.took);
        assert_in_time("gRPC", calls);
    });
    // Waits until the server has closed the connections.
    let start = Instant::now();
    while target.scrape().value("tollgate_connections", &[("port", "grpc")]) > 0.0 {
        assert!(start.elapsed() < Duration::from_secs(30), "connections are still open");
    }
    let after_kib = resident_kib(server);
    println!("{after_kib} KiB after the flood");
    assert!(after_kib < ceiling_kib, "{after_kib} KiB after the flood");
    target
}

#[test]
fn reset_flood_is_cut_off_within_the_memory_bound() {
    let target = flood(&[&reset_calls_until_over, &reset_calls_until_over], scale());
    assert!(target.closed("resets") > 0.0);
    let page = target.scrape();
    assert!(page.value("tollgate_grpc_reset_calls_total", &[]) > 2_000.0);
    let is_wrong = |status: &str| status.starts_with('4');
    let wrong = page.of("tollgate_requests_total").find(|count| is_wrong(&count.labels["status"]));
    assert!(wrong.is_none(), "a reset call does not count as an answered request: {wrong:?}");
}

#[test]
fn flood_of_unfinished_calls_stays_within_the_memory_bound() {
    let connections = scale().connections;
    let stall = move |server: &ServerProcess, is_over: &AtomicBool| {
        stall_calls_until_over(server, connections, is_over)
    };
    let target = flood(&[&stall], scale());
    assert!(target.closed("memory") > 0.0);
}

#[test]
fn both_floods_at_once_stay_within_the_memory_bound() {
    let connections = scale().connections;
    let stall = move |server: &ServerProcess, is_over: &AtomicBool| {
        stall_calls_until_over(server, connections, is_over)
    };
    let target = flood(&[&stall, &reset_calls_until_over], scale());
    assert_answers(&target.server, "after both floods");
}
