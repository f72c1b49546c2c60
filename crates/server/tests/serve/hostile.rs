//! Malformed, oversized and truncated bodies.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use reqwest::blocking::Client;

use crate::check::problem;
use crate::server::{ServerProcess, body_of};

fn send(server: &ServerProcess, path: &str, body: &[u8]) -> (u16, String) {
    let request = Client::new().post(format!("{}{path}", server.url)).body(body.to_vec());
    problem(request.header("content-type", "application/json").send().unwrap())
}

/// Asserts that the server still decides.
fn assert_decides(server: &ServerProcess) {
    let decision = server.check(r#"{"limit":"free","key":"honest"}"#);
    assert_eq!(decision["allowed"], true);
    assert!(decision["remaining"].as_u64().unwrap() >= 50);
}

#[test]
fn malformed_checks_are_400_with_a_reason() {
    let server = ServerProcess::start(&[]);
    let deep = [b"[".repeat(10_000), b"]".repeat(10_000)].concat();
    let deep_object = [b"{\"a\":".repeat(10_000), b"1".to_vec(), b"}".repeat(10_000)].concat();
    let within = |value: &[u8]| [br#"{"limit":"free","key":"a","cost":"#, value, b"}"].concat();
    let attribute =
        |value: &[u8]| [br#"{"domain":"api","attributes":{"a":"#, value, b"}}"].concat();
    let mut bodies: Vec<Vec<u8>> = vec![
        b"\xff\xfe\x00".to_vec(),
        b"{\"limit\":\"free\",\"key\":\"\xff\"}".to_vec(),
        b"{\"limit\":\"free\",\"key\":\"a\nb\"}".to_vec(),
        br#"{"limit":"free","key":"\ud800"}"#.to_vec(),
        br#"{"limit":"free","key":"\udc00\ud800"}"#.to_vec(),
        br#"{"limit":"free","key":"\x"}"#.to_vec(),
        b"{\"limit\":\"free\",\"key\":\"a\"".to_vec(),
        b"{'limit':'free','key':'a'}".to_vec(),
        b"{\"limit\":\"free\",\"key\":\"a\",}".to_vec(),
        b"\xef\xbb\xbf{\"limit\":\"free\",\"key\":\"a\"}".to_vec(),
        b"\0".repeat(60_000),
        b"NaN".to_vec(),
        deep.clone(),
        deep_object.clone(),
        within(&deep),
        within(&deep_object),
        attribute(&deep),
        attribute(&deep_object),
        [b"{\"", &b"x".repeat(60_000)[..], b"\":1}"].concat(),
        [b"{\"", &b"\\u0000".repeat(9_000)[..], b"\":1}"].concat(),
        within(&[b"\"", &b"y".repeat(60_000)[..], b"\""].concat()),
    ];
    for number in [
        "1e999",
        "-1e999",
        "-1",
        "-1.0",
        "1.5",
        "1e300",
        "9007199254740992.0",
        "18446744073709551616",
        "9007199254740992",
    ] {
        bodies.push(within(number.as_bytes()));
    }
    for value in ["\"1\"", "true", "null", "[]", "{}", "-0", "0x10", "01", "Infinity"] {
        bodies.push(within(value.as_bytes()));
    }
    for value in ["1", "true", "null", "[]", "{}"] {
        bodies.push(attribute(value.as_bytes()));
        for field in ["limit", "key", "domain"] {
            bodies.push(format!(r#"{{"{field}":{value}}}"#).into_bytes());
        }
        bodies.push(format!(r#"{{"limit":"free","key":"a","max_wait_us":[{value}]}}"#).into());
    }
    for body in &bodies {
        let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        let (status, detail) = send(&server, "/v1/check", body);
        assert_eq!(status, 400, "{shown}");
        assert!(detail.len() < 1_000 && !detail.is_empty(), "{shown}: {detail}");
        assert!(!detail.chars().any(char::is_control), "{shown}: {detail}");
    }
    assert_decides(&server);
    assert_eq!(
        server.check(r#"{"limit":"free","key":"a"}"#)["remaining"],
        59,
        "nothing was charged"
    );
}

#[test]
fn bad_batches_are_refused_for_each_check_or_as_a_whole() {
    let server = ServerProcess::start(&[]);
    let deep = "[".repeat(10_000) + &"]".repeat(10_000);
    let body = format!(r#"[{deep},{{"limit":"free","key":"a"}},{{"limit":{deep},"key":"a"}}]"#);
    let response = server.post("/v1/check/batch", body).send().unwrap();
    let answers = body_of(response);
    assert_eq!(answers[0]["status"], 400);
    assert_eq!(answers[1]["remaining"], 59);
    assert_eq!(answers[2]["status"], 400);
    for whole in [&b"\xff"[..], b"[\"\xff\"]", b"[{\"limit\":\"free\"]", &b"[".repeat(10_000)[..]] {
        assert_eq!(send(&server, "/v1/check/batch", whole).0, 400);
    }
    assert_decides(&server);
}

#[test]
fn any_text_is_a_key() {
    let server = ServerProcess::start(&[]);
    let long = "k".repeat(60_000);
    let keys = ["", "\0", "a\0b", "\u{10ffff}", "{}:*\r\n", "..", long.as_str()];
    for key in keys {
        let body = serde_json::json!({"limit": "free", "key": key, "cost": 7}).to_string();
        assert_eq!(server.check(&body)["remaining"], 53, "{:?}", key.get(..20));
    }
    let body = serde_json::json!({"domain": "api", "attributes": {"path": long, "ip": "::1"}});
    assert_eq!(server.check(&body.to_string())["allowed"], true);
}

/// Returns the server's peak memory so far.
fn peak_kib(server: &ServerProcess) -> u64 {
    let path = format!("/proc/{}/status", server.pid().as_raw_nonzero());
    let status = std::fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn connect(server: &ServerProcess, head: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    let all = "Host: localhost\r\nContent-Type: application/json\r\n";
    stream.write_all(format!("{head}{all}\r\n").as_bytes()).unwrap();
    stream
}

fn first_line(stream: &mut TcpStream) -> String {
    let mut read = [0; 256];
    let count = stream.read(&mut read).unwrap();
    let text = String::from_utf8_lossy(&read[..count]).into_owned();
    text.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn body_with_a_too_large_length_is_not_read() {
    let server = ServerProcess::start(&[]);
    for (path, length) in [
        ("/v1/check", 100 << 20),
        ("/v1/check", (64 << 10) + 1),
        ("/v1/check/batch", 100 << 20),
        ("/v1/check/batch", (1 << 20) + 1),
    ] {
        let head = format!("POST {path} HTTP/1.1\r\nContent-Length: {length}\r\n");
        let mut stream = connect(&server, &head);
        assert_eq!(first_line(&mut stream), "HTTP/1.1 413 Payload Too Large", "{path} {length}");
    }
    let (status, detail) = send(&server, "/v1/check", &b" ".repeat((64 << 10) + 1));
    assert_eq!((status, &*detail), (413, "the body is too long; send at most 65536 bytes"));
    assert_eq!(
        send(&server, "/v1/check", &b" ".repeat(64 << 10)).0,
        400,
        "the longest body that is read"
    );
    assert_decides(&server);
}

#[test]
fn body_without_end_is_cut_off_and_takes_no_memory() {
    let server = ServerProcess::start(&[]);
    assert_decides(&server);
    let before = peak_kib(&server);
    for path in ["/v1/check", "/v1/check/batch"] {
        let head = format!("POST {path} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n");
        let mut stream = connect(&server, &head);
        let chunk = [b"10000\r\n", &[b' '; 1 << 16][..], b"\r\n"].concat();
        let pieces = (100 << 20) / (1 << 16);
        let taken = (0..pieces).take_while(|_| stream.write_all(&chunk).is_ok()).count();
        assert!(taken < pieces, "the server read the whole body");
    }
    let grown = peak_kib(&server) - before;
    assert!(grown < 32 << 10, "the memory grew by {grown} KiB");
    assert_decides(&server);

    let head = "POST /v1/check HTTP/1.1\r\nTransfer-Encoding: chunked\r\n";
    let mut stream = connect(&server, head);
    stream.write_all(&[b"10001\r\n", &[b' '; (1 << 16) + 1][..], b"\r\n"].concat()).unwrap();
    assert_eq!(first_line(&mut stream), "HTTP/1.1 413 Payload Too Large");
}

#[test]
fn truncated_body_is_refused_and_the_server_still_decides() {
    let server = ServerProcess::start(&[]);
    for _ in 0..20 {
        let head = "POST /v1/check HTTP/1.1\r\nContent-Length: 40\r\n";
        let mut stream = connect(&server, head);
        stream.write_all(b"{\"limit\":\"free\",\"key\":\"a\"}").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        // The server does not have to answer an incomplete request.
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    let mut stream = connect(&server, "POST /v1/check HTTP/1.1\r\nTransfer-Encoding: chunked\r\n");
    stream.write_all(b"2\r\n{}zz\r\n").unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(answer.contains("or its chunks are malformed; send the whole body"), "{answer}");
    assert_eq!(
        server.check(r#"{"limit":"free","key":"a"}"#)["remaining"],
        59,
        "nothing was charged"
    );
}

#[test]
fn get_is_answered_before_its_body_arrives() {
    let server = ServerProcess::start(&[]);
    let mut stream = connect(&server, "GET /v1/limits HTTP/1.1\r\nContent-Length: 104857600\r\n");
    assert_eq!(first_line(&mut stream), "HTTP/1.1 200 OK");
}
