//! Tests that apply to every gateway that sends requests to `/v1/authorize`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use reqwest::Method;
use reqwest::blocking::RequestBuilder;
use tempfile::NamedTempFile;
use tollgate_launcher::{Flavour, Launch, Proxy};

use crate::eventually::eventually;
use crate::frozen::{FrozenServer, prompt_status};
use crate::gateway::{
    Gateway, GatewayExample, configuration, examples, header, is_free, port_of, with_ports,
};
use crate::server::ServerProcess;

/// A function that starts a gateway in front of a server at a port.
pub(crate) type StartGateway = fn(u16) -> Gateway;

const RULES: &str = "
identity: { trusted_proxies: [127.0.0.1] }
limits:
  three: fixed-window limit=3 window=1d
  even: leaky-bucket capacity=5 leak=1/s mode=shaping
rules:
  - { name: each, domain: web, when: { path: /quota/** }, key: [ip, method, path], limit: three }
  - { name: even, domain: web, when: { path: /reports/even }, key: [ip], limit: even }
  - { name: hurried, domain: web, when: { path: /even }, key: [ip], limit: even }
  - { name: open, domain: web, when: { path: /open }, key: [ip], limit: three, on_store_failure: open }
  - { name: local, domain: web, when: { path: /local }, key: [ip], limit: three, on_store_failure: local }
  - { name: closed, domain: web, when: { path: /closed }, key: [ip], limit: three, on_store_failure: closed }
  - { name: banned, domain: web, when: { path: /banned }, key: [], limit: block }
";

/// A server, and a gateway in front of it.
pub(crate) struct Setting {
    pub(crate) server: ServerProcess,
    pub(crate) gateway: Gateway,
    _rules: NamedTempFile,
}

pub(crate) fn setting(start: StartGateway, rules: &str, flags: &[&str]) -> Setting {
    let file = NamedTempFile::with_suffix_in(".yaml", env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(file.path(), rules).unwrap();
    let server =
        ServerProcess::start(&[&["--config", file.path().to_str().unwrap()], flags].concat());
    let gateway = start(port_of(&server));
    Setting { server, gateway, _rules: file }
}

pub(crate) fn plain(start: StartGateway) -> Setting {
    setting(start, RULES, &[])
}

pub(crate) fn each_client_has_its_own_quota_and_sees_what_remains(start: StartGateway) {
    let setting = plain(start);
    let gateway = &setting.gateway;
    for left in ["2", "1", "0"] {
        let response = gateway.get("127.0.0.2", "/quota/a?page=1");
        assert_eq!(response.status(), 200, "{}", gateway.log());
        assert_eq!(header(&response, "ratelimit-policy"), "\"each\";q=3;w=86400");
        let standing = format!("\"each\";r={left};t=");
        assert!(header(&response, "ratelimit").starts_with(&standing), "{response:?}");
        assert_eq!(header(&response, "x-ratelimit-limit"), "3");
        assert_eq!(header(&response, "x-ratelimit-remaining"), left);
        let reset: u64 = header(&response, "x-ratelimit-reset").parse().unwrap();
        assert!(reset > 1_600_000_000, "Unix seconds: {reset}");
        assert_eq!(header(&response, "retry-after"), "");
        assert_eq!(response.text().unwrap(), "hello 127.0.0.2\n");
    }
    let response = gateway.get("127.0.0.2", "/quota/a?page=2");
    assert_eq!(response.status(), 429);
    assert!(header(&response, "ratelimit").starts_with("\"each\";r=0;t="), "{response:?}");
    assert_eq!(header(&response, "x-ratelimit-remaining"), "0");
    assert!((1..=86_400).contains(&header(&response, "retry-after").parse().unwrap()));
    assert_eq!(header(&response, "content-type"), "application/problem+json");
    let problem: serde_json::Value = serde_json::from_str(&response.text().unwrap()).unwrap();
    assert_eq!(problem["status"], 429);

    assert_eq!(gateway.status("127.0.0.3", "/quota/a"), 200, "another client");
    assert_eq!(gateway.status("127.0.0.2", "/quota/b"), 200, "another path");
    let posted = gateway.request("127.0.0.2", Method::POST, "/quota/a").body("x".repeat(100_000));
    assert_eq!(posted.send().unwrap().status(), 200, "another method");
    let response = gateway.get("127.0.0.2", "/elsewhere");
    assert_eq!((response.status().as_u16(), header(&response, "ratelimit")), (200, ""));
    let response = gateway.get("127.0.0.2", "/banned");
    assert_eq!(response.status(), 403);
    for invitation in ["retry-after", "ratelimit", "ratelimit-policy", "x-ratelimit-remaining"] {
        assert_eq!(header(&response, invitation), "", "{invitation}");
    }
    assert_eq!(header(&response, "content-type"), "application/problem+json");
    let problem: serde_json::Value = serde_json::from_str(&response.text().unwrap()).unwrap();
    assert_eq!((&problem["status"], &problem["title"]), (&403.into(), &"Forbidden".into()));
}

/// Each of these headers would give the client a new quota if the server believed it.
pub(crate) fn spoofed_headers_change_nothing(start: StartGateway) {
    let setting = plain(start);
    let gateway = &setting.gateway;
    let spoofed = |number: usize| {
        let (address, path) = (format!("203.0.113.{number}"), format!("/quota/{number}"));
        let mut request = gateway.request("127.0.0.4", Method::GET, "/quota/a");
        for name in ["x-forwarded-for", "x-real-ip", "x-client-ip"] {
            request = request.header(name, &address);
        }
        for name in ["x-original-uri", "x-original-url", "x-forwarded-uri", "x-forwarded-path"] {
            request = request.header(name, &path).header(name.to_uppercase(), &path);
        }
        for name in ["x-original-method", "x-forwarded-method", "x-http-method-override"] {
            request = request.header(name, "DELETE");
        }
        let request = request.header("forwarded", format!("for={address}"));
        let request = request.header("x-forwarded-host", "elsewhere.example");
        request.header("x-tollgate-reason", "none").send().unwrap().status().as_u16()
    };
    let answers: Vec<_> = (1..=5).map(spoofed).collect();
    assert_eq!(answers, [200, 200, 200, 429, 429], "{}", gateway.log());
}

/// Caddy sends the client's query to the server. Each of these queries would change an answer if the server read it.
pub(crate) fn query_of_a_client_changes_nothing(start: StartGateway) {
    let setting = plain(start);
    let queries = [
        "domain=web",
        "domain=elsewhere",
        "proxy=nginx",
        "deny_status=200",
        "deny_status=403",
        "max_wait_us=no",
        "%64omain=",
        "/v1/authorize/elsewhere",
        "%ff%00&=&?",
    ];
    for (number, query) in queries.into_iter().enumerate() {
        let status = || setting.gateway.status("127.0.0.2", &format!("/quota/{number}?{query}"));
        let answers = [status(), status(), status(), status()];
        assert_eq!(answers, [200, 200, 200, 429], "{query}: {}", setting.gateway.log());
    }
}

/// A service can treat these spellings as one path, but the rules do not.
pub(crate) fn ambiguous_paths_are_refused(start: StartGateway) {
    let setting = plain(start);
    let status = |path: &str| {
        let address = setting.gateway.url.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[9..12]).into_owned()
    };
    let letters =
        ["/quota/%61", "/%71uota/a", "/quot%4F", "/%5A", "/%70", "/%30", "/%2d", "/%5f", "/%7E"];
    let segments =
        ["//quota/a", "/./quota/a", "/x/../quota/a", "/quota/.", "/x/..?a", "/quota%2fa", "/%2E/a"];
    for path in letters.iter().chain(&segments) {
        assert_eq!(status(path), "400", "{path}");
    }
    let plain = [
        "/quota/a%20b",
        "/.well-known/x",
        "/x/..y",
        "/x./y",
        "/%C3%A9%25%40%5B%60%7B",
        "/x?a=//b/../%61",
    ];
    for path in plain {
        assert_eq!(status(path), "200", "{path}");
    }
}

pub(crate) fn each_rule_follows_its_failure_policy_when_the_store_stalls(start: StartGateway) {
    let redis = Launch::new(Flavour::Redis).start().unwrap();
    let proxy = Proxy::start(redis.addr()).unwrap();
    let Setting { gateway, server: _server, .. } =
        setting(start, RULES, &["--store", &proxy.url()]);
    proxy.drop_replies(u64::MAX);
    for _ in 0..5 {
        let response = gateway.get("127.0.0.2", "/open");
        // Without the store the remaining quota is unknown, so the header is missing.
        assert_eq!((response.status().as_u16(), header(&response, "ratelimit")), (200, ""));
    }
    let local: Vec<_> = (0..5).map(|_| gateway.status("127.0.0.2", "/local")).collect();
    assert_eq!(local, [200, 200, 200, 429, 429]);
    let response = gateway.get("127.0.0.2", "/closed");
    assert_eq!(response.status(), 503);
    assert!(!header(&response, "retry-after").is_empty());
    proxy.pass();
    eventually("the store is back", || {
        let response = gateway.get("127.0.0.5", "/closed");
        // The store decides again: the header is present for allowed and for refused requests.
        (!header(&response, "ratelimit").is_empty()).then_some(())
    });
}

pub(crate) fn shaping_limit_delays_requests(start: StartGateway) {
    let setting = plain(start);
    let gateway = &setting.gateway;
    let began = Instant::now();
    assert_eq!(gateway.status("127.0.0.2", "/reports/even"), 200);
    assert_eq!(gateway.status("127.0.0.2", "/reports/even"), 200);
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
}

/// On these routes a delayed answer would come after the gateway's timeout, and the gateway would let the request pass.
pub(crate) fn shaping_limit_refuses_on_routes_that_do_not_wait(start: StartGateway) {
    let setting = plain(start);
    let statuses = [0; 2].map(|_| setting.gateway.status("127.0.0.2", "/even"));
    assert_eq!(statuses, [200, 429]);
}

/// The server does not read the whole head. The gateway must not treat its answer as an unreachable server.
pub(crate) fn requests_with_long_heads_do_not_pass(start: StartGateway) {
    let setting = plain(start);
    for (count, bytes) in [(1, 900_000), (8, 7_900), (120, 200), (900, 20)] {
        let value = "a".repeat(bytes);
        for _ in 0..5 {
            let request = setting.gateway.request("127.0.0.2", Method::GET, "/quota/a");
            let with =
                |request: RequestBuilder, number| request.header(format!("x-{number}"), &value);
            // A gateway can close the connection while the head is sent.
            let response = (0..count).fold(request, with).send();
            let status = response.map_or(400, |response| response.status().as_u16());
            assert!(status >= 400, "{status} to {count} headers of {bytes} bytes");
        }
    }
}

/// The gateway cancels its request to the server, and the place in the queue becomes free.
pub(crate) fn client_that_disconnects_frees_its_place_in_the_queue(start: StartGateway) {
    let rules = "
identity: { trusted_proxies: [127.0.0.1] }
limits: { slow: leaky-bucket capacity=2 leak=0.1/s mode=shaping }
rules: [{ name: slow, domain: web, key: [ip], limit: slow }]
";
    let Setting { gateway, server, _rules } = setting(start, rules, &[]);
    let wait_until_delayed = |count: &str| {
        let line = format!("tollgate_authorize_delayed {count}");
        eventually(&line, || {
            let page = server.get("/metrics").send().unwrap().text().unwrap();
            page.lines().any(|own| own == line).then_some(())
        });
    };
    let began = Instant::now();
    assert_eq!(gateway.status("127.0.0.2", "/reports/"), 200);
    thread::scope(|scope| {
        let request = gateway.request("127.0.0.2", Method::GET, "/reports/");
        let gone = scope.spawn(|| request.timeout(Duration::from_secs(2)).send());
        wait_until_delayed("1");
        assert!(gone.join().unwrap().is_err(), "the wait must outlast the client's timeout");
    });
    wait_until_delayed("0");
    assert!(began.elapsed() < Duration::from_secs(9), "the delay ran out: {began:?}");
}

/// Returns the statuses of a route that fails open and of a route that fails closed while the server is down. Asserts that
/// limits hold when the server is back.
pub(crate) fn statuses_without_the_server(start: StartGateway) -> [u16; 2] {
    let Setting { gateway, server, _rules } = plain(start);
    assert_eq!(gateway.status("127.0.0.2", "/quota/a"), 200);
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    drop(server);
    let response = gateway.get("127.0.0.2", "/quota/a");
    assert_eq!(header(&response, "ratelimit"), "");
    let statuses = [response.status().as_u16(), gateway.status("127.0.0.2", "/login")];
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["serve", "--listen", &address, "--grpc-listen", "127.0.0.1:0", "--config"]);
    let (_server, _log) = ServerProcess::start_command(command.arg(_rules.path()).env_clear());
    wait_until_decided(&gateway);
    for left in ["2", "1", "0"] {
        let response = gateway.get("127.0.0.2", "/quota/a");
        assert_eq!(
            (response.status().as_u16(), header(&response, "x-ratelimit-remaining")),
            (200, left)
        );
    }
    assert_eq!(gateway.status("127.0.0.2", "/quota/a"), 429);
    statuses
}

/// Returns the statuses of a route that fails open and of a route that fails closed while the server is frozen. Asserts
/// that the server decides again when it is resumed.
pub(crate) fn statuses_with_a_frozen_server(start: StartGateway) -> [u16; 2] {
    let Setting { gateway, server, .. } = plain(start);
    wait_until_decided(&gateway);
    let frozen = FrozenServer::new(&server);
    let statuses =
        ["/quota/a", "/login"].map(|path| prompt_status(|| gateway.get("127.0.0.2", path)));
    drop(frozen);
    wait_until_decided(&gateway);
    statuses
}

/// Waits until the server decides a request. After a failure, a gateway can avoid the server for some time, and on a busy
/// machine the server can miss the timeout.
fn wait_until_decided(gateway: &Gateway) {
    eventually("the server decides again", || {
        let response = gateway.get("127.0.0.2", "/quota/b");
        (!header(&response, "ratelimit").is_empty()).then_some(())
    });
}

/// Returns the status that a client gets if the gateway is not a trusted proxy.
pub(crate) fn status_when_the_gateway_is_not_trusted(start: StartGateway) -> u16 {
    let rules = RULES.replace("trusted_proxies: [127.0.0.1]", "trusted_proxies: [10.0.0.1]");
    let Setting { gateway, server, .. } = setting(start, &rules, &[]);
    let status = gateway.status("127.0.0.2", "/quota/a");
    server.wait_for_log(|log| log.contains("identity.trusted_proxies"));
    status
}

/// The script of an example starts and stops all of its programs.
pub(crate) fn one_command_starts_the_example(folder: &str) {
    let tollgate = crate::gateway::free_port();
    let example = GatewayExample::of(folder, tollgate);
    let mut command = Command::new("bash");
    command.arg(examples().join(folder).join("run")).envs(example.variables());
    command.env("TOLLGATE", env!("CARGO_BIN_EXE_tollgate"));
    let gateway = example.start(&mut command);
    eventually("a request is limited", || {
        let response = gateway.get("127.0.0.2", "/");
        (!header(&response, "ratelimit").is_empty()).then_some(())
    });
    let answers: Vec<_> = (0..6).map(|_| gateway.status("127.0.0.3", "/")).collect();
    assert_eq!(answers[..5], [200; 5]);
    let url = gateway.url.clone();
    let log = gateway.log();
    assert!(log.contains(&format!("curl -i {url}/")), "{log}");
    assert!(gateway.interrupt(), "{log}");
    assert!(is_free(&url) && is_free(&format!("http://127.0.0.1:{tollgate}")));
}

pub(crate) fn ports_of_the_example_can_be_changed(folder: &str, file: &str) {
    let variables = [("PORT", "8080"), ("SERVICE_PORT", "8000"), ("HTTP_PORT", "8001")];
    let moved = [("8000", "8080"), ("8001", "8000"), ("8080", "8001")];
    let example = std::fs::read_to_string(examples().join(folder).join(file)).unwrap();
    assert_eq!(configuration(folder, &variables), with_ports(&example, "127.0.0.1:", &moved));
}
