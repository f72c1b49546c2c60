//! Caddy with the long form of `forward_auth`, as in examples/caddy.

use std::fs;
use std::process::Command;

use crate::behaviour;
use crate::gateway::{Gateway, GatewayExample, examples};

/// The example, with enough time for a machine that is busy with other tests.
fn caddy(tollgate: u16) -> Gateway {
    start(tollgate, PATIENT)
}

/// The example without changes.
fn as_shipped(tollgate: u16) -> Gateway {
    start(tollgate, &[])
}

const PATIENT: &[(&str, &str)] = &[
    ("_timeout 250ms", "_timeout 30s"),
    ("response_header_timeout 3s", "response_header_timeout 15s"),
    ("max_wait_us=2000000", "max_wait_us=10000000"),
];

fn start(tollgate: u16, changes: &[(&str, &str)]) -> Gateway {
    let example = GatewayExample::of("caddy", tollgate);
    example.edit("caddy/Caddyfile", changes);
    run(example)
}

/// The short form that docs/guide/gateways.md shows.
fn short_form(tollgate: u16) -> Gateway {
    start_short_form(tollgate, &[])
}

/// The short form, with enough time for a machine that is busy with other tests.
fn patient_short_form(tollgate: u16) -> Gateway {
    start_short_form(tollgate, &PATIENT[..1])
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
fn each_client_has_its_own_quota_and_sees_what_is_left() {
    behaviour::each_client_has_its_own_quota_and_sees_what_is_left(caddy);
}

#[test]
fn spoofed_headers_change_nothing() {
    behaviour::spoofed_headers_change_nothing(caddy);
}

#[test]
fn a_clients_query_changes_nothing() {
    behaviour::a_clients_query_changes_nothing(caddy);
    behaviour::a_clients_query_changes_nothing(patient_short_form);
}

#[test]
fn oddly_written_paths_are_refused() {
    behaviour::oddly_written_paths_are_refused(caddy);
}

#[test]
fn a_stalled_store_follows_each_rules_policy() {
    behaviour::a_stalled_store_follows_each_rules_policy(caddy);
}

#[test]
fn a_shaping_limit_delays_requests() {
    behaviour::a_shaping_limit_delays_requests(caddy);
}

#[test]
fn requests_pass_or_fail_as_configured_when_the_server_is_gone() {
    assert_eq!(behaviour::while_the_server_is_gone(caddy), [200, 502]);
}

#[test]
fn requests_pass_or_fail_promptly_when_the_server_is_frozen() {
    assert_eq!(behaviour::while_the_server_is_frozen(as_shipped), [200, 504]);
}

#[test]
fn the_short_form_fails_closed_promptly_when_the_server_is_frozen() {
    assert_eq!(behaviour::while_the_server_is_frozen(short_form), [504, 504]);
}

#[test]
fn a_shaping_limit_refuses_on_routes_that_do_not_wait() {
    behaviour::a_shaping_limit_refuses_on_routes_that_do_not_wait(caddy);
}

#[test]
fn long_heads_are_not_let_through() {
    behaviour::long_heads_are_not_let_through(caddy);
}

#[test]
fn an_untrusted_proxy_is_refused() {
    assert_eq!(behaviour::status_when_the_gateway_is_not_trusted(caddy), 403);
}

#[test]
fn one_command_starts_the_example() {
    behaviour::one_command_starts_the_example("caddy");
}

#[test]
fn the_ports_of_the_example_can_be_changed() {
    behaviour::the_ports_of_the_example_can_be_changed("caddy", "Caddyfile");
}

#[test]
fn a_waiting_client_that_disconnects_frees_its_place() {
    behaviour::a_waiting_client_that_disconnects_frees_its_place(caddy);
}
