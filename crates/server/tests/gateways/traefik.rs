//! The requests that Traefik sends with examples/traefik, and their answers. Traefik itself does not run here.
//!
//! ForwardAuth sends a GET to the address with the client's headers, except for the hop-by-hop ones. It sets
//! `X-Forwarded-Method`, `-Proto`, `-Host`, `-Uri` and `-For` itself unless it trusts the client's. A 2xx answer lets
//! the request pass. Every other answer goes to the client, with its status, headers and body.

use std::fs;

use reqwest::blocking::Response;

use crate::gateway::{GatewayExample, examples, header, port_of};
use crate::server::ServerProcess;

/// The address of the middleware in the example's file.
fn address(tollgate: u16) -> String {
    let example = GatewayExample::of("traefik", tollgate);
    let file = fs::read_to_string(example.path("traefik/dynamic.yaml")).unwrap();
    let line = file.lines().find_map(|line| line.trim().strip_prefix("address: "));
    line.unwrap().to_owned()
}

fn ask(server: &ServerProcess, client: &str, uri: &str) -> Response {
    let client_of = reqwest::blocking::Client::new();
    let request = client_of.get(address(port_of(server)));
    // Headers of the client that Traefik passes on.
    let request = request.header("user-agent", "curl/8").header("x-original-uri", "/login");
    let request = request.header("x-forwarded-for", client).header("x-forwarded-method", "GET");
    let request = request.header("x-forwarded-proto", "http").header("x-forwarded-uri", uri);
    request.header("x-forwarded-host", "127.0.0.1:8000").send().unwrap()
}

#[test]
fn traefiks_requests_are_answered() {
    let rules = examples().join("forward-auth.yaml");
    let server = ServerProcess::start(&["--config", rules.to_str().unwrap()]);
    for left in ["4", "3", "2"] {
        let response = ask(&server, "203.0.113.9", "/?page=1");
        assert_eq!(response.status(), 200);
        assert_eq!(header(&response, "x-ratelimit-remaining"), left);
    }
    let other = ask(&server, "203.0.113.10", "/");
    assert_eq!(header(&other, "x-ratelimit-remaining"), "4");
    let refused = (0..60).map(|_| ask(&server, "203.0.113.9", "/")).find(|own| own.status() == 429);
    assert_eq!(header(&refused.unwrap(), "retry-after"), "1");
}

/// The names are from Traefik's documentation.
#[test]
fn configuration_has_only_fields_of_traefik() {
    let example = fs::read_to_string(examples().join("traefik/dynamic.yaml")).unwrap();
    let fields: Vec<_> = example
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .filter_map(|line| line.trim().trim_start_matches("- ").split_once(':'))
        .map(|(field, _)| field)
        .collect();
    let want = [
        "http",
        "routers",
        "service",
        "entryPoints",
        "rule",
        "middlewares",
        "service",
        "middlewares",
        "tollgate",
        "forwardAuth",
        "address",
        "trustForwardHeader",
        "services",
        "service",
        "loadBalancer",
        "servers",
        "url",
    ];
    assert_eq!(fields, want);
    assert!(example.contains("trustForwardHeader: false"));
}
