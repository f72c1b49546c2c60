//! The server's log.

use std::io::{BufRead, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tollgate_launcher::{Flavour, Launch};

use crate::collector::{Collector, CollectorMode};
use crate::eventually::eventually;
use crate::server::ServerProcess;

/// The most verbose filter, for all crates.
const ALL: &str = "trace,axum=trace,hyper=trace,hyper_util=trace,notify=trace,opentelemetry=trace,\
                   redis=trace,reqwest=trace,rustls=trace,tokio=trace,tonic=trace,tower=trace";

const CHECK: &str = r#"{"limit":"free","key":"user:42"}"#;

/// Writes a file of limits, which is deleted when the first value is dropped.
fn config(text: &str) -> (tempfile::NamedTempFile, String) {
    let mut file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    (file, path)
}

fn count(log: &str, text: &str) -> usize {
    log.lines().filter(|line| line.contains(text)).count()
}

/// Stops a server and returns its log.
fn stop(server: ServerProcess) -> String {
    server.signal(Signal::TERM);
    let (status, log) = server.wait();
    assert!(status.success(), "{status}: {log}");
    log
}

#[test]
fn server_logs_addresses_store_and_rules_in_three_lines() {
    let server = ServerProcess::start(&["--drain-delay", "0s"]);
    let log = stop(server);
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines[0].starts_with("tollgate ") && lines[0].contains(": http://127.0.0.1:"));
    assert_eq!(lines[1], "store: memory, at most 64 MiB");
    assert_eq!(lines[2], "3 rules, 6 limits: of the example; give your own with --config");
    assert!(lines[3].contains("INFO") && lines[3].contains("told to stop"), "{log}");
    assert!(lines[4].contains("INFO") && lines[4].contains("closing"), "{log}");
    assert!(lines[5].contains("stopped: everything in flight was answered"), "{log}");
    assert_eq!(lines.len(), 6, "{log}");
}

#[test]
fn json_log_has_one_object_per_line() {
    let flags = ["--log-format", "json", "--log", ALL, "--drain-delay", "0s"];
    let server = ServerProcess::start(&flags);
    server.check(CHECK);
    let (http, grpc) = (server.url.clone(), server.grpc.clone());
    let log = stop(server);
    let objects: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let start = objects.iter().find(|object| object["message"] == "started").unwrap();
    assert_eq!((start["http"].as_str(), start["grpc"].as_str()), (Some(&*http), Some(&*grpc)));
    assert_eq!(
        (&start["store"], &start["config"]),
        (&"memory, at most 64 MiB".into(), &"example".into())
    );
    assert_eq!((&start["rules"], &start["limits"]), (&3.into(), &6.into()));
    assert_eq!(start["level"], "INFO");
    let request = objects.iter().find(|object| object["message"] == "request").unwrap();
    assert_eq!((&request["method"], &request["endpoint"]), (&"POST".into(), &"/v1/check".into()));
    assert_eq!((&request["status"], &request["level"]), (&200.into(), &"DEBUG".into()));
    assert!(request["took_us"].is_u64(), "{request}");
}

/// Rules that refuse in three ways: by a tier, by a limit and by a block. Keys must not appear in the log as they
/// are.
const REFUSING: &str = "
limits: { one: fixed-window limit=1 window=366d, two: fixed-window limit=2 window=366d }
rules:
  - { name: each, domain: api, key: [api_key], limit: { by: tier, tiers: { pro: two }, default: one } }
  - { name: closed, domain: api, when: { path: /closed }, key: [path], limit: block }
";

#[test]
fn refusals_are_logged_with_rule_limit_and_key_when_enabled() {
    let (_file, path) = config(REFUSING);
    let flags = ["--config", &path, "--log-refusals", "1000/s", "--log-format", "json"];
    let server = ServerProcess::start(&flags);
    let pro = r#"{"domain":"api","verified":{"api_key":"k_secret","tier":"pro"},"cost":2}"#;
    server.check(pro);
    let refusals = |server: &ServerProcess| -> Vec<Value> {
        let log = server.log();
        let objects = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        objects.filter(|object| object["message"] == "refused").collect()
    };
    // A refusal less than a millisecond after another refusal is not logged, so the check is repeated.
    let logged = |body: &str, want: [&str; 3]| {
        eventually("the refusal is logged", || {
            server.check(body);
            let all = refusals(&server);
            let fields = |own: &Value| ["by", "limit", "key"].map(|it| own[it].clone());
            all.iter().any(|own| fields(own) == want).then_some(())
        });
    };
    logged(pro, ["api/each", "two", "api_key=k_se…"]);
    logged(
        r#"{"domain":"api","attributes":{"path":"/closed"}}"#,
        ["api/closed", "block", "path=/closed"],
    );
    logged(r#"{"limit":"one","key":"\u001b[31m"}"#, ["one", "one", "\\u{1b}[31m"]);
    assert!(!server.log().contains("k_secret"));
}

#[test]
fn refusals_between_two_lines_are_counted() {
    let (_file, path) = config(REFUSING);
    let server =
        ServerProcess::start(&["--config", &path, "--log-refusals", "1/m", "--drain-delay", "0s"]);
    for _ in 0..50 {
        server.check(r#"{"limit":"one","key":"a"}"#);
    }
    let log = stop(server);
    assert_eq!(count(&log, "refused by=one limit=\"one\" key=\"a\" left_out=0"), 1, "{log}");
    assert_eq!(count(&log, "refused"), 1, "{log}");
}

#[test]
fn reset_is_logged_with_its_key_escaped() {
    let server = ServerProcess::start(&["--drain-delay", "0s"]);
    for key in ["api_key=k_secret", "user%0A%1B%5B31m"] {
        let path = format!("/v1/limits/login/keys/{key}");
        assert_eq!(server.delete(&path).send().unwrap().status(), 204);
    }
    let log = stop(server);
    assert_eq!(
        count(&log, "an operator reset a key limit=\"login\" key=\"api_key=k_se…\""),
        1,
        "{log}"
    );
    assert_eq!(count(&log, "key=\"user\\\\n\\\\u{1b}[31m\""), 1, "{log}");
    assert!(!log.contains("k_secret"));
}

#[test]
fn denials_are_not_logged() {
    let server = ServerProcess::start(&["--drain-delay", "0s"]);
    let body = r#"{"limit":"login","key":"a","cost":6}"#;
    for _ in 0..1_000 {
        assert_eq!(server.check(body)["allowed"], false);
    }
    let log = stop(server);
    assert_eq!(log.lines().count(), 6, "three lines at the start, three at the end: {log}");
}

#[test]
fn other_crates_are_logged_when_the_filter_names_them() {
    // The exporter of traces logs many lines at level `trace`.
    let collector = Collector::start(CollectorMode::Takes);
    let start = |filter| {
        let flags = ["--log", filter, "--otlp-endpoint", &collector.url, "--drain-delay", "0s"];
        let server = ServerProcess::start(&flags);
        server.check(CHECK);
        stop(server)
    };
    let log = start("debug");
    let request = "request method=\"POST\" endpoint=\"/v1/check\" status=200 took_us=";
    assert_eq!(count(&log, request), 1, "{log}");
    assert_eq!(count(&log, " hyper_util::"), 0, "{log}");
    let log = start("hyper_util=debug");
    assert_eq!(count(&log, request), 0, "{log}");
    assert!(count(&log, " hyper_util::") > 0, "{log}");
}

#[test]
fn bad_filter_is_an_error_that_names_the_flag_and_the_remedy() {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--grpc-listen",
            "127.0.0.1:0",
            "--log",
            "debgu",
        ])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.starts_with("error: --log: `debgu` is no level; use off, error,"), "{error}");
}

#[test]
fn store_outage_is_logged_in_two_lines() {
    let mut redis = Launch::new(Flavour::Redis).start().unwrap();
    let url = format!("redis://{}", redis.addr());
    let server = ServerProcess::start(&["--store", &url, "--drain-delay", "0s"]);
    let address = redis.addr().to_string();
    assert_eq!(server.check(CHECK)["allowed"], true);
    redis.kill();
    let mut decided = 0;
    let until = Instant::now() + Duration::from_secs(60);
    while count(&server.log(), "the store fails") == 0 {
        server.check(CHECK);
        server.get("/readyz").send().unwrap();
        decided += 1;
        assert!(Instant::now() < until, "{}", server.log());
    }
    redis.restart().unwrap();
    while count(&server.log(), "the store answers again") == 0 {
        server.check(CHECK);
        server.get("/readyz").send().unwrap();
        assert!(Instant::now() < until, "{}", server.log());
    }
    let log = stop(server);
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("the store")).collect();
    let [fails, answers] = lines[..] else { panic!("{log}") };
    assert!(fails.contains("WARN") && fails.contains(&address), "{log}");
    assert!(fails.contains("failure=\"") && !fails.contains("failure=\"unknown"), "{log}");
    assert!(answers.contains("INFO") && answers.contains(&address), "{log}");
    let failed = answers.split_once(" failed=").unwrap().1;
    assert!(failed.parse::<u64>().unwrap() >= decided, "{decided}: {log}");
    assert_eq!(count(&log, "WARN") + count(&log, "ERROR"), 1, "{log}");
}

#[test]
fn failed_requests_are_logged_once_a_second_and_all_counted() {
    let redis = Launch::new(Flavour::Redis).start().unwrap();
    let url = format!("redis://{}", redis.addr());
    drop(redis);
    let text = "defaults: { on_store_failure: closed }\nlimits: { free: token-bucket capacity=60 refill=1/s }\nrules: []\n";
    let (_file, path) = config(text);
    let flags = ["--store", &url, "--config", &path, "--log-format", "json", "--drain-delay", "0s"];
    let server = ServerProcess::start(&flags);
    let begun = Instant::now();
    for _ in 0..300 {
        assert_eq!(server.post("/v1/check", CHECK).send().unwrap().status(), 503);
    }
    // A line is about one request, or has the number of requests that were not logged.
    let counts = |log: &str| {
        let objects = log.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
        let each = objects.filter_map(|object| match object["left_out"].as_u64() {
            None if object["message"] != "a request failed" => None,
            None => {
                let (endpoint, status) = (&object["endpoint"], &object["status"]);
                assert_eq!((endpoint, status), (&"/v1/check".into(), &503.into()), "{object}");
                Some(1)
            }
            Some(left_out) => {
                let text = "more requests failed since, not logged one by one";
                assert_eq!(object["message"], format!("{left_out} {text}"));
                Some(left_out)
            }
        });
        each.collect::<Vec<u64>>()
    };
    let log = server.wait_for_log(|log| counts(log).iter().sum::<u64>() >= 300);
    let lines = counts(&log);
    assert_eq!(lines.iter().sum::<u64>(), 300, "{log}");
    // There are at most two lines per second.
    assert!(lines.len() as u64 <= 2 * begun.elapsed().as_secs() + 4, "{log}");
}

#[test]
fn secrets_are_never_logged() {
    let redis = Launch::new(Flavour::Redis).start().unwrap();
    let (_file, path) =
        config("limits: { free: token-bucket capacity=60 refill=1/s }\nrules: []\n");
    let collector = Collector::start(CollectorMode::Fails);
    let store = format!("redis://hidden-user:hidden-password@{}", redis.addr());
    let variables = [
        ("TOLLGATE_OPERATOR_TOKEN", "hidden-operator-token"),
        ("TOLLGATE_RECEIPT_SECRET", "hidden-receipt-secret"),
        ("TOLLGATE_OTLP_ENDPOINT", &*collector.url),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer hidden-header"),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ("TOLLGATE_STORE", &store),
    ];
    for format in ["text", "json"] {
        let flags = ["--log", ALL, "--log-format", format, "--config", &path];
        let flags = [&flags[..], &["--drain-delay", "0s"]].concat();
        let server = ServerProcess::start_with(&flags, &variables);
        let authorized = server.post("/v1/check", CHECK).bearer_auth("hidden-operator-token");
        let answer = authorized.send().unwrap().text().unwrap();
        let log = server.wait_for_log(|log| {
            count(log, "the store fails") > 0 || {
                server.post("/v1/check", CHECK).send().unwrap();
                false
            }
        });
        server.wait_for_log(|log| count(log, "traces are not delivered") > 0);
        server.signal(Signal::TERM);
        let (_, rest) = server.wait();
        for text in [answer, log, rest] {
            assert!(!text.contains("hidden"), "{text}");
        }
    }
    let bad = [
        ("--store", "redis://hidden-user:hidden-password@127.0.0.1:x"),
        ("--store", "redis+oops://hidden-user:hidden-password@127.0.0.1"),
        ("--otlp-endpoint", "http://hidden-user:hidden-password@127.0.0.1"),
    ];
    for (flag, url) in bad {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["serve", "--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0", flag, url])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.starts_with(&format!("error: {flag}")), "{error}");
        assert!(!error.contains("hidden"), "{error}");
    }
}

#[test]
fn client_text_is_escaped_in_the_log() {
    let hostile = "x\nforged\r\u{1b}[2J";
    let body = format!("{{\"limit\":{0},\"key\":{0}}}", Value::from(hostile));
    let known = format!("{{\"limit\":\"free\",\"key\":{}}}", Value::from(hostile));
    for format in ["text", "json"] {
        let flags = ["--log", ALL, "--log-format", format, "--drain-delay", "0s"];
        let server = ServerProcess::start(&flags);
        assert_eq!(server.post("/v1/check", body.as_str()).send().unwrap().status(), 404);
        server.check(&known);
        server.post("/v1/check", hostile).send().unwrap();
        server.get("/v1/limits/x%0Aforged%1B%5B2J").send().unwrap();
        let address = server.url.strip_prefix("http://").unwrap();
        for raw in [
            format!("GET /{hostile} HTTP/1.1\r\nhost: a\r\n\r\n"),
            format!(
                "GET / HTTP/1.1\r\nhost: a\r\nx-{hostile}: {hostile}\r\nconnection: close\r\n\r\n"
            ),
            format!("{hostile} / HTTP/1.1\r\nhost: a\r\n\r\n"),
        ] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(raw.as_bytes()).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        }
        let log = stop(server);
        let controls: Vec<char> = log.chars().filter(|letter| letter.is_control()).collect();
        assert!(controls.iter().all(|&letter| letter == '\n'), "{log:?}");
        assert!(!log.lines().any(|line| line.starts_with("forged")), "{log}");
    }
}

#[test]
fn server_whose_log_is_closed_still_answers() {
    let (server, stderr) =
        ServerProcess::start_unread(&["--log", "debug", "--drain-delay", "0s"], &[]);
    drop(stderr);
    for _ in 0..100 {
        server.check(CHECK);
    }
    server.signal(Signal::TERM);
    assert!(server.wait().0.success());
}

#[test]
fn lines_dropped_from_a_full_log_buffer_are_counted() {
    let flags = ["--log", "debug", "--log-format", "json", "--drain-delay", "0s"];
    let (server, mut stderr) = ServerProcess::start_unread(&flags, &[]);
    // With more than 150 bytes per line, this exceeds the sum of a pipe's buffer and 1 MiB.
    let requests = 4 * 2_000;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..requests / 4).for_each(|_| drop(server.check(CHECK))));
        }
    });
    // The counter is exact before the rest of the log is read. The scrape itself is one more request.
    let counted = crate::metrics::scrape(&server).value("tollgate_log_lines_lost_total", &[]);
    let requests = requests + 1;
    let (mut written, mut lost) = (0, 0);
    let mut line = String::new();
    while written + lost < requests && stderr.read_line(&mut line).unwrap() > 0 {
        let object: Value = serde_json::from_str(&line).expect(&line);
        written += u64::from(object["message"] == "request");
        lost += object["lost"].as_u64().unwrap_or(0);
        line.clear();
    }
    assert_eq!(written + lost, requests);
    assert!(lost > 0);
    assert!(counted > 0.0 && counted <= lost as f64, "{counted} of {lost}");
}

#[test]
fn lines_that_cannot_be_written_are_counted_and_requests_are_still_answered() {
    let server = ServerProcess::start_logging_to("/dev/full");
    // At level `debug` each request has one line, and the start has three lines.
    for _ in 0..20 {
        server.check(CHECK);
    }
    let lost = eventually("all lines are counted as lost", || {
        let page = crate::metrics::scrape(&server);
        let lost = page.value("tollgate_log_lines_lost_total", &[]);
        (lost >= 23.0).then_some(lost)
    });
    // A report of lost lines would also be lost, so the number must not grow by itself.
    assert!(lost < 1_000.0, "{lost}");
}

#[test]
fn server_whose_log_is_not_read_still_answers_and_stops() {
    let (server, stderr) = ServerProcess::start_unread(&["--log", ALL, "--drain-delay", "0s"], &[]);
    let long = "a".repeat(1_000);
    // More bytes than a pipe's buffer holds, so that a write of the rest would block.
    for _ in 0..300 {
        server.post("/v1/check", long.as_str()).send().unwrap();
        server.check(CHECK);
    }
    server.signal(Signal::TERM);
    assert!(server.wait().0.success());
    drop(stderr);
}
