//! A service, a server, and an Envoy in front of the service.

use std::fs;

use reqwest::StatusCode;
use reqwest::blocking::{Client, Response};
use tempfile::TempDir;

use crate::envoy::config::EnvoyConfig;
use crate::envoy::process::Envoy;
use crate::envoy::upstream::Upstream;
use crate::prometheus::Page;
use crate::server::ServerProcess;

/// The three processes, which are stopped when this is dropped.
pub(crate) struct EnvoyFront {
    pub(crate) envoy: Envoy,
    pub(crate) server: ServerProcess,
    pub(crate) upstream: Upstream,
    pub(crate) client: Client,
}

impl EnvoyFront {
    /// Starts all three with rules for the domain `envoy` and a long timeout.
    pub(crate) fn start(rules: &str) -> EnvoyFront {
        EnvoyFront::with(rules, EnvoyConfig::new(), &[])
    }

    /// Starts all three with another configuration of Envoy and more flags of the server.
    pub(crate) fn with(rules: &str, config: EnvoyConfig, flags: &[&str]) -> EnvoyFront {
        let (_directory, rules) = file(rules);
        EnvoyFront::before(ServerProcess::start(&[&["--config", &rules], flags].concat()), config)
    }

    /// Starts Envoy and the service for a running server.
    pub(crate) fn before(server: ServerProcess, config: EnvoyConfig) -> EnvoyFront {
        let upstream = Upstream::start();
        let envoy = Envoy::start(&config.between(&[&server.grpc], upstream.port));
        EnvoyFront { envoy, server, upstream, client: Client::new() }
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.get_as(path, &[])
    }

    /// Sends a GET with headers.
    pub(crate) fn get_as(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        let request = self.client.get(format!("{}{path}", self.envoy.url));
        let with = |request: reqwest::blocking::RequestBuilder, (name, value): &(&str, &str)| {
            request.header(*name, *value)
        };
        headers.iter().fold(request, with).send().unwrap()
    }

    /// Returns the statuses of `count` requests, sent one after the other.
    pub(crate) fn statuses(&self, path: &str, count: usize) -> Vec<StatusCode> {
        (0..count).map(|_| self.get(path).status()).collect()
    }

    /// Returns the server's metrics.
    pub(crate) fn metrics(&self) -> Page {
        Page::parse(&self.server.get("/metrics").send().unwrap().text().unwrap())
    }

    /// Returns Envoy's count of one kind of answer: `ok`, `over_limit`, `error` or `failure_mode_allowed`.
    pub(crate) fn counted(&self, what: &str) -> u64 {
        self.envoy.stat(&format!("cluster.service.ratelimit.{what}"))
    }
}

/// Returns a header as text.
pub(crate) fn header<'r>(response: &'r Response, name: &str) -> Option<&'r str> {
    let mut values = response.headers().get_all(name).iter();
    let value = values.next().map(|value| value.to_str().unwrap());
    assert!(values.next().is_none(), "there are two headers {name}: {:?}", response.headers());
    value
}

/// Writes rules to a file.
pub(crate) fn file(rules: &str) -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    fs::write(&path, rules).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (directory, path)
}
