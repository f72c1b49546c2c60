//! A service, a server and an Envoy before them.

use std::fs;

use reqwest::StatusCode;
use reqwest::blocking::{Client, Response};
use tempfile::TempDir;

use crate::envoy::config::Config;
use crate::envoy::process::Envoy;
use crate::envoy::upstream::Upstream;
use crate::prometheus::Page;
use crate::server::Server;

/// All three, until this is dropped.
pub(crate) struct Front {
    pub(crate) envoy: Envoy,
    pub(crate) server: Server,
    pub(crate) upstream: Upstream,
    pub(crate) client: Client,
}

impl Front {
    /// With rules for the domain `envoy`, and with all the time that the server wants.
    pub(crate) fn start(rules: &str) -> Front {
        Front::with(rules, Config::new(), &[])
    }

    /// With flags of the server beside.
    pub(crate) fn with(rules: &str, config: Config, flags: &[&str]) -> Front {
        let (_directory, rules) = file(rules);
        Front::before(Server::start(&[&["--config", &rules], flags].concat()), config)
    }

    /// With a server that runs.
    pub(crate) fn before(server: Server, config: Config) -> Front {
        let upstream = Upstream::start();
        let envoy = Envoy::start(&config.between(&[&server.grpc], upstream.port));
        Front { envoy, server, upstream, client: Client::new() }
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.get_as(path, &[])
    }

    /// With headers.
    pub(crate) fn get_as(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        let request = self.client.get(format!("{}{path}", self.envoy.url));
        let with = |request: reqwest::blocking::RequestBuilder, (name, value): &(&str, &str)| {
            request.header(*name, *value)
        };
        headers.iter().fold(request, with).send().unwrap()
    }

    /// The statuses of so many requests, one after the other.
    pub(crate) fn statuses(&self, path: &str, count: usize) -> Vec<StatusCode> {
        (0..count).map(|_| self.get(path).status()).collect()
    }

    /// What the server counts.
    pub(crate) fn metrics(&self) -> Page {
        Page::parse(&self.server.get("/metrics").send().unwrap().text().unwrap())
    }

    /// What Envoy counts of the answers: `ok`, `over_limit`, `error`, `failure_mode_allowed`.
    pub(crate) fn counted(&self, what: &str) -> u64 {
        self.envoy.stat(&format!("cluster.service.ratelimit.{what}"))
    }
}

/// A header as text.
pub(crate) fn header<'r>(response: &'r Response, name: &str) -> Option<&'r str> {
    let mut values = response.headers().get_all(name).iter();
    let value = values.next().map(|value| value.to_str().unwrap());
    assert!(values.next().is_none(), "{name} is there twice: {:?}", response.headers());
    value
}

/// Rules in a file of their own.
pub(crate) fn file(rules: &str) -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    fs::write(&path, rules).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (directory, path)
}
