//! The attacked server, and the honest clients that it has to answer during the attack.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use prost::Message;
use tempfile::TempDir;

use crate::prometheus::Page;
use crate::raw::RawClient;
use crate::server::ServerProcess;

const RULES: &str = "
limits:
  many: fixed-window limit=1000000000 window=365d
  partner: token-bucket capacity=1000000000 refill=1/s
rules: [{ name: per-user, domain: api, key: [user], limit: many }]
";

/// The lock that the running test holds.
static ONE_TEST: Mutex<()> = Mutex::new(());

/// The server of a test. No other test runs while it exists.
pub(crate) struct FloodTarget {
    pub(crate) server: ServerProcess,
    _file: TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl FloodTarget {
    pub(crate) fn start(flags: &[&str]) -> FloodTarget {
        let alone = ONE_TEST.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rules.yaml");
        std::fs::write(&path, RULES).unwrap();
        let flags = [&["--config", path.to_str().unwrap()], flags].concat();
        FloodTarget { server: ServerProcess::start(&flags), _file: directory, _alone: alone }
    }

    pub(crate) fn scrape(&self) -> Page {
        Page::parse(&self.server.get("/metrics").send().unwrap().text().unwrap())
    }

    /// Returns the number of gRPC connections that were closed for a reason.
    pub(crate) fn closed(&self, reason: &str) -> f64 {
        let labels = [("port", "grpc"), ("reason", reason)];
        self.scrape().value("tollgate_connections_closed_total", &labels)
    }
}

/// Returns the memory bound of the server with this many connections: the sum in docs/operate/running.md without keys and
/// without the playground, which are not used here. It is 64 MiB for the program and its allocator, 80 MiB for requests,
/// 16 MiB for pages, and 48 KiB for each connection.
pub(crate) fn ceiling_kib(connections: usize) -> u64 {
    ((64 + 80 + 16) << 10) + 48 * connections as u64
}

/// Returns the memory that a server uses now.
pub(crate) fn resident_kib(server: &ServerProcess) -> u64 {
    let path = format!("/proc/{}/status", server.pid().as_raw_nonzero());
    let status = std::fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Returns a message of Envoy about one user.
pub(crate) fn message(user: &str) -> Vec<u8> {
    let entry = Entry { key: "user".to_owned(), value: user.to_owned() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
    let domain = "api".to_owned();
    RateLimitRequest { domain, descriptors: vec![descriptor], hits_addend: 0 }.encode_to_vec()
}

/// Asserts that a call on a new connection is answered.
pub(crate) fn assert_answers(server: &ServerProcess, name: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let call = async { RawClient::connect(server).await.ask_message(&message("honest")).await };
    let answer =
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), call).await });
    let answer = answer.unwrap();
    assert_eq!(answer.grpc, Some(0), "{name}: {answer:?}");
}

/// The times of the answers to honest clients, and the server's peak memory during that time.
#[derive(Default)]
pub(crate) struct HonestLoad {
    pub(crate) took: Vec<Duration>,
    pub(crate) most_kib: u64,
}

/// The smallest number of answers to honest clients.
const MIN_ANSWERS: usize = 40;

/// Sends checks over HTTP for some time. Every check must be allowed.
pub(crate) fn send_checks(server: &ServerProcess, time: Duration) -> HonestLoad {
    let mut honest = HonestLoad::default();
    let start = Instant::now();
    while start.elapsed() < time || honest.took.len() < MIN_ANSWERS {
        let sent = Instant::now();
        let decision = server.check(r#"{"limit":"partner","key":"honest"}"#);
        assert_eq!(decision["allowed"], true);
        honest.took.push(sent.elapsed());
        honest.most_kib = honest.most_kib.max(resident_kib(server));
    }
    honest
}

/// Sends calls over gRPC for some time. Every call must be answered.
pub(crate) fn send_calls(server: &ServerProcess, time: Duration) -> Vec<Duration> {
    let message = message("honest");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut raw = RawClient::connect(server).await;
        let (mut took, start) = (Vec::new(), Instant::now());
        while start.elapsed() < time || took.len() < MIN_ANSWERS {
            let sent = Instant::now();
            let answer = raw.ask_message(&message).await;
            assert_eq!(answer.grpc, Some(0), "{answer:?}");
            took.push(sent.elapsed());
        }
        took
    })
}

pub(crate) fn assert_in_time(name: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let late = took.iter().filter(|took| **took > Duration::from_secs(1)).count();
    let (median, slowest) = (took[took.len() / 2], took[took.len() - 1]);
    println!("{name}: {} answers, median {median:?}, slowest {slowest:?}", took.len());
    assert!(late * 10 <= took.len(), "{name}: {late} of {} answers took over a second", took.len());
}
