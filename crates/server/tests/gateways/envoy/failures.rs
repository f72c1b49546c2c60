//! If the store does not answer, the failure policies of the rules decide, within Envoy's timeout. If the server does not
//! answer, `failure_mode_deny` decides after `timeout`.

use reqwest::StatusCode;
use tollgate_launcher::{Flavour, Launch};

use crate::envoy::config::EnvoyConfig;
use crate::envoy::front::{EnvoyFront, header};
use crate::eventually::eventually;
use crate::frozen::{FrozenServer, prompt_status};

const OK: StatusCode = StatusCode::OK;
const REFUSED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

const RULES: &str = "
limits: { three: fixed-window limit=3 window=366d }
rules:
  - { name: open, domain: envoy, when: { path: /open }, key: [], limit: three, on_store_failure: open }
  - { name: local, domain: envoy, when: { path: /local }, key: [], limit: three, on_store_failure: local }
  - { name: closed, domain: envoy, when: { path: /closed }, key: [], limit: three, on_store_failure: closed }
";

/// Envoy waits longer than the store's deadline, and long enough for a machine that is busy with other tests.
const DEADLINE: &str = "200ms";
const TIMEOUT: &str = "timeout: 10s";

#[test]
fn each_policy_decides_regardless_of_envoys_failure_mode() {
    for mode in ["failure_mode_deny: false", "failure_mode_deny: true"] {
        let redis = Launch::new(Flavour::Redis).start().unwrap();
        let config = EnvoyConfig::with_short_timeout()
            .with("timeout: 0.020s", TIMEOUT)
            .with("failure_mode_deny: false", mode);
        let flags = ["--store", &redis.url(), "--store-deadline", DEADLINE];
        let front = EnvoyFront::with(RULES, config, &flags);
        assert_eq!(front.get("/closed").status(), OK, "{mode}");
        redis.freeze();
        assert_eq!(front.statuses("/open", 6), [OK; 6], "{mode}");
        assert_eq!(front.statuses("/local", 5), [OK, OK, OK, REFUSED, REFUSED], "{mode}");
        assert_eq!(front.statuses("/closed", 2), [REFUSED; 2], "{mode}");
        let refused = front.get("/closed");
        assert_eq!(header(&refused, "x-tollgate-reason"), Some("store-failed"), "{mode}");
        front.envoy.wait_for_log(|log| log.contains("429 rule=- reason=store-failed"));
        assert_eq!(["error", "failure_mode_allowed"].map(|what| front.counted(what)), [0, 0]);
        redis.thaw();
    }
}

/// Only the ports differ from the example.
#[test]
fn server_answers_within_the_20_ms_of_envoy() {
    let rules = "
limits: { many: fixed-window limit=1000000 window=366d }
rules: [{ name: per-address, domain: envoy, key: [ip], limit: many }]
";
    let redis = Launch::new(Flavour::Redis).start().unwrap();
    let front =
        EnvoyFront::with(rules, EnvoyConfig::with_short_timeout(), &["--store", &redis.url()]);
    let degraded = || {
        let labels = [("rule", "per-address"), ("degraded", "true")];
        front.metrics().value("tollgate_decisions_total", &labels)
    };
    // Retries, because a busy machine can suspend a process for longer than 20 ms.
    eventually("ten in a row are answered in time", || {
        eventually("the store decides", || {
            header(&front.get("/"), "x-ratelimit-limit").map(|_| ())
        });
        let before = (degraded(), front.counted("error"));
        redis.freeze();
        assert_eq!(front.statuses("/", 10), [OK; 10]);
        redis.thaw();
        let in_time = (before.0 + 10.0, before.1);
        ((degraded(), front.counted("error")) == in_time).then_some(())
    });
    assert_eq!(front.counted("over_limit"), 0);
}

/// Tests an open connection to the server, and a connection that Envoy has to open.
#[test]
fn requests_pass_or_fail_promptly_when_the_server_is_frozen() {
    for (mode, want) in [("failure_mode_deny: false", 200), ("failure_mode_deny: true", 503)] {
        for has_connection in [true, false] {
            let config = EnvoyConfig::with_short_timeout().with("failure_mode_deny: false", mode);
            let front = EnvoyFront::with(RULES, config, &[]);
            if has_connection {
                front.get("/open");
            }
            let frozen = FrozenServer::new(&front.server);
            assert_eq!(prompt_status(|| front.get("/open")), want, "{mode}, {has_connection}");
            drop(frozen);
            eventually("the server decides again", || {
                header(&front.get("/open"), "x-ratelimit-limit").map(|_| ())
            });
        }
    }
}
