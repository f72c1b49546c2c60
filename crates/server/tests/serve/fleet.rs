//! Several servers on one Redis.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, RwLock};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tollgate_launcher::{Flavour, Launch};

use crate::eventually::eventually;
use crate::kept_connection::KeptConnection;
use crate::readiness::readyz;
use crate::server::ServerProcess;

const THREADS: usize = 8;

/// Limits that are so slow that no whole unit is refilled while a test runs. They fail closed, so that the store counted
/// every allowed request.
const LIMITS: &str = "
defaults: { on_store_failure: closed }
limits:
  fixed:    fixed-window limit=300 window=366d
  log:      sliding-window-log limit=300 window=1d
  counter:  sliding-window-counter limit=300 window=366d
  token:    token-bucket capacity=300 refill=1/d
  policing: leaky-bucket capacity=300 leak=1/d mode=policing
  shaping:  leaky-bucket capacity=300 leak=1/d mode=shaping
  small:    token-bucket capacity=100 refill=1/d
  rolling:  token-bucket capacity=1000 refill=1/d
rules:
  - { name: everyone, domain: api, key: [], limit: token }
  - { name: per-client, domain: api, key: [client], limit: small }
";

/// Servers that share a Redis and a file.
struct Fleet {
    redis: tollgate_launcher::Server,
    config: String,
    _directory: TempDir,
}

impl Fleet {
    fn new() -> Fleet {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limits.yaml");
        fs::write(&path, LIMITS).unwrap();
        let config = path.to_str().unwrap().to_owned();
        Fleet { redis: Launch::new(Flavour::Redis).start().unwrap(), config, _directory: directory }
    }

    /// Starts a server with a long store deadline, because the machine can be busy with other tests.
    fn start(&self) -> ServerProcess {
        let store = ["--store", &self.redis.url(), "--store-deadline", "20s"];
        let others = ["--config", &self.config, "--drain-delay", "1s"];
        ServerProcess::start(&[store, others].concat())
    }
}

/// Returns the number of times that each body is allowed when each thread sends it `times_each` times, all at the same time.
fn allowed(servers: &[ServerProcess], bodies: &[String], times_each: usize) -> Vec<u64> {
    let allowed: Vec<AtomicU64> = bodies.iter().map(|_| AtomicU64::new(0)).collect();
    let together = Barrier::new(THREADS);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (allowed, together) = (&allowed, &together);
            scope.spawn(move || {
                let mut kept = KeptConnection::open(&servers[number % servers.len()].url).unwrap();
                for (body, allowed) in bodies.iter().zip(allowed) {
                    together.wait();
                    for _ in 0..times_each / THREADS {
                        let answer = kept.check(body).unwrap();
                        assert_eq!(answer.status, 200, "{}", answer.body);
                        let is_allowed = answer.body["allowed"].as_bool().unwrap();
                        allowed.fetch_add(is_allowed.into(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    allowed.into_iter().map(AtomicU64::into_inner).collect()
}

#[test]
fn three_servers_together_admit_exactly_the_limit_of_every_algorithm() {
    let fleet = Fleet::new();
    let servers: Vec<ServerProcess> = (0..3).map(|_| fleet.start()).collect();
    let limits = ["fixed", "log", "counter", "token", "policing", "shaping"];
    let body = |limit| format!(r#"{{"limit":"{limit}","key":"user:42"}}"#);
    assert_eq!(allowed(&servers, &limits.map(body), 400), [300; 6]);
}

#[test]
fn three_servers_admit_exactly_the_tightest_of_several_rules() {
    let fleet = Fleet::new();
    let servers: Vec<ServerProcess> = (0..3).map(|_| fleet.start()).collect();
    let clients = ["a", "b", "c", "d"];
    let body = |client| format!(r#"{{"domain":"api","attributes":{{"client":"{client}"}}}}"#);
    // The first three clients spend the shared limit, so the fourth client gets nothing. Their denials charged nothing to it.
    assert_eq!(allowed(&servers, &clients.map(body), 160), [100, 100, 100, 0]);
}

#[test]
fn quotas_survive_a_restart_on_redis_and_not_in_memory() {
    let fleet = Fleet::new();
    let body = r#"{"limit":"token","key":"user:42"}"#;
    let in_memory = || ServerProcess::start(&["--config", &fleet.config, "--drain-delay", "0s"]);
    for remaining in [299, 298] {
        let server = fleet.start();
        assert_eq!(server.check(body)["remaining"], remaining);
        let server = in_memory();
        assert_eq!(server.check(body)["remaining"], 299);
    }
}

/// A load balancer that knows which of its servers are ready.
#[derive(Default)]
struct Balancer {
    servers: RwLock<Vec<Arc<BalancedServer>>>,
    is_over: AtomicBool,
}

struct BalancedServer {
    url: String,
    is_ready: AtomicBool,
}

impl Balancer {
    fn add(&self, server: &ServerProcess) {
        let known = BalancedServer { url: server.url.clone(), is_ready: AtomicBool::new(false) };
        self.servers.write().unwrap().push(Arc::new(known));
        eventually("the balancer sees that the server is ready", || {
            self.has_ready(&server.url).then_some(())
        });
    }

    fn has_ready(&self, url: &str) -> bool {
        let servers = self.servers.read().unwrap();
        let mut known = servers.iter().filter(|known| known.url == url);
        known.any(|known| known.is_ready.load(Ordering::SeqCst))
    }

    /// Returns the servers that are ready.
    fn ready(&self) -> Vec<Arc<BalancedServer>> {
        let servers = self.servers.read().unwrap();
        let ready = servers.iter().filter(|known| known.is_ready.load(Ordering::SeqCst));
        ready.cloned().collect()
    }

    /// Polls `/readyz` of every server until the test is over.
    fn poll(&self) {
        let client = reqwest::blocking::Client::new();
        while !self.is_over.load(Ordering::SeqCst) {
            let servers = self.servers.read().unwrap().clone();
            for known in servers {
                let answer = client.get(format!("{}/readyz", known.url)).send();
                let is_ready = answer.is_ok_and(|answer| answer.status() == 200);
                known.is_ready.store(is_ready, Ordering::SeqCst);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends requests to the servers in turn until the test is over and the limit is spent. Every request must be
    /// answered. Returns the number of allowed requests.
    fn load(&self, body: &str) -> u64 {
        let mut kept: HashMap<String, KeptConnection> = HashMap::new();
        let mut allowed = 0;
        for turn in 0.. {
            let ready = self.ready();
            assert!(!ready.is_empty(), "no server is ready");
            let url = &ready[turn % ready.len()].url;
            let mut connection =
                kept.remove(url).unwrap_or_else(|| KeptConnection::open(url).unwrap());
            let answer = connection.check(body).unwrap();
            assert_eq!(answer.status, 200, "{}", answer.body);
            if !answer.is_last {
                kept.insert(url.clone(), connection);
            }
            let is_allowed = answer.body["allowed"].as_bool().unwrap();
            allowed += u64::from(is_allowed);
            if !is_allowed && self.is_over.load(Ordering::SeqCst) {
                break;
            }
        }
        allowed
    }
}

#[test]
fn rolling_restart_under_load_loses_no_request() {
    let fleet = Fleet::new();
    let balancer = Balancer::default();
    let body = r#"{"limit":"rolling","key":"user:42"}"#;
    thread::scope(|scope| {
        // Ends the other threads when it is dropped, even if the test fails.
        let over = EndLoad(&balancer);
        scope.spawn(|| balancer.poll());
        let servers: Vec<ServerProcess> = (0..3).map(|_| fleet.start()).collect();
        servers.iter().for_each(|server| balancer.add(server));
        let loads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| balancer.load(body))).collect();
        let mut replacements = Vec::new();
        for server in servers {
            server.signal(Signal::TERM);
            let (status, log) = server.wait();
            assert_eq!(status.code(), Some(0), "{log}");
            assert!(log.contains("everything in flight was answered"), "{log}");
            let replacement = fleet.start();
            balancer.add(&replacement);
            replacements.push(replacement);
        }
        drop(over);
        let allowed: u64 = loads.into_iter().map(|load| load.join().unwrap()).sum();
        assert_eq!(allowed, 1_000);
        replacements.iter().for_each(|server| assert_eq!(readyz(server).0, 200));
    });
}

/// Ends a balancer's threads when it is dropped.
struct EndLoad<'a>(&'a Balancer);

impl Drop for EndLoad<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
    }
}
