//! `POST /v1/refund`.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tollgate_launcher::{Flavour, Launch, Proxy, Server as Redis};

use crate::server::ServerProcess;

/// A limit of 100 for every algorithm, of which nothing is refilled while a test runs.
const LIMITS: [(&str, &str); 6] = [
    ("fixed", "fixed-window limit=100 window=366d"),
    ("log", "sliding-window-log limit=100 window=366d"),
    ("counter", "sliding-window-counter limit=100 window=366d"),
    ("token", "token-bucket capacity=100 refill=1/300d"),
    ("policing", "leaky-bucket capacity=100 leak=1/300d mode=policing"),
    ("shaping", "leaky-bucket capacity=100 leak=1/300d mode=shaping"),
];

const SECRET: (&str, &str) = ("TOLLGATE_RECEIPT_SECRET", "known to all of these servers");

/// Writes a file of limits with a long store deadline, because the machine can be busy.
fn file(limits: &[(&str, &str)]) -> NamedTempFile {
    let mut file = NamedTempFile::with_suffix(".yaml").unwrap();
    file.write_all(yaml(limits).as_bytes()).unwrap();
    file
}

fn yaml(limits: &[(&str, &str)]) -> String {
    let limits: Vec<_> =
        limits.iter().map(|(name, limit)| format!("  {name}: {limit}\n")).collect();
    let defaults = "defaults: { on_store_failure: closed, deadline: 30s }\n";
    format!("{defaults}limits:\n{}", limits.concat())
}

fn launch() -> Redis {
    Launch::new(Flavour::Redis).start().unwrap_or_else(|error| panic!("{error}"))
}

impl ServerProcess {
    fn with_limits(
        file: &NamedTempFile,
        flags: &[&str],
        variables: &[(&str, &str)],
    ) -> ServerProcess {
        let path = file.path().to_str().unwrap();
        ServerProcess::start_with(&[&["--config", path], flags].concat(), variables)
    }

    /// Charges a key and returns the receipt and the remaining quota.
    fn charge(&self, limit: &str, cost: u64) -> (String, u64) {
        let check = json!({ "limit": limit, "key": "user:42", "cost": cost });
        let decision = self.check(&check.to_string());
        let receipt = decision["receipt"].as_str().unwrap_or_else(|| panic!("{decision}"));
        (receipt.to_owned(), decision["remaining"].as_u64().unwrap())
    }

    fn refund(&self, receipt: &str) -> (u16, Value) {
        self.ask_refund(json!({ "receipt": receipt }).to_string())
    }

    fn ask_refund(&self, body: String) -> (u16, Value) {
        let response = self.post("/v1/refund", body).send().unwrap();
        let status = response.status().as_u16();
        (status, serde_json::from_str(&response.text().unwrap()).unwrap())
    }
}

#[test]
fn refund_gives_back_the_exact_cost_once() {
    let file = file(&LIMITS);
    let server = ServerProcess::with_limits(&file, &[], &[]);
    for (limit, _) in LIMITS {
        let (_, remaining) = server.charge(limit, 30);
        assert_eq!(remaining, 70, "{limit}");
        let (receipt, remaining) = server.charge(limit, 3);
        assert_eq!(remaining, 67, "{limit}");
        assert_eq!(server.refund(&receipt), (200, json!({ "refunded": 3 })), "{limit}");
        let (status, problem) = server.refund(&receipt);
        assert_eq!(
            (status, &problem["detail"]),
            (409, &json!("the receipt was refunded before")),
            "{limit}"
        );
        assert_eq!(server.charge(limit, 1).1, 69, "{limit}");
    }
}

/// Returns the number of units that the limit admits while the test also tries to refund receipts that were already
/// refunded.
fn admitted(server: &ServerProcess, limit: &str, old: &[String]) -> u64 {
    let check = json!({ "limit": limit, "key": "user:42", "cost": 10 }).to_string();
    let mut old = old.iter();
    let mut admitted = 0;
    loop {
        match server.check(&check)["allowed"] == true {
            true => admitted += 10,
            false => match old.next() {
                Some(receipt) => assert_ne!(server.refund(receipt).0, 503),
                None => return admitted,
            },
        }
    }
}

/// Charges and refunds repeatedly, and returns the used receipts. A first charge of 20 stays, because a place in a queue
/// can only be refunded as a whole.
fn spent(server: &ServerProcess, limit: &str) -> Vec<String> {
    server.charge(limit, 20);
    let cycle = |_| {
        let (receipt, _) = server.charge(limit, 10);
        assert_eq!(server.refund(&receipt), (200, json!({ "refunded": 10 })), "{limit}");
        receipt
    };
    (0..30).map(cycle).collect()
}

#[test]
fn each_loss_of_a_redis_admits_one_more_burst_at_most() {
    let redis = launch();
    let (file, url) = (file(&LIMITS), redis.url());
    let start = || ServerProcess::with_limits(&file, &["--store", &url], &[SECRET]);
    let mut admin = redis::Client::open(redis.unix_url()).unwrap().get_connection().unwrap();
    for with_a_restart in [false, true] {
        let mut server = start();
        let old = LIMITS.map(|(limit, _)| spent(&server, limit));
        redis::cmd("FLUSHALL").exec(&mut admin).unwrap();
        if with_a_restart {
            server = start();
        }
        let has_heard = |log: &str| log.contains("the store has lost its state");
        for ((limit, _), old) in LIMITS.iter().zip(&old) {
            assert_eq!(admitted(&server, limit, old), 100, "{limit}");
            let (status, problem) = server.refund(&old[0]);
            let detail = problem["detail"].as_str().unwrap();
            assert!(status == 409 && detail.contains("lost its state"), "{limit}: {problem}");
        }
        if !with_a_restart {
            server.wait_for_log(has_heard);
        }
        redis::cmd("FLUSHALL").exec(&mut admin).unwrap();
    }
}

#[test]
fn each_restart_in_memory_admits_one_more_burst_at_most() {
    let file = file(&LIMITS);
    let start = || ServerProcess::with_limits(&file, &[], &[SECRET]);
    let server = start();
    let old = LIMITS.map(|(limit, _)| spent(&server, limit));
    drop(server);
    let server = start();
    for ((limit, _), old) in LIMITS.iter().zip(&old) {
        assert_eq!(admitted(&server, limit, old), 100, "{limit}");
        assert_eq!(server.refund(&old[0]).0, 400, "{limit}");
    }
}

#[test]
fn server_without_refunds_notices_a_loss_of_state() {
    let redis = launch();
    let (file, url) = (file(&LIMITS), redis.url());
    let start = || ServerProcess::with_limits(&file, &["--store", &url], &[SECRET]);
    let (ours, other) = (start(), start());
    let mut admin = redis::Client::open(redis.unix_url()).unwrap().get_connection().unwrap();
    redis::cmd("FLUSHALL").exec(&mut admin).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while other.refund(&ours.charge("fixed", 1).0).0 == 409 {
        assert!(Instant::now() < until, "the server never noticed the loss");
        // Resets the key, so that the next charge is admitted.
        other.delete("/v1/limits/fixed/keys/user:42").send().unwrap();
    }
    let (receipt, _) = ours.charge("fixed", 1);
    assert_eq!(other.refund(&receipt), (200, json!({ "refunded": 1 })));
}

#[test]
fn refusal_has_no_receipt() {
    let file = file(&LIMITS);
    let server = ServerProcess::with_limits(&file, &[], &[]);
    let decision = server.check(r#"{"limit":"fixed","key":"a","cost":101}"#);
    assert_eq!((&decision["allowed"], &decision["receipt"]), (&json!(false), &Value::Null));
    let long = json!({ "limit": "fixed", "key": "k".repeat(4_000) });
    let decision = server.check(&long.to_string());
    assert_eq!((&decision["allowed"], &decision["receipt"]), (&json!(true), &Value::Null));
}

#[test]
fn forged_receipts_get_the_same_error() {
    let file = file(&LIMITS);
    let server = ServerProcess::with_limits(&file, &[], &[SECRET]);
    let other = ServerProcess::with_limits(&file, &[], &[]);
    let (receipt, _) = server.charge("fixed", 3);
    let of_another = other.charge("fixed", 3).0;
    let forged = [
        String::new(),
        "none".to_owned(),
        "né".to_owned(),
        receipt.to_lowercase(),
        format!("{receipt}A"),
        receipt[1..].to_owned(),
        of_another,
        "A".repeat(8_000),
    ];
    for forged in forged {
        let (status, problem) = server.refund(&forged);
        let detail = problem["detail"].as_str().unwrap();
        assert_eq!(status, 400, "{forged}");
        assert!(detail.starts_with("not a receipt of this server"), "{forged}: {detail}");
    }
    assert_eq!(server.refund(&"A".repeat(100_000)).0, 413);
    for body in ["", "{}", "[]", "null", r#"{"receipt":1}"#, r#"{"receipt":"a","key":"b"}"#] {
        assert_eq!(server.ask_refund(body.to_owned()).0, 400, "{body}");
    }
    assert_eq!(server.refund(&receipt).1, json!({ "refunded": 3 }));
}

#[test]
fn concurrent_refunds_of_one_receipt_refund_once() {
    let redis = launch();
    let (file, url) = (file(&LIMITS), redis.url());
    let start = || ServerProcess::with_limits(&file, &["--store", &url], &[SECRET]);
    let servers = [start(), start()];
    for (limit, _) in LIMITS {
        let [one, other] = &servers;
        one.charge(limit, 10);
        let (receipt, _) = one.charge(limit, 3);
        let answers: Vec<_> = thread::scope(|scope| {
            let (servers, receipt) = (&servers, &receipt);
            let ask = |at: usize| scope.spawn(move || servers[at % 2].refund(receipt));
            let asking: Vec<_> = (0..16).map(ask).collect();
            asking.into_iter().map(|asking| asking.join().unwrap()).collect()
        });
        let mut by_status: Vec<_> = answers.iter().map(|(status, _)| *status).collect();
        by_status.sort_unstable();
        let mut want = vec![409; 16];
        want[0] = 200;
        assert_eq!(by_status, want, "{limit}: {answers:?}");
        assert!(answers.contains(&(200, json!({ "refunded": 3 }))), "{limit}: {answers:?}");
        assert_eq!(other.charge(limit, 1).1, 89, "{limit}");
    }
}

#[test]
fn refunds_of_removed_limits_fail_and_of_changed_limits_succeed() {
    let one = file(&[("kept", "fixed-window limit=100 window=366d"), ("gone", LIMITS[0].1)]);
    let server = ServerProcess::with_limits(&one, &[], &[]);
    let (kept, gone) = (server.charge("kept", 60).0, server.charge("gone", 3).0);
    let changed = yaml(&[("kept", "fixed-window limit=50 window=366d")]);
    std::fs::write(one.path(), changed).unwrap();
    // Waits until the server has reloaded the file.
    let is_gone = || {
        server.post("/v1/check", r#"{"limit":"gone","key":"a"}"#).send().unwrap().status() == 404
    };
    while !is_gone() {
        thread::yield_now();
    }
    let (status, problem) = server.refund(&gone);
    assert_eq!(
        (status, &problem["detail"]),
        (404, &json!("the limit of the receipt no longer exists"))
    );
    let refused = server.check(r#"{"limit":"kept","key":"user:42"}"#);
    assert_eq!(refused["allowed"], false);
    assert_eq!(server.refund(&kept), (200, json!({ "refunded": 50 })));
    assert_eq!(server.charge("kept", 1).1, 49);
}

#[test]
fn refund_without_the_store_says_when_to_retry() {
    let mut redis = launch();
    let (file, url) = (file(&LIMITS), redis.url());
    let server = ServerProcess::with_limits(&file, &["--store", &url], &[]);
    let (receipt, _) = server.charge("fixed", 3);
    redis.kill();
    let body = json!({ "receipt": receipt }).to_string();
    let response = server.post("/v1/refund", body).send().unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    assert!(response.headers().contains_key("retry-after"));
    let problem = response.text().unwrap();
    assert!(problem.contains("the store failed; nothing was refunded"), "{problem}");
    assert!(!problem.contains("127.0.0.1"), "{problem}");
}

#[test]
fn refund_completes_when_the_client_hangs_up() {
    let redis = launch();
    let proxy = Proxy::start(redis.addr()).unwrap();
    let (file, proxied, direct) = (file(&LIMITS), proxy.url(), redis.url());
    let server = ServerProcess::with_limits(&file, &["--store", &proxied], &[SECRET]);
    let other = ServerProcess::with_limits(&file, &["--store", &direct], &[SECRET]);
    let (receipt, _) = server.charge("fixed", 3);
    // The delay is long enough for the server to notice, while the refund mark is in flight, that the client has
    // disconnected.
    proxy.delay(|| Duration::from_millis(300));
    let passed = proxy.scripts_passed();
    let body = json!({ "receipt": receipt }).to_string();
    let head = format!(
        "POST /v1/refund HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut client = TcpStream::connect(server.url.trim_start_matches("http://")).unwrap();
    client.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    let wait = || assert!(Instant::now() < until, "timed out");
    while proxy.scripts_passed() == passed {
        wait();
        thread::yield_now();
    }
    drop(client);
    // A cost above the limit is refused and charges nothing, so this check only reads the remaining units.
    let look = r#"{"limit":"fixed","key":"user:42","cost":101}"#;
    while other.check(look)["remaining"] != 100 {
        wait();
    }
    assert_eq!(other.refund(&receipt).0, 409);
}
