//! The example's configuration of Envoy, with the changes of a test.

use std::fs;
use std::path::{Path, PathBuf};

/// A timeout that a machine meets even if it is busy with other tests.
const LONG_TIMEOUT: &str = "timeout: 30s";

/// The text of examples/envoy/envoy.yaml, with other ports and the changes of a test.
#[derive(Clone)]
pub(crate) struct EnvoyConfig(String);

impl EnvoyConfig {
    /// Returns the example with its timeout of 20 ms, on free ports.
    pub(crate) fn with_short_timeout() -> EnvoyConfig {
        let text = fs::read_to_string(examples().join("envoy.yaml")).unwrap();
        let free = "port_value: 0";
        EnvoyConfig(text).with("port_value: 10000", free).with("port_value: 9901", free)
    }

    /// Returns the example with a long timeout, on free ports.
    pub(crate) fn new() -> EnvoyConfig {
        EnvoyConfig::with_short_timeout().with("timeout: 0.020s", LONG_TIMEOUT)
    }

    /// Replaces a text that occurs exactly once.
    pub(crate) fn with(self, from: &str, to: &str) -> EnvoyConfig {
        assert_eq!(self.0.matches(from).count(), 1, "{from} in examples/envoy/envoy.yaml");
        EnvoyConfig(self.0.replace(from, to))
    }

    /// Adds a route before the others, with this list of rate limits.
    pub(crate) fn route(self, path: &str, rate_limits: &str) -> EnvoyConfig {
        let name = "envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute";
        let list = rate_limits.trim().replace('\n', "\n                                ");
        let route = format!(
            "routes:
                        - match: {{ path: {path} }}
                          route: {{ cluster: service }}
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit:
                              \"@type\": type.googleapis.com/{name}
                              rate_limits:
                                {list}"
        );
        self.with("routes:", &route)
    }

    /// Sets the addresses of the servers that decide, such as `127.0.0.1:40124`, and the port of the service.
    pub(crate) fn between(self, servers: &[&str], service_port: u16) -> EnvoyConfig {
        let endpoint = |server: &&str| {
            let port = server.rsplit_once(':').unwrap().1;
            format!(
                "- endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }}"
            )
        };
        let endpoints: Vec<_> = servers.iter().map(endpoint).collect();
        let one = endpoint(&"127.0.0.1:8081");
        self.with(&one, &endpoints.join("\n              "))
            .with("port_value: 8082", &format!("port_value: {service_port}"))
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

/// Returns the directory of the example.
pub(crate) fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/envoy")
}
