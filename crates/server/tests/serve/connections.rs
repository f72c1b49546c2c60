//! Slow, silent and broken connections, and more connections than allowed.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, prlimit, setrlimit};

use crate::server::ServerProcess;

/// The longest time of a read, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

const CHECK: &str = r#"{"limit":"free","key":"user:42"}"#;

fn connect(server: &ServerProcess) -> TcpStream {
    let stream = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Sends a check on a kept-alive connection and waits for the answer, which must be 200.
fn check(stream: &mut TcpStream) {
    let length = CHECK.len();
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{CHECK}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    while !answer.ends_with('}') {
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0, "the connection was closed after {answer:?}");
        answer.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
    }
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

/// Reads until the server closes the connection, and returns the text; empty if the server did not answer.
fn rest(stream: &mut TcpStream) -> String {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => {
            panic!("the server did not close the connection: {error}")
        }
        _ => String::from_utf8(rest).unwrap(),
    }
}

fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 1]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// Stops the server, and returns its whole log.
fn whole_log(server: ServerProcess) -> String {
    server.signal(Signal::KILL);
    server.wait().1
}

/// Returns a number of `/proc/PID/status`, such as `VmRSS` (current memory) or `VmHWM` (peak memory).
fn memory_kib(server: &ServerProcess, name: &str) -> u64 {
    let pid = server.pid().as_raw_nonzero();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn flags_set_the_timeouts() {
    let cases: [(&[&str], &str, Duration); 3] = [
        (&["--first-byte-timeout", "150ms"], "", Duration::from_millis(150)),
        (&["--request-timeout", "160ms"], "GET / HTTP/1.1\r\n", Duration::from_millis(160)),
        (
            &["--idle-timeout", "170ms"],
            "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            Duration::from_millis(170),
        ),
    ];
    for (flags, sent, bound) in cases {
        let server = ServerProcess::start(flags);
        // Measured from before the connection, because the server's time can start before `connect` returns.
        let start = Instant::now();
        let mut stream = connect(&server);
        stream.write_all(sent.as_bytes()).unwrap();
        let answer = rest(&mut stream);
        assert_eq!(answer.is_empty(), !sent.ends_with("\r\n\r\n"), "{flags:?}: {answer}");
        let took = start.elapsed();
        assert!(took >= bound && took < bound + Duration::from_secs(3), "{flags:?}: {took:?}");
    }
}

#[test]
fn flag_sets_the_maximum_of_connections() {
    let server = ServerProcess::start(&["--max-connections", "1"]);
    let mut first = connect(&server);
    check(&mut first);
    check(&mut connect(&server));
    assert!(is_closed(&mut first));
    check(&mut connect(&server));
    let log = whole_log(server);
    assert_eq!(log.matches("which is the maximum").count(), 1, "{log}");
}

#[test]
fn server_warns_once_of_a_maximum_above_the_system_limit() {
    let server = ServerProcess::start(&["--max-connections", "4000000000"]);
    server.check(CHECK);
    let log = whole_log(server);
    assert_eq!(log.matches("--max-connections 4000000000: ").count(), 1, "{log}");
}

#[test]
fn heads_that_are_too_large_are_answered_with_431() {
    let server = ServerProcess::start(&[]);
    let one_large = format!("x: {}\r\n", "x".repeat(1 << 20));
    let just_too_large = format!("x: {}\r\n", "x".repeat(32 * 1024));
    let too_many = "x: y\r\n".repeat(101);
    for headers in [one_large, just_too_large, too_many] {
        let mut stream = connect(&server);
        stream.write_all(format!("GET / HTTP/1.1\r\n{headers}\r\n").as_bytes()).unwrap();
        let answer = rest(&mut stream);
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer:?}");
        assert!(answer.ends_with("\r\n\r\n"), "the answer has a body: {answer:?}");
    }
    let mut stream = connect(&server);
    let enough = format!("{}x: {}\r\n", "x: y\r\n".repeat(97), "x".repeat(31 * 1024));
    let request = format!("GET /missing HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{enough}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let answer = rest(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer:?}");
}

#[test]
fn requests_without_exactly_one_valid_host_are_answered_with_400() {
    let server = ServerProcess::start(&[]);
    let problems = [
        ("", "no Host header"),
        ("host: a\r\nhost: a\r\n", "more than one Host header"),
        ("host: a\r\nhost: b\r\nhost: c\r\n", "more than one Host header"),
        ("host: a b\r\n", "not a host"),
        ("host: user@a\r\n", "not a host"),
        ("host: a:b\r\n", "not a host"),
    ];
    for (headers, want) in problems {
        for path in ["/healthz", "/v1/limits", "/missing"] {
            let mut stream = connect(&server);
            let request = format!("GET {path} HTTP/1.1\r\n{headers}\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            // Reads to the end, because the server also closes the connection.
            let answer = rest(&mut stream);
            assert!(answer.starts_with("HTTP/1.1 400 "), "{headers:?} {path}: {answer:?}");
            assert!(
                answer.contains("\r\ncontent-type: application/problem+json\r\n"),
                "{answer:?}"
            );
            assert!(answer.contains(want), "{headers:?} {path}: {answer:?}");
        }
    }
    let mut stream = connect(&server);
    let request = post_to("/v1/check", "content-length: 33", CHECK).replace("host: a\r\n", "");
    stream.write_all(request.as_bytes()).unwrap();
    assert!(rest(&mut stream).starts_with("HTTP/1.1 400 "));

    let mut stream = connect(&server);
    stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    assert!(rest(&mut stream).starts_with("HTTP/1.0 200 "), "HTTP/1.0 needs no Host");
}

/// Returns a POST with other headers about its body.
fn post_to(path: &str, headers: &str, body: &str) -> String {
    let fixed = format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json");
    format!("{fixed}\r\n{headers}\r\n\r\n{body}")
}

/// Returns a check with other headers about its body.
fn post(headers: &str, body: &str) -> Vec<u8> {
    post_to("/v1/check", headers, body).into_bytes()
}

/// Returns a check that is one chunk with the size line `size`.
fn chunked(size: &str) -> String {
    format!("{size}\r\n{CHECK}\r\n0\r\n\r\n")
}

#[test]
fn check_can_be_sent_in_chunks() {
    let server = ServerProcess::start(&[]);
    let mut stream = connect(&server);
    stream
        .write_all(&post("connection: close\r\ntransfer-encoding: chunked", &chunked("20")))
        .unwrap();
    let answer = rest(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

/// RFC 9112 (6.1) requires this. A proxy that uses the other length, and treats the rest as a second request, then gets no
/// answer to that second request.
#[test]
fn request_with_chunks_and_a_length_is_the_last_of_its_connection() {
    let server = ServerProcess::start(&[]);
    for headers in [
        "transfer-encoding: chunked\r\ncontent-length: 32",
        "content-length: 32\r\ntransfer-encoding: chunked",
    ] {
        let mut stream = connect(&server);
        let smuggled = post("content-length: 32", CHECK);
        stream.write_all(&[post(headers, &chunked("20")), smuggled].concat()).unwrap();
        let answer = rest(&mut stream);
        assert!(answer.contains("connection: close\r\n"), "{answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    }
}

#[test]
fn malformed_http_is_answered_with_400_or_closed() {
    let server = ServerProcess::start(&[]);
    let trailer = format!("\r\n0\r\nx: {}\r\n", "x".repeat(100_000));
    let hostile: &[Vec<u8>] = &[
        b"GET\r\n\r\n".to_vec(),
        b"GET /\r\n\r\n".to_vec(),
        b"GET / HTTP/9.9\r\nhost: a\r\n\r\n".to_vec(),
        b"GET / HTTP/2.0\r\nhost: a\r\n\r\n".to_vec(),
        b"G\0T / HTTP/1.1\r\nhost: a\r\n\r\n".to_vec(),
        b"GET /\0 HTTP/1.1\r\nhost: a\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nx\0: a\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nx: a\0b\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nx : y\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nx: y\r\n folded\r\n\r\n".to_vec(),
        b"GET http://[ HTTP/1.1\r\nhost: a\r\n\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        vec![0; 4096],
        vec![0xff; 4096],
        post("content-length: -1", CHECK),
        post("content-length: +32", CHECK),
        post("content-length: 0x20", CHECK),
        post("content-length: 18446744073709551616", CHECK),
        post("content-length: 32\r\ncontent-length: 33", CHECK),
        post("content-length: 32, 33", CHECK),
        post("transfer-encoding: gzip", CHECK),
        post("transfer-encoding: chunked, gzip", &chunked("20")),
        post("transfer-encoding: chunked", &chunked("zz")),
        post("transfer-encoding: chunked", &chunked("-1")),
        post("transfer-encoding: chunked", &chunked("fffffffffffffffff")),
        post("transfer-encoding: chunked", &chunked("1f")),
        post("transfer-encoding: chunked", &chunked(&format!("20;{}", "x".repeat(100_000)))),
        post("transfer-encoding: chunked", &chunked("20").replace("\r\n0\r\n", &trailer)),
    ];
    for bytes in hostile {
        let mut stream = connect(&server);
        let start = Instant::now();
        // OK to ignore an error: the server can close the connection before all bytes are sent.
        let _ = stream.write_all(bytes);
        let answer = rest(&mut stream);
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(120)]);
        let is_refused = answer.is_empty() || answer.starts_with("HTTP/1.1 400 ");
        assert!(is_refused, "{shown:?}: {answer:?}");
        assert!(start.elapsed() < Duration::from_secs(5), "{shown:?} took {:?}", start.elapsed());
    }
    check(&mut connect(&server));
    let log = whole_log(server);
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn clients_are_served_in_turn_when_files_run_out_and_the_server_does_not_spin() {
    // Silent connections end only when they are evicted.
    let server = ServerProcess::start(&["--first-byte-timeout", "1h"]);
    let pid = server.pid();
    let limit_files = |current| {
        let limit = Rlimit { current: Some(current), ..getrlimit(Resource::Nofile) };
        prlimit(Some(pid), Resource::Nofile, limit).unwrap()
    };
    check(&mut connect(&server));
    let open = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap().count();
    let before = limit_files(open as u64 + 5);
    let mut clients: Vec<TcpStream> = (0..10).map(|_| connect(&server)).collect();
    check(&mut clients[9]);

    // The limit is below the number of open files, so eviction does not help, and the server waits between its attempts.
    limit_files(3);
    let mut last = connect(&server);
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum::<u64>()
    };
    let (start, busy) = (Instant::now(), ticks());
    last.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    assert_eq!(last.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let elapsed_ticks = start.elapsed().as_millis() as u64 / 10;
    assert!(ticks() - busy < elapsed_ticks / 3, "{} of {elapsed_ticks}", ticks() - busy);

    prlimit(Some(pid), Resource::Nofile, before).unwrap();
    last.set_read_timeout(Some(PATIENCE)).unwrap();
    check(&mut last);
    let log = whole_log(server);
    assert_eq!(log.matches("connections cannot be accepted").count(), 1, "{log}");
}

#[test]
fn stalled_clients_do_not_block_known_or_new_clients() {
    let server = ServerProcess::start(&["--max-connections", "50"]);
    let mut kept: Vec<_> = (0..5).map(|_| connect(&server)).collect();
    kept.iter_mut().for_each(check);
    let begin = |_| {
        let mut stream = connect(&server);
        stream.write_all(b"G").unwrap();
        stream
    };
    let mut stalled: Vec<_> = (0..150).map(begin).collect();
    let took = time(|| check(&mut connect(&server)));
    assert!(took < Duration::from_secs(3), "a new client waited for {took:?}");
    kept.iter_mut().for_each(check);
    // The oldest stalled connections were evicted.
    assert_eq!(rest(&mut stalled[0]), "");
    // The server can still evict a stalled connection for a new connection at once.
    stalled.extend((0..40).map(begin));
    let took = time(|| check(&mut connect(&server)));
    assert!(took < Duration::from_secs(3), "a new client waited for {took:?}");
    kept.iter_mut().for_each(check);
}

const CROWD: usize = 1000;

#[test]
fn two_thousand_silent_or_slow_clients_do_not_delay_others() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let bound = Duration::from_secs(3);
    let server = ServerProcess::start(&["--first-byte-timeout", "3s", "--request-timeout", "3s"]);
    let mut kept = connect(&server);
    check(&mut kept);
    let before_kib = memory_kib(&server, "VmRSS");

    let silent: Vec<_> = (0..CROWD).map(|_| (Instant::now(), connect(&server))).collect();
    let dribbling: Vec<_> = (0..CROWD).map(|_| (Instant::now(), connect(&server))).collect();
    std::thread::scope(|scope| {
        let dribbling = scope.spawn(|| dribble(dribbling));
        let mut took = Vec::new();
        for _ in 0..200 {
            took.push(time(|| check(&mut kept)));
        }
        for _ in 0..50 {
            took.push(time(|| check(&mut connect(&server))));
        }
        took.sort_unstable();
        assert!(took[249] < Duration::from_secs(1), "the slowest took {:?}", took[249]);
        assert!(took[125] < Duration::from_millis(50), "the median took {:?}", took[125]);

        let silent = silent.into_iter().map(|(start, mut stream)| {
            assert_eq!(rest(&mut stream), "");
            start.elapsed()
        });
        let silent: Vec<Duration> = silent.collect();
        for lived in silent.into_iter().chain(dribbling.join().unwrap()) {
            assert!(lived >= bound, "the connection was closed after {lived:?}");
            assert!(
                lived < bound + Duration::from_secs(5),
                "the connection was closed after {lived:?}"
            );
        }
    });
    let grown_kib = memory_kib(&server, "VmHWM") - before_kib;
    assert!(grown_kib < 64 * 1024, "the memory grew by {grown_kib} KiB");
    check(&mut kept);
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// Sends a byte on each connection in turn until the server has closed all connections. Returns how long each connection
/// was open.
fn dribble(mut crowd: Vec<(Instant, TcpStream)>) -> Vec<Duration> {
    let mut lived = Vec::new();
    for (_, stream) in &crowd {
        stream.set_nonblocking(true).unwrap();
    }
    for byte in b"GET / HTTP/1.1\r\nx: ".iter().chain(std::iter::repeat(&b'x')) {
        crowd.retain_mut(|(start, stream)| {
            let is_closed = stream.write_all(&[*byte]).is_err() || is_closed(stream);
            if is_closed {
                lived.push(start.elapsed());
            }
            !is_closed
        });
        if crowd.is_empty() {
            break;
        }
        // Without the pause this thread would use a whole core.
        std::thread::sleep(Duration::from_millis(20));
    }
    lived
}
