//! Servers that stop and restart behind an Envoy that keeps running.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use reqwest::StatusCode;
use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
use tollgate_launcher::{Flavour, Launch, free_port};

use crate::envoy::config::EnvoyConfig;
use crate::envoy::front::{EnvoyFront, file, header};
use crate::envoy::process::Envoy;
use crate::envoy::upstream::Upstream;
use crate::eventually::eventually;
use crate::server::ServerProcess;

const OK: StatusCode = StatusCode::OK;

const TWO: &str = "
limits: { two: fixed-window limit=2 window=366d }
rules: [{ name: per-address, domain: envoy, key: [ip], limit: two }]
";

/// A limit that the test does not reach.
const MANY: u64 = 1_000_000;

/// A server that can be started again with the same port and flags.
struct RestartableServer {
    grpc: String,
    flags: Vec<String>,
}

impl RestartableServer {
    fn new(flags: &[&str]) -> RestartableServer {
        let grpc = format!("127.0.0.1:{}", free_port().unwrap());
        RestartableServer { grpc, flags: flags.iter().map(|flag| (*flag).to_owned()).collect() }
    }

    fn start(&self) -> ServerProcess {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--grpc-listen", &self.grpc]);
        command.args(&self.flags).env_clear().env("TOLLGATE_MAX_CONNECTIONS", "4000");
        ServerProcess::start_command(&mut command).0
    }
}

fn kill_and_restart(config: EnvoyConfig, without_server: StatusCode) -> EnvoyFront {
    let (_directory, rules) = file(TWO);
    let place = RestartableServer::new(&["--config", &rules]);
    let mut front = EnvoyFront::before(place.start(), config);
    assert_eq!(front.statuses("/", 3), [OK, OK, StatusCode::TOO_MANY_REQUESTS]);
    front.server.signal(Signal::KILL);
    eventually("Envoy notices that the server is gone", || {
        (header(&front.get("/"), "x-ratelimit-limit").is_none()).then_some(())
    });
    assert_eq!(front.statuses("/", 3), [without_server; 3]);
    front.server = place.start();
    eventually("Envoy reaches the server again", || (front.get("/").status() == 429).then_some(()));
    front
}

#[test]
fn requests_pass_while_the_server_is_down() {
    let front = kill_and_restart(EnvoyConfig::new(), OK);
    assert!(front.counted("error") >= 4);
    assert_eq!(front.counted("failure_mode_allowed"), front.counted("error"));
}

#[test]
fn requests_fail_while_the_server_is_down_when_failure_mode_is_deny() {
    let careful = EnvoyConfig::new().with("failure_mode_deny: false", "failure_mode_deny: true");
    let front = kill_and_restart(careful, StatusCode::SERVICE_UNAVAILABLE);
    assert!(front.counted("error") >= 4);
    assert_eq!(front.counted("failure_mode_allowed"), 0);
}

#[test]
fn requests_pass_while_the_server_hangs() {
    let (_directory, rules) = file(TWO);
    let front = EnvoyFront::before(
        ServerProcess::start(&["--config", &rules]),
        EnvoyConfig::with_short_timeout(),
    );
    eventually("the limit is spent", || (front.get("/").status() == 429).then_some(()));
    front.server.signal(Signal::STOP);
    // Waits until the signal has arrived.
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(front.server.pid()), options).unwrap();
    assert_eq!(front.statuses("/", 3), [OK; 3]);
    front.server.signal(Signal::CONT);
    eventually("the server decides again", || (front.get("/").status() == 429).then_some(()));
}

/// Two servers are stopped and started again in turn while requests are sent. Every request is decided and charged once.
#[test]
fn no_request_is_lost_while_servers_are_replaced_one_by_one() {
    let redis = Launch::new(Flavour::Redis).start().unwrap();
    let (_directory, rules) = file(&format!(
        "
limits: {{ many: fixed-window limit={MANY} window=366d }}
rules: [{{ name: per-address, domain: envoy, key: [ip], limit: many, on_store_failure: closed }}]
"
    ));
    let flags = ["--config", &rules, "--store", &redis.url(), "--store-deadline", "20s"];
    let flags = [&flags[..], &["--drain-delay", "3s"]].concat();
    let places = [(); 2].map(|()| RestartableServer::new(&flags));
    let mut servers = places.each_ref().map(|place| Some(place.start()));
    let upstream = Upstream::start();
    let config =
        EnvoyConfig::new().between(&places.each_ref().map(|place| &*place.grpc), upstream.port);
    let envoy = Envoy::start(&config);
    let is_over = AtomicBool::new(false);
    let sent: u64 = thread::scope(|scope| {
        let ask = || {
            let client = reqwest::blocking::Client::new();
            let mut sent = 0;
            while !is_over.load(Ordering::Relaxed) {
                let answer = client.get(&envoy.url).send().unwrap();
                assert_eq!(answer.status(), OK);
                assert!(header(&answer, "x-ratelimit-remaining").is_some(), "decided by a server");
                sent += 1;
            }
            sent
        };
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(ask)).collect();
        for (place, server) in places.iter().zip(&mut servers) {
            let old = server.take().unwrap();
            old.signal(Signal::TERM);
            let (status, log) = old.wait();
            assert!(status.success(), "{log}");
            *server = Some(place.start());
            let healthy = "cluster.tollgate.membership_healthy";
            eventually("Envoy sees the new server", || (envoy.stat(healthy) == 2).then_some(()));
        }
        is_over.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(envoy.stat("cluster.service.ratelimit.error"), 0);
    let quota = reqwest::blocking::get(format!("{}/quota", envoy.url)).unwrap();
    let left: u64 = header(&quota, "x-ratelimit-remaining").unwrap().parse().unwrap();
    assert_eq!(left, MANY - sent);
}
