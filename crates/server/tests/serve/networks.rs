//! Networks in rules, through each interface of the server.

use std::fs;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use serde_json::json;
use tempfile::TempDir;

use crate::eventually::eventually;
use crate::grpc::run;
use crate::rls::{client, descriptor, request};
use crate::server::ServerProcess;

const RULES: &str = "
identity: { trusted_proxies: [127.0.0.1] }
limits: { many: fixed-window limit=1000 window=1d }
networks: { blocked: { file: blocked.txt } }
rules:
  - { name: blocked, domain: api, when: { ip: { networks: blocked } }, key: [], limit: block }
  - name: clients
    domain: api
    key: [ip]
    limit: many
    overrides:
      - { key: { ip: 203.0.113.0/24 }, limit: block }
      - { key: { ip: 203.0.113.9 }, limit: many }
";

fn start() -> (ServerProcess, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    fs::write(&path, RULES).unwrap();
    let networks = "198.51.100.0/24 # an office\n2001:db8:0:1::/64\n2001:db8::1\n";
    fs::write(directory.path().join("blocked.txt"), networks).unwrap();
    (ServerProcess::start(&["--config", path.to_str().unwrap()]), directory)
}

fn authorized(server: &ServerProcess, ip: &str) -> bool {
    let request = server.get("/v1/authorize").header("x-forwarded-for", ip);
    let request = request.header("x-forwarded-method", "GET").header("x-forwarded-uri", "/");
    request.send().unwrap().status() == 200
}

fn checked(server: &ServerProcess, ip: &str) -> bool {
    let body = json!({"domain": "api", "attributes": {"ip": ip}});
    server.check(&body.to_string())["allowed"].as_bool().unwrap()
}

fn allowed_by_envoy(server: &ServerProcess, key: &str, value: &str) -> bool {
    let request = request(vec![descriptor(&[(key, value)])]);
    let answer = run(async { client(server).await.should_rate_limit(request).await });
    answer.unwrap().into_inner().overall_code() == Code::Ok
}

#[test]
fn networks_hold_through_every_interface() {
    let (server, _directory) = start();
    for (ip, is_allowed) in [
        ("198.51.100.7", false),
        ("198.51.101.7", true),
        ("203.0.113.8", false),
        ("203.0.113.9", true),
        ("2001:db8:0:1::7", false),
        ("2001:db8:0:2::7", true),
        ("2001:db8::1", false),
        ("2001:db8::2", true),
    ] {
        assert_eq!(authorized(&server, ip), is_allowed, "authorize {ip}");
        assert_eq!(checked(&server, ip), is_allowed, "check {ip}");
        assert_eq!(allowed_by_envoy(&server, "remote_address", ip), is_allowed, "Envoy {ip}");
        assert_eq!(allowed_by_envoy(&server, "ip", ip), is_allowed, "Envoy's ip {ip}");
    }
    let masked = |value: &str| allowed_by_envoy(&server, "masked_remote_address", value);
    assert!(!masked("198.51.100.0/24") && !masked("198.51.100.7/32"));
    assert!(masked("198.51.100.0/23"), "half of the network is not blocked");
}

#[test]
fn server_follows_its_file_of_networks() {
    let (server, directory) = start();
    assert!(authorized(&server, "192.0.2.7"));
    fs::write(directory.path().join("blocked.txt"), "192.0.2.0/24\n").unwrap();
    eventually("the network is blocked", || (!authorized(&server, "192.0.2.7")).then_some(()));
    assert!(authorized(&server, "198.51.100.7"));
}
