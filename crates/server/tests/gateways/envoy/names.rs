//! Several servers behind one name, like pods behind a headless Service.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::thread;

use reqwest::blocking::Client;

use crate::envoy::config::EnvoyConfig;
use crate::envoy::front::file;
use crate::envoy::process::Envoy;
use crate::envoy::upstream::Upstream;
use crate::eventually::eventually;
use crate::prometheus::Page;
use crate::server::ServerProcess;

const RULES: &str = "
limits: { many: fixed-window limit=1000000 window=366d }
rules: [{ name: each, domain: envoy, key: [ip], limit: many }]
";

/// The endpoint that docs/guide/gateways.md shows for Kubernetes.
const NAME: &str = "tollgate-grpc.tollgate.svc.cluster.local";

/// Starts a DNS server that answers every question with two addresses, and returns its port. The server ends with the
/// process.
fn start_dns() -> u16 {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut question) {
            let _ = socket.send_to(&dns_answer(&question[..length]), client);
        }
    });
    port
}

/// Returns a DNS answer: the header with two answers, the unchanged question, and an A record for each address (RFC 1035,
/// section 4).
fn dns_answer(question: &[u8]) -> Vec<u8> {
    // The name is a list of labels, each after its length. The type and the class follow.
    let mut end = 12;
    while question[end] != 0 {
        end += 1 + usize::from(question[end]);
    }
    end += 5;
    let mut answer = question[..2].to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, 2, 0, 0, 0, 0]);
    answer.extend(&question[12..end]);
    for address in [[127, 0, 0, 1], [127, 0, 0, 2]] {
        // A pointer to the name at byte 12, then type A, class IN, 60 s, 4 bytes.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        answer.extend(address);
    }
    answer
}

/// Returns the example with the name of a headless Service, which the test's DNS server resolves.
fn config(dns_port: u16, grpc_port: &str) -> EnvoyConfig {
    let resolver = format!(
        "type: STRICT_DNS
      dns_lookup_family: V4_ONLY
      typed_dns_resolver_config:
        name: envoy.network.dns_resolver.cares
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig
          resolvers: [{{ socket_address: {{ address: 127.0.0.1, port_value: {dns_port} }} }}]
          dns_resolver_options: {{ no_default_search_domain: true }}"
    );
    let endpoint = format!("address: {NAME}, port_value: {grpc_port}");
    EnvoyConfig::new()
        .with("type: STRICT_DNS", &resolver)
        .with("address: 127.0.0.1, port_value: 8081", &endpoint)
}

#[test]
fn every_server_behind_a_name_gets_requests() {
    let (_directory, rules) = file(RULES);
    let one = ServerProcess::start(&["--config", &rules]);
    let port = one.grpc.rsplit_once(':').unwrap().1;
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--grpc-listen"]);
    command.arg(format!("127.0.0.2:{port}")).args(["--config", &rules]).env_clear();
    let (other, _log) = ServerProcess::start_command(&mut command);
    let upstream = Upstream::start();
    let config = config(start_dns(), port)
        .with("port_value: 8082", &format!("port_value: {}", upstream.port));
    let envoy = Envoy::start(&config);
    eventually("both servers are healthy", || {
        (envoy.stat("cluster.tollgate.membership_healthy") == 2).then_some(())
    });
    let client = Client::new();
    for _ in 0..10 {
        assert_eq!(client.get(format!("{}/", envoy.url)).send().unwrap().status(), 200);
    }
    let decided = [&one, &other].map(|server| {
        let page = Page::parse(&server.get("/metrics").send().unwrap().text().unwrap());
        page.value("tollgate_decisions_total", &[("rule", "each")])
    });
    assert!(decided[0] > 0.0 && decided[1] > 0.0, "{decided:?}");
}
