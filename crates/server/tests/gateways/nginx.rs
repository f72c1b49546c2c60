//! nginx with `auth_request`, as in examples/nginx.

use std::process::Command;

use reqwest::Method;

use crate::behaviour::{self, Setting, plain};
use crate::gateway::{Gateway, GatewayExample};

/// Starts the example with a long timeout, because the machine can be busy with other tests.
fn nginx(tollgate: u16) -> Gateway {
    start(tollgate, LONG_TIMEOUT)
}

/// Starts the example without changes.
fn unchanged_example(tollgate: u16) -> Gateway {
    start(tollgate, &[])
}

/// The changes that give the example a long timeout.
const LONG_TIMEOUT: &[(&str, &str)] = &[
    (" 250ms;", " 30s;"),
    ("proxy_read_timeout 3s;", "proxy_read_timeout 15s;"),
    ("max_wait_us=2000000;", "max_wait_us=10000000;"),
];

fn start(tollgate: u16, changes: &[(&str, &str)]) -> Gateway {
    let example = GatewayExample::of("nginx", tollgate);
    example.edit("nginx/nginx.conf", changes);
    let mut command = Command::new("nginx");
    command.arg("-p").arg(example.path("")).arg("-c").arg(example.path("nginx/nginx.conf"));
    example.start(&mut command)
}

#[test]
fn each_client_has_its_own_quota_and_sees_what_remains() {
    behaviour::each_client_has_its_own_quota_and_sees_what_remains(nginx);
}

#[test]
fn spoofed_headers_change_nothing() {
    behaviour::spoofed_headers_change_nothing(nginx);
}

#[test]
fn query_of_a_client_changes_nothing() {
    behaviour::query_of_a_client_changes_nothing(nginx);
}

#[test]
fn ambiguous_paths_are_refused() {
    behaviour::ambiguous_paths_are_refused(nginx);
}

#[test]
fn each_rule_follows_its_failure_policy_when_the_store_stalls() {
    behaviour::each_rule_follows_its_failure_policy_when_the_store_stalls(nginx);
}

#[test]
fn shaping_limit_delays_requests() {
    behaviour::shaping_limit_delays_requests(nginx);
}

#[test]
fn client_that_disconnects_frees_its_place_in_the_queue() {
    behaviour::client_that_disconnects_frees_its_place_in_the_queue(nginx);
}

#[test]
fn requests_pass_or_fail_as_configured_when_the_server_is_down() {
    assert_eq!(behaviour::statuses_without_the_server(nginx), OPEN_AND_CLOSED);
}

#[test]
fn requests_pass_or_fail_promptly_when_the_server_is_frozen() {
    assert_eq!(behaviour::statuses_with_a_frozen_server(unchanged_example), OPEN_AND_CLOSED);
}

/// The statuses of a route that fails open and of a route that fails closed.
const OPEN_AND_CLOSED: [u16; 2] = [200, 503];

#[test]
fn shaping_limit_refuses_on_routes_that_do_not_wait() {
    behaviour::shaping_limit_refuses_on_routes_that_do_not_wait(nginx);
}

#[test]
fn requests_with_long_heads_do_not_pass() {
    behaviour::requests_with_long_heads_do_not_pass(nginx);
}

#[test]
fn untrusted_proxy_is_a_server_error() {
    assert_eq!(behaviour::status_when_the_gateway_is_not_trusted(nginx), 500);
}

#[test]
fn one_command_starts_the_example() {
    behaviour::one_command_starts_the_example("nginx");
}

#[test]
fn ports_of_the_example_can_be_changed() {
    behaviour::ports_of_the_example_can_be_changed("nginx", "nginx.conf");
}

#[test]
fn clients_cannot_call_authorize_themselves() {
    let Setting { gateway, server, .. } = plain(nginx);
    for path in ["/_tollgate/", "/_tollgate/open", "/_tollgate/closed", "/_tollgate/shaped"] {
        assert_eq!(gateway.status("127.0.0.2", path), 404, "{path}");
    }
    let metrics = server.get("/metrics").send().unwrap().text().unwrap();
    assert!(!metrics.contains("tollgate_requests_total{endpoint=\"authorize\""), "{metrics}");
}

/// Rules use the path that the client sent, not the path that nginx has normalized.
#[test]
fn path_that_is_not_a_valid_uri_is_decided() {
    use std::io::{Read, Write};
    let setting = plain(nginx);
    let gateway = &setting.gateway;
    let address = gateway.url.strip_prefix("http://").unwrap();
    let mut answers = Vec::new();
    for _ in 0..4 {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream
            .write_all(b"GET /quota/<a>\xff HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            .unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answers.push(String::from_utf8_lossy(&answer[9..12]).into_owned());
    }
    assert_eq!(answers, ["200", "200", "200", "429"], "{}", gateway.log());
}

/// nginx accepts more headers than the server reads.
#[test]
fn request_with_too_many_headers_does_not_pass() {
    let setting = plain(nginx);
    let with = |count: usize| {
        let request = setting.gateway.request("127.0.0.2", Method::GET, "/elsewhere");
        let name = |number| format!("x-{number}");
        let request = (0..count).fold(request, |request, number| request.header(name(number), "a"));
        request.send().unwrap().status().as_u16()
    };
    assert_eq!([80, 120].map(with), [200, 500]);
}
