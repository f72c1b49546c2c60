//! The server under attack, and the clients that it has to answer meanwhile.

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

/// Held by the test that runs.
static ALONE: Mutex<()> = Mutex::new(());

/// A server for one test, while no other test runs.
pub(crate) struct FloodTarget {
    pub(crate) server: ServerProcess,
    _file: TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl FloodTarget {
    pub(crate) fn start(flags: &[&str]) -> FloodTarget {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rules.yaml");
        std::fs::write(&path, RULES).unwrap();
        let flags = [&["--config", path.to_str().unwrap()], flags].concat();
        FloodTarget { server: ServerProcess::start(&flags), _file: directory, _alone: alone }
    }

    pub(crate) fn scrape(&self) -> Page {
        Page::parse(&self.server.get("/metrics").send().unwrap().text().unwrap())
    }

    /// How many gRPC connections were closed for a reason.
    pub(crate) fn closed(&self, reason: &str) -> f64 {
        let labels = [("port", "grpc"), ("reason", reason)];
        self.scrape().value("tollgate_connections_closed_total", &labels)
    }
}

/// The most memory that the server may use with this many connections: the sum of docs/operate/running.md without
/// keys and without the playground, neither of which is used here. 64 MiB for the program and its allocator, 80 for
/// requests, 16 for pages, and 48 KiB a connection.
pub(crate) fn ceiling_kib(connections: usize) -> u64 {
    ((64 + 80 + 16) << 10) + 48 * connections as u64
}

/// The memory that a server uses now.
pub(crate) fn resident_kib(server: &ServerProcess) -> u64 {
    let path = format!("/proc/{}/status", server.pid().as_raw_nonzero());
    let status = std::fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A message of Envoy's about one user.
pub(crate) fn message(user: &str) -> Vec<u8> {
    let entry = Entry { key: "user".to_owned(), value: user.to_owned() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
    let domain = "api".to_owned();
    RateLimitRequest { domain, descriptors: vec![descriptor], hits_addend: 0 }.encode_to_vec()
}

/// Asserts that a call on a new connection is answered.
pub(crate) fn assert_answers(server: &ServerProcess, name: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let asked = async { RawClient::connect(server).await.ask_message(&message("honest")).await };
    let asked =
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), asked).await });
    let told = asked.unwrap();
    assert_eq!(told.grpc, Some(0), "{name}: {told:?}");
}

/// How long each answer to an honest client took, and the server's peak memory during that time.
#[derive(Default)]
pub(crate) struct HonestLoad {
    pub(crate) took: Vec<Duration>,
    pub(crate) most_kib: u64,
}

/// The least number of answers to honest clients.
const MIN_ANSWERS: usize = 40;

/// Sends checks over HTTP for some time. Every one must be allowed.
pub(crate) fn check_meanwhile(server: &ServerProcess, time: Duration) -> HonestLoad {
    let mut honest = HonestLoad::default();
    let start = Instant::now();
    while start.elapsed() < time || honest.took.len() < MIN_ANSWERS {
        let asked = Instant::now();
        let decision = server.check(r#"{"limit":"partner","key":"honest"}"#);
        assert_eq!(decision["allowed"], true);
        honest.took.push(asked.elapsed());
        honest.most_kib = honest.most_kib.max(resident_kib(server));
    }
    honest
}

/// Sends calls over gRPC for some time. Every one must be answered.
pub(crate) fn call_meanwhile(server: &ServerProcess, time: Duration) -> Vec<Duration> {
    let message = message("honest");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut raw = RawClient::connect(server).await;
        let (mut took, start) = (Vec::new(), Instant::now());
        while start.elapsed() < time || took.len() < MIN_ANSWERS {
            let asked = Instant::now();
            let told = raw.ask_message(&message).await;
            assert_eq!(told.grpc, Some(0), "{told:?}");
            took.push(asked.elapsed());
        }
        took
    })
}

pub(crate) fn assert_in_time(name: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let late = took.iter().filter(|took| **took > Duration::from_secs(1)).count();
    let (median, slowest) = (took[took.len() / 2], took[took.len() - 1]);
    println!("{name}: {} answers, median {median:?}, slowest {slowest:?}", took.len());
    assert!(late * 10 <= took.len(), "{name}: {late} of {} took over a second", took.len());
}
