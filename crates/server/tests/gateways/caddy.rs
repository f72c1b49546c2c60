//! Caddy with the long form of `forward_auth`, as in examples/caddy.

use std::fs;
use std::process::Command;

use crate::behaviour;
use crate::gateway::{Gateway, GatewayExample, examples};

/// Starts the example with a long timeout, because the machine can be busy with other tests.
fn caddy(tollgate: u16) -> Gateway {
    start(tollgate, LONG_TIMEOUT)
}

/// Starts the example without changes.
fn unchanged_example(tollgate: u16) -> Gateway {
    start(tollgate, &[])
}

/// The changes that give the example a long timeout.
const LONG_TIMEOUT: &[(&str, &str)] = &[
    ("_timeout 250ms", "_timeout 30s"),
    ("response_header_timeout 3s", "response_header_timeout 15s"),
    ("max_wait_us=2000000", "max_wait_us=10000000"),
];

fn start(tollgate: u16, changes: &[(&str, &str)]) -> Gateway {
    let example = GatewayExample::of("caddy", tollgate);
    example.edit("caddy/Caddyfile", changes);
    run(example)
}

/// Starts Caddy with the short form in docs/guide/gateways.md.
fn short_form(tollgate: u16) -> Gateway {
    start_short_form(tollgate, &[])
}

/// Starts the short form with a long timeout, because the machine can be busy with other tests.
fn short_form_with_long_timeout(tollgate: u16) -> Gateway {
    start_short_form(tollgate, &LONG_TIMEOUT[..1])
}

fn start_short_form(tollgate: u16, changes: &[(&str, &str)]) -> Gateway {
    let example = GatewayExample::of("caddy", tollgate);
    let guide = fs::read_to_string(examples().join("../docs/guide/gateways.md")).unwrap();
    let short = guide.split("```\n").find(|block| block.starts_with("forward_auth ")).unwrap();
    let [own, service, ..] = example.variables().map(|(_, port)| port);
    let short = short.replace("127.0.0.1:8080", &format!("127.0.0.1:{tollgate}"));
    let text = format!(
        "{{\nadmin off\nauto_https off\n}}\n\
         http://127.0.0.1:{own} {{\nroute {{\n{short}reverse_proxy 127.0.0.1:{service}\n}}\n}}\n\
         http://127.0.0.1:{service} {{\nrespond hello\n}}\n"
    );
    fs::write(example.path("caddy/Caddyfile"), text).unwrap();
    example.edit("caddy/Caddyfile", changes);
    run(example)
}

fn run(example: GatewayExample) -> Gateway {
    let mut command = Command::new("caddy");
    command
        .args(["run", "--adapter", "caddyfile", "--config"])
        .arg(example.path("caddy/Caddyfile"));
    command.env("XDG_DATA_HOME", example.path("")).env("XDG_CONFIG_HOME", example.path(""));
    example.start(&mut command)
}

#[test]
fn each_client_has_its_own_quota_and_sees_what_remains() {
    behaviour::each_client_has_its_own_quota_and_sees_what_remains(caddy);
}

#[test]
fn spoofed_headers_change_nothing() {
    behaviour::spoofed_headers_change_nothing(caddy);
}

#[test]
fn query_of_a_client_changes_nothing() {
    behaviour::query_of_a_client_changes_nothing(caddy);
    behaviour::query_of_a_client_changes_nothing(short_form_with_long_timeout);
}

#[test]
fn ambiguous_paths_are_refused() {
    behaviour::ambiguous_paths_are_refused(caddy);
}

#[test]
fn each_rule_follows_its_failure_policy_when_the_store_stalls() {
    behaviour::each_rule_follows_its_failure_policy_when_the_store_stalls(caddy);
}

#[test]
fn shaping_limit_delays_requests() {
    behaviour::shaping_limit_delays_requests(caddy);
}

#[test]
fn requests_pass_or_fail_as_configured_when_the_server_is_down() {
    assert_eq!(behaviour::statuses_without_the_server(caddy), [200, 502]);
}

#[test]
fn requests_pass_or_fail_promptly_when_the_server_is_frozen() {
    assert_eq!(behaviour::statuses_with_a_frozen_server(unchanged_example), [200, 504]);
}

#[test]
fn short_form_fails_closed_promptly_when_the_server_is_frozen() {
    assert_eq!(behaviour::statuses_with_a_frozen_server(short_form), [504, 504]);
}

#[test]
fn shaping_limit_refuses_on_routes_that_do_not_wait() {
    behaviour::shaping_limit_refuses_on_routes_that_do_not_wait(caddy);
}

#[test]
fn requests_with_long_heads_do_not_pass() {
    behaviour::requests_with_long_heads_do_not_pass(caddy);
}

#[test]
fn untrusted_proxy_is_refused() {
    assert_eq!(behaviour::status_when_the_gateway_is_not_trusted(caddy), 403);
}

#[test]
fn one_command_starts_the_example() {
    behaviour::one_command_starts_the_example("caddy");
}

#[test]
fn ports_of_the_example_can_be_changed() {
    behaviour::ports_of_the_example_can_be_changed("caddy", "Caddyfile");
}

#[test]
fn client_that_disconnects_frees_its_place_in_the_queue() {
    behaviour::client_that_disconnects_frees_its_place_in_the_queue(caddy);
}
