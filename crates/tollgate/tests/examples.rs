//! Tests of the examples, and of the responses that the middleware guide shows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, Response};
use axum::routing::{Router, get};
use tollgate::rules::{Config, Rules};
use tollgate::tower::RateLimitLayer;
use tollgate::{Limit, Limiter, ManualClock};
use tollgate_launcher::{Flavour, Launch};
use tower::ServiceExt;

/// Runs an example, which `cargo test` builds. Returns the lines that it prints.
fn run(name: &str) -> Vec<String> {
    let program = program(name);
    let missing = "run `cargo test -p tollgate --all-features`, which builds the examples too";
    assert!(program.exists(), "{} is not there; {missing}", program.display());
    let ran = Command::new(program).output().unwrap();
    assert!(ran.status.success(), "{name}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// `target/debug/examples/NAME`, where this test is `target/debug/deps/examples-…`.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(|deps| deps.parent()).unwrap();
    profile.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
}

#[test]
fn first_use_allows_five_and_refuses_the_sixth() {
    let lines = run("first_use");
    assert_eq!(
        lines[..5],
        [4, 3, 2, 1, 0].map(|left| format!("attempt {}: allowed, {left} left", 5 - left))
    );
    assert!(lines[5].starts_with("attempt 6: refused, retry in "), "{}", lines[5]);
    assert_eq!(lines.len(), 6);
}

#[test]
fn concurrency_starts_three_exports_and_another_when_one_has_ended() {
    let lines = run("concurrency");
    let expected = [
        "export 1: started, 2 more may start",
        "export 2: started, 1 more may start",
        "export 3: started, 0 more may start",
        "export 4: refused, three run already",
        "export 5: started, 2 more may start",
        "export 1: wrote rows, permit kept: true",
        "export 2: ended",
        "export 6: started, 0 more may start",
        "all exports have ended: 3 may start",
    ];
    assert_eq!(lines, expected);
}

/// A line of the table of `axum_tiers`: client, request, status, units that remain, and seconds to wait.
fn row(line: &str) -> (&str, &str, u16, &str, Option<u64>) {
    let (client, rest) = line.split_at(11);
    let (request, rest) = rest.split_at(17);
    let [status, remaining, wait] = rest.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("{line}")
    };
    (client.trim(), request.trim(), status.parse().unwrap(), remaining, wait.parse().ok())
}

#[test]
fn axum_tiers_limits_each_client_by_its_tier() {
    let lines = run("axum_tiers");
    let rows: Vec<_> = lines[1..].iter().map(|line| row(line)).collect();
    let seen: Vec<_> = rows
        .iter()
        .map(|(client, request, status, left, _)| (*client, *request, *status, *left))
        .collect();
    let (report, login) = ("GET /api/report", "POST /login");
    let mut expected = Vec::new();
    expected.extend(["2", "1", "0"].map(|left| ("anonymous", report, 200, left)));
    expected.push(("anonymous", report, 429, "0"));
    expected.push(("forger", report, 429, "0"));
    expected.extend(["4", "3", "2", "1", "0"].map(|left| ("ada, free", report, 200, left)));
    expected.push(("ada, free", report, 429, "0"));
    expected
        .extend(["99", "98", "97", "96", "95", "94"].map(|left| ("grace, pro", report, 200, left)));
    expected.extend(["1", "0"].map(|left| ("anonymous", login, 200, left)));
    expected.push(("anonymous", login, 429, "0"));
    assert_eq!(seen, expected);
    for (_, request, status, _, wait) in rows {
        let longest = if request == login { 900 } else { 60 };
        assert_eq!(
            wait.is_some_and(|wait| (1..=longest).contains(&wait)),
            status == 429,
            "{wait:?}"
        );
    }
}

#[test]
fn axum_llm_reserves_tokens_and_settles_what_streams_used() {
    let want = [
        "one stream: 6000 tokens left",
        "  it used 1204",
        "two streams: 799 tokens left",
        "a third: 429 Too Many Requests, 799 tokens left",
        "  they used 1203 and 1202",
        // 10,000 less 1,204, 1,203 and 1,202, and what is reserved.
        "a stream that is not read to its end: 4391 tokens left",
        "a request that the model refuses: 422 Unprocessable Entity",
        "the last stream: 4291 tokens left",
    ];
    assert_eq!(run("axum_llm"), want);
}

#[test]
fn tonic_limited_is_refused_waits_and_is_answered() {
    let lines = run("tonic_limited");
    let [first, second, refused, waits, .., last] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((&**first, &**second), ("call 1: answered", "call 2: answered"));
    assert_eq!(refused, "call 3: ResourceExhausted: `per-ip` is spent; come back in 1 s");
    let wait = waits.strip_prefix("call 3: waits ").and_then(|rest| rest.strip_suffix(" ms"));
    assert!(wait.unwrap().parse::<u64>().unwrap() <= 1_000, "{waits}");
    assert_eq!((&**last, lines.len()), ("call 3: answered", 5));
}

#[test]
fn reqwest_pacing_waits_for_retry_after() {
    let lines = run("reqwest_pacing");
    assert_eq!(lines.len(), 10);
    let refused = lines.iter().filter(|line| line.ends_with("429 Too Many Requests")).count();
    assert!((1..5).contains(&refused), "{lines:?}");
    // No two refusals in a row, because the client waits after a refusal.
    let is_refused = |line: &String| line.contains("429");
    assert!(!lines.windows(2).any(|pair| pair.iter().all(is_refused)), "{lines:?}");
}

/// A running example, which is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Errors are ignored: the process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn rules_file_reads_its_rules_again_on_hangup_and_keeps_running() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    std::fs::write(&path, "limits: {}\n").unwrap();
    let mut command = Command::new(program("rules_file"));
    let mut running = Running(command.arg(&path).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
    // Returns an empty line when the process has ended.
    let mut next = || lines.next().map(Result::unwrap).unwrap_or_default();
    assert!(next().contains("version 1 of the rules"));
    let process = rustix::process::Pid::from_child(&running.0);
    for version in 2..=3 {
        rustix::process::kill_process(process, rustix::process::Signal::HUP).unwrap();
        assert!(next().ends_with(&format!("version {version} of the rules")));
    }
}

/// A service from start to end: it limits on a real Redis, reads its rules again on SIGHUP, and ends on SIGTERM.
#[test]
fn axum_redis_limits_reloads_its_rules_and_ends_on_sigterm() {
    let redis = Launch::new(Flavour::Redis).start().unwrap_or_else(|error| panic!("{error}"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    let rules = include_str!("../../../examples/axum_redis.yaml");
    std::fs::write(&path, rules.replace("capacity=60 refill=1/s", "capacity=2 refill=1/h"))
        .unwrap();
    let mut command = Command::new(program("axum_redis"));
    let command = command.arg(redis.url()).arg(&path).stdout(Stdio::piped());
    let mut running = Running(command.spawn().unwrap());
    let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
    let mut next = || lines.next().map(Result::unwrap).unwrap_or_default();
    let address = next().strip_prefix("http://").unwrap().to_owned();
    let get = |path: &str| {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let remaining =
            response.lines().find_map(|line| line.strip_prefix("x-ratelimit-remaining: "));
        (response[9..12].parse::<u16>().unwrap(), remaining.map(str::to_owned))
    };
    let left = |remaining: &str| Some(remaining.to_owned());

    assert_eq!(get("/broken"), (500, left("2")), "the charge was not refunded");
    assert_eq!([get("/"), get("/")], [(200, left("1")), (200, left("0"))]);
    assert_eq!(get("/"), (429, left("0")));
    assert!(next().starts_with("refused /: `per-client` is spent"));
    assert_eq!(get("/health"), (200, None));

    // The two units stay spent under the new limit.
    std::fs::write(&path, rules.replace("capacity=60 refill=1/s", "capacity=5 refill=1/h"))
        .unwrap();
    let process = rustix::process::Pid::from_child(&running.0);
    rustix::process::kill_process(process, rustix::process::Signal::HUP).unwrap();
    // Waits until the file has been read again. `/broken` is refunded, so these requests spend nothing.
    let began = std::time::Instant::now();
    while get("/broken").0 == 429 {
        assert!(next().starts_with("refused /broken"));
        assert!(began.elapsed() < Duration::from_secs(30), "the rules were not read again");
    }
    assert_eq!(get("/"), (200, left("2")));

    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    let ended = next();
    assert!(ended.starts_with("ended: ") && ended.ends_with(" refused"), "{ended}");
    assert!(running.0.wait().unwrap().success());
}

#[test]
fn naive_race_admits_too_much_and_tollgate_does_not() {
    let redis = Launch::new(Flavour::Redis).start().unwrap_or_else(|error| panic!("{error}"));
    let ran = Command::new(program("naive_race")).arg(redis.url()).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let printed = String::from_utf8(ran.stdout).unwrap();
    let admitted: Vec<u64> = printed
        .lines()
        .map(|line| line.split_whitespace().rev().nth(3).unwrap().parse().unwrap())
        .collect();
    let [naive, exact] = admitted[..] else { panic!("{printed}") };
    assert!(naive > 100, "{printed}");
    assert_eq!(exact, 100, "{printed}");
}

/// When the guide's first request was sent: 2026-11-15 18:51:13.5.
const GUIDE_US: u64 = 1_794_768_673_500_000;

/// The guide's `http` blocks, in order.
fn shown() -> Vec<&'static str> {
    let guide = include_str!("../../../docs/guide/middleware.md");
    guide.split("```http\n").skip(1).map(|block| block.split("```").next().unwrap()).collect()
}

/// Asserts that the block shows the response, except `content-length`.
async fn assert_shown(response: Response<Body>, block: &str) {
    let (head, body) = block.split_once("\n\n").unwrap_or((block, ""));
    let (head, ours) = (head.lines().collect::<Vec<_>>(), |name: &str| name != "content-length");
    let (parts, received) = response.into_parts();
    let fields: Vec<_> = parts.headers.iter().filter(|(name, _)| ours(name.as_str())).collect();
    assert!(fields.len() >= 5, "{fields:?}");
    for (name, value) in fields {
        let line = format!("{name}: {}", value.to_str().unwrap());
        assert!(head.contains(&&*line) || body.is_empty() && name == "content-type", "{line}");
    }
    let status = parts.status.to_string();
    assert!(head[0].ends_with(&status) || body.is_empty(), "{status}");
    let received = to_bytes(received, usize::MAX).await.unwrap();
    assert!(body.is_empty() || received == body.trim_end(), "{received:?}");
}

#[tokio::test]
async fn guide_shows_the_responses_to_an_allowed_and_a_refused_request() {
    let clock = ManualClock::at_us(GUIDE_US);
    let limit: Limit = "token-bucket capacity=60 refill=1/s".parse().unwrap();
    let scope = Limiter::builder().clock(&clock).build().scope("per-ip", limit).unwrap();
    let app = Router::new().route("/", get(|| async { "hello" })).layer(RateLimitLayer::new(scope));
    let send = || app.clone().oneshot(Request::new(Body::empty()));
    assert_shown(send().await.unwrap(), shown()[0]).await;
    for _ in 0..59 {
        assert_eq!(send().await.unwrap().status(), 200);
    }
    clock.advance(Duration::from_micros(19_786));
    assert_shown(send().await.unwrap(), shown()[1]).await;
}

#[tokio::test]
async fn guide_shows_the_headers_of_several_rules() {
    let yaml = "
limits:
  free: token-bucket capacity=10 refill=1/s
  everyone: fixed-window limit=4 window=1m
rules:
  - { name: per-client, domain: api, key: [ip], limit: free, cost: 2 }
  - { name: whole-service, domain: api, key: [], limit: everyone }
";
    let clock = ManualClock::at_us(1_794_700_800_000_000);
    let limiter = Limiter::builder().clock(&clock).build();
    let rules = Rules::new(&limiter, &Config::parse("rules.yaml", yaml).unwrap()).unwrap();
    let layer = RateLimitLayer::rules(&rules, "api");
    let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
    assert_shown(app.oneshot(Request::new(Body::empty())).await.unwrap(), shown()[2]).await;
    assert_eq!(shown().len(), 3);
}
