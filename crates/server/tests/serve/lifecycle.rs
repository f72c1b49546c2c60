//! Starting, reloading and stopping.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::eventually::eventually;
use crate::kept_connection::{KeptConnection, head_of_check};
use crate::readiness::readyz;
use crate::server::ServerProcess;

const BODY: &str = r#"{"limit":"free","key":"user:42"}"#;

/// Returns the log without colours.
pub(crate) fn plain(log: &str) -> String {
    let mut parts = log.split("\u{1b}[");
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').unwrap().1)
}

/// Sends half of a check. The server waits for the rest.
fn half_a_check(server: &ServerProcess) -> KeptConnection {
    let mut kept = KeptConnection::open(&server.url).unwrap();
    kept.send(&format!("{}expect: 100-continue\r\n\r\n", head_of_check(BODY.len()))).unwrap();
    // The server sends this status when it begins to read the body.
    assert_eq!(kept.answer().unwrap().status, 100);
    kept.send(&BODY[..10]).unwrap();
    kept
}

fn wait_until_refused(server: &ServerProcess) {
    let address = server.url.trim_start_matches("http://");
    eventually("new connections are refused", || {
        let refused = TcpStream::connect(address).err()?;
        (refused.kind() == ErrorKind::ConnectionRefused).then_some(())
    });
}

#[test]
fn draining_server_is_unready_and_decides_until_a_second_signal() {
    let began = Instant::now();
    let server = ServerProcess::start(&["--drain-delay", "1m"]);
    server.signal(Signal::TERM);
    let readiness = eventually("the server is not ready", || {
        let (status, readiness) = readyz(&server);
        (status == 503).then_some(readiness)
    });
    assert_eq!((&readiness["ready"], &readiness["phase"]), (&false.into(), &"draining".into()));
    for _ in 0..3 {
        assert_eq!(readyz(&server).0, 503);
    }
    assert_eq!(server.check(BODY)["remaining"], 59);
    assert_eq!(server.get("/healthz").send().unwrap().text().unwrap(), "ok");
    server.signal(Signal::INT);
    let (status, log) = server.wait();
    assert!(began.elapsed() < Duration::from_secs(50), "the delay was not cut short");
    assert_eq!(status.code(), Some(0));
    assert!(plain(&log).contains("told to stop"), "{log}");
    assert!(plain(&log).contains("stopped at once"), "{log}");
    assert!(
        !log.contains("a request failed"),
        "an unready server is not logged as a failed request: {log}"
    );
}

#[test]
fn requests_in_flight_are_answered_while_new_connections_are_refused() {
    let server = ServerProcess::start(&["--drain-delay", "0s"]);
    let mut kept = half_a_check(&server);
    server.signal(Signal::TERM);
    wait_until_refused(&server);
    kept.send(&BODY[10..]).unwrap();
    let answer = kept.answer().unwrap();
    assert_eq!((answer.status, &answer.body["remaining"]), (200, &59.into()));
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0));
    // One connection or two, because the probe of `wait_until_refused` can still be counted.
    let closing = "closing: finishes what is in flight connections=";
    assert!(
        plain(&log).contains(closing) && !plain(&log).contains(&format!("{closing}0")),
        "{log}"
    );
    assert!(plain(&log).contains("everything in flight was answered"), "{log}");
}

#[test]
fn idle_connection_does_not_delay_the_stop() {
    let began = Instant::now();
    let server = ServerProcess::start(&["--drain-delay", "0s", "--drain-timeout", "1m"]);
    let mut kept = KeptConnection::open(&server.url).unwrap();
    assert_eq!(kept.check(BODY).unwrap().status, 200);
    server.signal(Signal::INT);
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(50), "{log}");
}

#[test]
fn requests_that_outlast_the_drain_timeout_are_cut() {
    let server = ServerProcess::start(&["--drain-delay", "0s", "--drain-timeout", "100ms"]);
    let mut kept = half_a_check(&server);
    server.signal(Signal::TERM);
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0));
    assert!(plain(&log).contains("stopped: some took too long cut=1"), "{log}");
    assert!(kept.answer().is_err());
}

/// A file with limits, in its own directory.
struct LimitsFile {
    path: PathBuf,
    _directory: TempDir,
}

impl LimitsFile {
    fn new(limits: &str) -> LimitsFile {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limits.yaml");
        let file = LimitsFile { path, _directory: directory };
        file.write(limits);
        file
    }

    fn write(&self, limits: &str) {
        fs::write(&self.path, limits).unwrap();
    }

    fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

const TEN: &str = "limits: { free: token-bucket capacity=10 refill=1/d }";
const TWENTY: &str = "limits: { free: token-bucket capacity=20 refill=1/d }";

fn generation(server: &ServerProcess) -> u64 {
    readyz(server).1["generation"].as_u64().unwrap()
}

#[test]
fn every_hangup_is_one_reload() {
    let file = LimitsFile::new(TEN);
    let server = ServerProcess::start(&["--config", file.path(), "--drain-delay", "0s"]);
    for reloads in 1..=3 {
        assert_eq!(generation(&server), reloads);
        server.signal(Signal::HUP);
        eventually("the file is reloaded", || (generation(&server) > reloads).then_some(()));
    }
    server.signal(Signal::TERM);
    let (_, log) = server.wait();
    assert_eq!(log.matches("rules reloaded").count(), 3, "{log}");
}

#[test]
fn hangup_without_a_file_is_logged() {
    let server = ServerProcess::start(&[]);
    server.signal(Signal::HUP);
    eventually("the server logs that it has no file", || {
        server.log().contains("there is no file to reload").then_some(())
    });
    assert_eq!(readyz(&server).0, 200);
}

#[test]
fn changed_file_is_reloaded_and_a_bad_one_changes_nothing() {
    let file = LimitsFile::new(TEN);
    let server = ServerProcess::start(&["--config", file.path()]);
    assert_eq!(server.check(BODY)["remaining"], 9);

    file.write(TWENTY);
    eventually("the new file is in effect", || (generation(&server) == 2).then_some(()));
    assert_eq!(server.check(BODY)["remaining"], 18);

    file.write(&format!("{TWENTY}\n{}", "nonsense: 1\n".repeat(100)));
    let (status, readiness) = eventually("the problem is reported", || {
        let (status, readiness) = readyz(&server);
        readiness["rules_problem"].is_string().then_some((status, readiness))
    });
    let problem = readiness["rules_problem"].as_str().unwrap();
    assert!(problem.contains("limits.yaml:2:1: "), "{problem}");
    assert!(problem.ends_with('…') && problem.chars().count() == 501, "{problem}");
    assert_eq!((status, &readiness["generation"]), (200, &2.into()));
    assert_eq!(server.check(BODY)["remaining"], 17);

    file.write(TEN);
    eventually("the problem of the file is gone", || {
        let (_, readiness) = readyz(&server);
        (readiness["generation"] == 3 && readiness["rules_problem"].is_null()).then_some(())
    });
}

/// Returns the command for a server on free ports, or on the ports of the flags.
fn command(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let ports = [("TOLLGATE_LISTEN", "127.0.0.1:0"), ("TOLLGATE_GRPC_LISTEN", "127.0.0.1:0")];
    command.arg("serve").args(flags).env_clear().envs(ports);
    command
}

/// Returns the message of a server that does not start.
fn refused(flags: &[&str]) -> String {
    let output = command(flags).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn bad_file_at_the_start_is_refused_with_all_its_problems() {
    let file =
        LimitsFile::new("limits:\n  free: token-bucket capacity=0 refill=1/d\n  pro: nonsense\n");
    let error = refused(&["--config", file.path()]);
    assert!(error.contains("limits.yaml:2:"), "{error}");
    assert!(error.contains("limits.yaml:3:") && error.contains("2 errors"), "{error}");
}

#[test]
fn address_that_is_taken_is_refused_with_its_flag() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in ["--listen", "--grpc-listen"] {
        let error = refused(&[flag, &address]);
        assert!(error.starts_with(&format!("error: {flag} {address}: ")), "{error}");
        assert!(error.contains("choose another port"), "{error}");
    }
    let error = refused(&["--listen", "203.0.113.1:8080"]);
    assert!(error.contains("0.0.0.0 for all"), "{error}");
}

#[test]
fn bad_store_url_is_refused_without_its_password() {
    for store in ["redis://user:geheim@", "postgres://user:geheim@localhost", "memroy"] {
        let error = refused(&["--store", store]);
        assert!(error.starts_with("error: --store: "), "{error}");
        assert!(!error.contains("geheim"), "{error}");
    }
    let error = refused(&["--store", "redis://127.0.0.1", "--store-prefix", "a b"]);
    assert!(error.starts_with("error: --store-prefix: "), "{error}");
    for deadline in ["0s", "61m"] {
        let error = refused(&["--store-deadline", deadline]);
        assert!(error.contains("--store-deadline") && error.contains("use 1ms to 1h"), "{error}");
    }
}

#[test]
fn first_lines_name_the_store_and_the_rules() {
    let server = ServerProcess::start(&["--max-memory", "2MiB", "--drain-delay", "0s"]);
    server.signal(Signal::TERM);
    let (_, log) = server.wait();
    assert!(log.contains("\nstore: memory, at most 2 MiB\n"), "{log}");
    assert!(log.contains("\n3 rules, 6 limits: of the example; give your own with --config\n"));
    assert!(!log.contains("reached from elsewhere"), "{log}");
}

#[test]
fn start_message_names_some_of_many_servers() {
    let servers: Vec<String> = (1..=9).map(|port| format!("127.0.0.1:{port}")).collect();
    let store = format!("redis+shards://{}", servers.join(","));
    let server = ServerProcess::start(&["--store", &store, "--drain-delay", "0s"]);
    server.signal(Signal::TERM);
    let (_, log) = server.wait();
    let line = format!("\nstore: redis at {} and 1 more\n", servers[..8].join(", "));
    assert!(log.contains(&line), "{log}");
}

#[test]
fn server_warns_of_example_rules_on_a_public_address() {
    let mut server = command(&["--listen", "0.0.0.0:0"]).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(server.stderr.take().unwrap()).lines().map_while(Result::ok);
    let is_warned = lines.take(4).any(|line| line.contains("reached from elsewhere"));
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(is_warned);
}
