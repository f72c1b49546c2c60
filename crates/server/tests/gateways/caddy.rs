//! Caddy with what `forward_auth` is short for, as in examples/caddy.

use std::process::Command;

use crate::behaviour;
use crate::gateway::{Example, Gateway};

fn caddy(tollgate: u16) -> Gateway {
    let example = Example::of("caddy", tollgate);
    let mut command = Command::new("caddy");
    command
        .args(["run", "--adapter", "caddyfile", "--config"])
        .arg(example.path("caddy/Caddyfile"));
    command.env("XDG_DATA_HOME", example.path("")).env("XDG_CONFIG_HOME", example.path(""));
    example.start(&mut command)
}

#[test]
fn each_client_has_its_quota_and_is_told_how_it_stands() {
    behaviour::each_client_has_its_quota_and_is_told_how_it_stands(caddy);
}

#[test]
fn what_a_client_says_of_itself_changes_nothing() {
    behaviour::what_a_client_says_of_itself_changes_nothing(caddy);
}

#[test]
fn a_clients_query_changes_nothing() {
    behaviour::a_clients_query_changes_nothing(caddy);
}

#[test]
fn oddly_written_paths_are_refused() {
    behaviour::oddly_written_paths_are_refused(caddy);
}

#[test]
fn a_stalled_store_does_what_each_rule_says() {
    behaviour::a_stalled_store_does_what_each_rule_says(caddy);
}

#[test]
fn a_shaping_limit_holds_requests_back() {
    behaviour::a_shaping_limit_holds_requests_back(caddy);
}

#[test]
fn requests_are_answered_502_while_the_server_is_gone() {
    assert_eq!(behaviour::while_the_server_is_gone(caddy), 502);
}

#[test]
fn a_proxy_that_is_not_trusted_is_told_so() {
    assert_eq!(behaviour::who_is_not_trusted(caddy), 403);
}

#[test]
fn one_command_starts_the_example() {
    behaviour::one_command_starts_the_example("caddy");
}

#[test]
fn a_port_of_the_example_may_be_anothers() {
    behaviour::a_port_of_the_example_may_be_anothers("caddy", "Caddyfile");
}

#[test]
fn a_client_that_goes_away_while_it_waits_gives_its_place_back() {
    behaviour::a_client_that_goes_away_while_it_waits_gives_its_place_back(caddy);
}
