//! The memory of the server stays bounded when many clients use it.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::server::{ServerProcess, body_of};

const PATIENCE: Duration = Duration::from_secs(30);

/// The memory bound of the server, in KiB: for requests, pages, keys, the program itself, and memory that the allocator
/// retains.
const CEILING_KIB: u64 = 160 << 10;

/// Returns the server's peak memory, from `/proc/PID/status`.
pub(crate) fn peak_kib(server: &ServerProcess) -> u64 {
    let path = format!("/proc/{}/status", server.pid().as_raw_nonzero());
    let status = std::fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Sends a batch without its last `without` bytes.
fn send(server: &ServerProcess, body: &[u8], without: usize) -> TcpStream {
    let mut stream = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "POST /v1/check/batch HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    // OK to ignore an error: the server can close the connection before all bytes are sent.
    let _ = stream.write_all(&body[..body.len() - without]);
    stream
}

/// Returns the text that the server has sent so far; empty if the server still waits.
fn answered(stream: &mut TcpStream) -> String {
    stream.set_nonblocking(true).unwrap();
    let mut bytes = [0; 4096];
    let count = match stream.read(&mut bytes) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        read => read.unwrap(),
    };
    String::from_utf8_lossy(&bytes[..count]).into_owned()
}

fn assert_decides_at_once(server: &ServerProcess) {
    for _ in 0..10 {
        let start = Instant::now();
        let decision = server.check(r#"{"limit":"partner","key":"honest"}"#);
        assert_eq!(decision["allowed"], true);
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }
}

#[test]
fn unfinished_bodies_take_bounded_memory_and_delay_no_small_check() {
    let server = ServerProcess::start(&["--request-timeout", "1m"]);
    let body = vec![b' '; 1 << 20];
    let mut unfinished: Vec<_> = (0..300).map(|_| send(&server, &body, 1)).collect();
    assert_decides_at_once(&server);
    assert!(peak_kib(&server) < CEILING_KIB, "{} KiB", peak_kib(&server));

    // The server reads bodies in turn, so it takes some time to refuse the bodies for which it has no memory.
    let (start, mut answers) = (Instant::now(), Vec::new());
    let mut waiting: Vec<_> = unfinished.iter_mut().collect();
    while answers.len() < 200 {
        assert!(start.elapsed() < PATIENCE, "{} bodies were refused", answers.len());
        waiting.retain_mut(|stream| {
            let answer = answered(stream);
            let is_waiting = answer.is_empty();
            answers.extend((!is_waiting).then_some(answer));
            is_waiting
        });
    }
    assert_decides_at_once(&server);
    assert!(answers.len() <= 250, "{} bodies were refused", answers.len());
    for answer in answers {
        assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{answer}");
        assert!(answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
        assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
        assert!(answer.contains("\r\ncontent-type: application/problem+json\r\n"), "{answer}");
        assert!(answer.contains("out of memory for requests and answers"), "{answer}");
    }
    // The memory of the unfinished bodies becomes free for other requests.
    drop(unfinished);
    let start = Instant::now();
    while send_and_read(&server, &body).starts_with("HTTP/1.1 503") {
        assert!(start.elapsed() < PATIENCE, "the memory was not freed");
    }
}

/// Sends a whole body and returns the start of the answer.
fn send_and_read(server: &ServerProcess, body: &[u8]) -> String {
    let mut stream = send(server, body, 0);
    let mut bytes = [0; 64];
    let count = stream.read(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes[..count]).into_owned()
}

/// Writes a file with `count` rules for one domain. All of them apply to every request.
fn many_rules(count: usize) -> tempfile::TempDir {
    let mut config =
        "limits:\n  partner: token-bucket capacity=1000000 refill=1/s\nrules:\n".to_owned();
    for number in 0..count {
        config += &format!("  - {{ name: rule-{number}, domain: d, key: [ip], limit: partner }}\n");
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("limits.yaml"), config).unwrap();
    directory
}

fn start_with_rules(count: usize) -> (ServerProcess, tempfile::TempDir) {
    let directory = many_rules(count);
    let path = directory.path().join("limits.yaml");
    let flags = ["--config", path.to_str().unwrap(), "--idle-timeout", "1m"];
    (ServerProcess::start(&flags), directory)
}

fn thousand() -> String {
    json!(vec![json!({"domain": "d", "attributes": {"ip": "192.0.2.1"}}); 1_000]).to_string()
}

#[test]
fn unread_answers_take_bounded_memory_and_delay_no_small_check() {
    let (server, _rules) = start_with_rules(20);
    let batch = thousand();
    let mut unread: Vec<_> = (0..40).map(|_| send(&server, batch.as_bytes(), 0)).collect();
    // A batch has been decided when its answer begins.
    for stream in &mut unread {
        stream.read_exact(&mut [0; 12]).unwrap();
    }
    assert_decides_at_once(&server);
    assert!(peak_kib(&server) < CEILING_KIB, "{} KiB", peak_kib(&server));

    // A batch that exceeds the memory is refused as a whole, or its undecided checks are refused.
    let response = server.post("/v1/check/batch", batch.clone()).send().unwrap();
    let is_refused = response.status() == 503;
    let answers = body_of(response);
    assert!(is_refused || answers[999]["status"] == 503, "{}", answers[999]);
    drop(unread);
    let start = Instant::now();
    loop {
        let response = server.post("/v1/check/batch", batch.clone()).send().unwrap();
        if response.status() == 200 && body_of(response)[999]["allowed"] == true {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "the memory was not freed");
    }
}

#[test]
fn checks_beyond_the_longest_answer_are_not_decided() {
    let (server, _rules) = start_with_rules(60);
    let response = server.post("/v1/check/batch", thousand()).send().unwrap();
    assert_eq!(response.status(), 200);
    assert!(response.content_length().unwrap() < 10 << 20);
    let answers = body_of(response);
    let answers = answers.as_array().unwrap();
    assert_eq!(answers.len(), 1_000);
    let decided = answers.iter().take_while(|answer| answer["allowed"] == true).count();
    assert!((100..1_000).contains(&decided), "{decided}");
    assert!(
        answers[decided..].iter().all(|answer| answer["status"] == 413),
        "{}",
        answers[decided]
    );
    // Each rule has its own count, which gets one unit back a second.
    let one = server.check(r#"{"domain":"d","attributes":{"ip":"192.0.2.1"}}"#);
    let spent = 1_000_000 - one["rules"][0]["remaining"].as_u64().unwrap();
    assert!(spent <= decided as u64 + 1, "{spent} spent by {decided}");
}

#[test]
fn keys_that_no_longer_fit_are_logged_once_and_counted() {
    let rules = "limits: { calls: fixed-window limit=5 window=366d, log: sliding-window-log limit=100 window=366d }\n";
    let mut file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    file.write_all(rules.as_bytes()).unwrap();
    let flags = ["--config", file.path().to_str().unwrap(), "--max-memory", "1MiB"];
    let server = ServerProcess::start(&flags);
    let invent_keys = |limit: &str, batches: std::ops::Range<u32>| {
        for batch in batches {
            let checks =
                (0..1_000).map(|key| json!({"limit": limit, "key": format!("{batch} {key}")}));
            let body = serde_json::Value::from_iter(checks).to_string();
            assert_eq!(server.post("/v1/check/batch", body).send().unwrap().status(), 200);
        }
    };
    // A key with a log, which grows after the memory has become full.
    for _ in 0..3 {
        server.check(r#"{"limit":"log","key":"grows"}"#);
    }
    invent_keys("calls", 0..40);
    for _ in 0..90 {
        server.check(r#"{"limit":"log","key":"grows"}"#);
    }
    let full = "keys take all the memory that --max-memory allows";
    server.wait_for_log(|log| log.contains(full));
    invent_keys("calls", 40..60);
    let page = crate::metrics::scrape(&server);
    assert!(page.value("tollgate_overflowed_total", &[]) > 0.0);
    assert!(page.value("tollgate_logs_coarsened_total", &[]) > 0.0);
    server.signal(rustix::process::Signal::KILL);
    let (_, log) = server.wait();
    assert_eq!(log.matches(full).count(), 1, "{log}");
    assert!(log.contains("WARN") && log.contains("max_bytes=1048576"), "{log}");
}
