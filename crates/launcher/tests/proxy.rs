//! A proxy drops, cuts and delays the replies that the test chose, and no others.

#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use redis::cmd;
use tollgate_launcher::{Flavour, Launch, Proxy, Server};

/// A script that counts how often it runs, and replies `$4\r\ndone\r\n`.
const SCRIPT: &str = "EVAL \"redis.call('INCR','runs') return 'done'\" 0\r\n";
const REPLY: &[u8] = b"$4\r\ndone\r\n";

fn start() -> (Server, Proxy) {
    let server = Launch::new(Flavour::Redis).start().unwrap();
    let proxy = Proxy::start(server.addr()).unwrap();
    (server, proxy)
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.addr()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn send(stream: &mut TcpStream, requests: &str) {
    stream.write_all(requests.as_bytes()).unwrap();
}

fn assert_reads(stream: &mut TcpStream, wanted: &[u8]) {
    let mut reply = vec![0; wanted.len()];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply.escape_ascii().to_string(), wanted.escape_ascii().to_string());
}

fn assert_ends_after(mut stream: TcpStream, wanted: &[u8]) {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.escape_ascii().to_string(), wanted.escape_ascii().to_string());
}

fn runs(server: &Server) -> u64 {
    server.ask::<Option<u64>>(cmd("GET").arg("runs")).unwrap().unwrap_or(0)
}

fn wait_until(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
}

#[test]
fn proxy_passes_everything_by_default() {
    let (server, proxy) = start();
    let client = redis::Client::open(proxy.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let value = vec![b'x'; 1_000_000];
    cmd("SET").arg("key").arg(&value).exec(&mut connection).unwrap();
    assert_eq!(cmd("GET").arg("key").query::<Vec<u8>>(&mut connection).unwrap(), value);
    let mut pipe = redis::pipe();
    for number in 0..100 {
        pipe.cmd("EVAL").arg("return {ARGV[1], {}}").arg(0).arg(number);
    }
    let replies: Vec<(u32, Vec<u32>)> = pipe.query(&mut connection).unwrap();
    assert!(replies.iter().map(|(number, _)| *number).eq(0..100));
    assert_eq!((proxy.scripts_passed(), proxy.connections()), (100, 1));
    assert_eq!((proxy.replies_swallowed(), proxy.connections_cut(), runs(&server)), (0, 0, 0));
}

#[test]
fn dropped_reply_belongs_to_a_script_that_ran() {
    let (server, proxy) = start();
    let mut stream = connect(&proxy);
    proxy.drop_replies(1);
    send(&mut stream, &format!("EVALSHA {} 0\r\nPING\r\n", "0".repeat(40)));
    assert_reads(&mut stream, b"-NOSCRIPT No matching script. Please use EVAL.\r\n+PONG\r\n");
    assert_eq!((proxy.scripts_passed(), proxy.replies_swallowed()), (1, 0));

    send(&mut stream, SCRIPT);
    wait_until(|| proxy.replies_swallowed() == 1);
    assert_eq!(runs(&server), 1);
}

#[test]
fn connection_with_a_dropped_reply_delivers_no_later_reply() {
    let (server, proxy) = start();
    let (mut first, mut second) = (connect(&proxy), connect(&proxy));
    proxy.drop_replies(1);
    send(&mut first, SCRIPT);
    wait_until(|| proxy.replies_swallowed() == 1);
    proxy.pass();
    send(&mut second, SCRIPT);
    assert_reads(&mut second, REPLY);
    send(&mut first, SCRIPT);
    wait_until(|| proxy.replies_swallowed() == 2);
    assert_eq!((proxy.scripts_passed(), runs(&server)), (3, 3));
    first.set_nonblocking(true).unwrap();
    assert_eq!(first.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn proxy_cuts_a_connection_after_the_request() {
    let (server, proxy) = start();
    proxy.cut_after_request(1);
    let mut stream = connect(&proxy);
    send(&mut stream, &format!("PING\r\n{SCRIPT}"));
    assert_ends_after(stream, b"+PONG\r\n");
    assert_eq!((runs(&server), proxy.connections_cut()), (1, 1));

    let mut stream = connect(&proxy);
    send(&mut stream, SCRIPT);
    assert_reads(&mut stream, REPLY);
    assert_eq!((runs(&server), proxy.connections()), (2, 2));
}

#[test]
fn proxy_cuts_a_connection_within_the_reply() {
    let (server, proxy) = start();
    proxy.cut_mid_reply(2);
    for run in 1..=2 {
        let mut stream = connect(&proxy);
        send(&mut stream, SCRIPT);
        assert_ends_after(stream, &REPLY[..5]);
        assert_eq!((runs(&server), proxy.connections_cut()), (run, run));
    }
    let mut stream = connect(&proxy);
    send(&mut stream, SCRIPT);
    assert_reads(&mut stream, REPLY);
}

#[test]
fn delayed_replies_keep_their_order_and_delays_do_not_add_up() {
    let (_server, proxy) = start();
    let mut delays_ms = [300, 0, 300, 0, 300].into_iter();
    proxy.delay(move || Duration::from_millis(delays_ms.next().unwrap_or(0)));
    let mut stream = connect(&proxy);
    let begin = Instant::now();
    send(&mut stream, "ECHO 1\r\nECHO 2\r\nECHO 3\r\nECHO 4\r\nECHO 5\r\nECHO 6\r\n");
    for number in 1..=6 {
        assert_reads(&mut stream, format!("$1\r\n{number}\r\n").as_bytes());
    }
    let took = begin.elapsed();
    assert!((300..900).contains(&took.as_millis()), "{took:?}");
}

#[test]
fn proxy_refuses_connections_and_accepts_them_again() {
    let (_server, proxy) = start();
    let mut open = connect(&proxy);
    send(&mut open, "PING\r\n");
    assert_reads(&mut open, b"+PONG\r\n");
    for _ in 0..3 {
        proxy.refuse_connections();
        proxy.refuse_connections();
        let error = TcpStream::connect(proxy.addr()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        send(&mut open, "PING\r\n");
        assert_reads(&mut open, b"+PONG\r\n");
        proxy.accept_connections();
        let mut stream = connect(&proxy);
        send(&mut stream, "PING\r\n");
        assert_reads(&mut stream, b"+PONG\r\n");
    }
    assert_eq!(proxy.connections(), 4);
    proxy.cut_connections();
    assert_ends_after(open, b"");
}

#[test]
fn connections_end_with_the_proxy_and_with_the_server() {
    let (mut server, proxy) = start();
    let mut stream = connect(&proxy);
    send(&mut stream, "PING\r\n");
    assert_reads(&mut stream, b"+PONG\r\n");
    server.kill();
    assert_ends_after(stream, b"");
    assert_ends_after(connect(&proxy), b"");

    server.restart().unwrap();
    let mut stream = connect(&proxy);
    let (delayed, is_delayed) = std::sync::mpsc::channel();
    proxy.delay(move || {
        delayed.send(()).unwrap();
        Duration::from_secs(1_000)
    });
    send(&mut stream, "PING\r\n");
    is_delayed.recv().unwrap();
    let addr = proxy.addr();
    drop(proxy);
    assert_ends_after(stream, b"");
    assert_eq!(TcpStream::connect(addr).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}
