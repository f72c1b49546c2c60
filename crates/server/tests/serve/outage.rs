//! Metrics, readiness and logs when the store is unreachable, and when it answers but decides nothing.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use tollgate_launcher::{Flavour, Launch};

use crate::eventually::eventually;
use crate::lifecycle::plain;
use crate::metrics::scrape;
use crate::readiness::readyz;
use crate::server::ServerProcess;

const CHECK: &str = r#"{"limit":"free","key":"user:42"}"#;

/// The most requests of the server itself that fail before its probe notices an outage: one when it begins and one
/// when it ends. Probes are not counted.
const OWN: u64 = 2;

fn is_closed(server: &ServerProcess) -> bool {
    scrape(server).value("tollgate_store_breaker", &[("state", "closed")]) == 1.0
}

fn lines<'l>(log: &'l str, text: &str) -> Vec<&'l str> {
    log.lines().filter(|line| line.contains(text)).collect()
}

#[test]
fn a_breaker_is_not_closed_at_every_scrape_of_an_outage() {
    let mut redis = Launch::new(Flavour::Redis).start().unwrap();
    let server = ServerProcess::start(&["--store", &redis.url()]);
    assert!(is_closed(&server));
    redis.kill();
    eventually("the breaker opens", || {
        server.check(CHECK);
        (!is_closed(&server)).then_some(())
    });
    // Two requests a second, for longer than any pause of the breaker.
    let began = Instant::now();
    let mut asked = 0;
    while began.elapsed() < Duration::from_secs(5) {
        if began.elapsed() >= asked * Duration::from_millis(500) {
            server.check(CHECK);
            asked += 1;
        }
        assert!(!is_closed(&server), "after {:?}", began.elapsed());
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn an_idle_server_logs_when_its_store_fails_and_returns() {
    let mut redis = Launch::new(Flavour::Redis).start().unwrap();
    let server = ServerProcess::start(&["--store", &redis.url()]);
    assert_eq!(scrape(&server).value("tollgate_ready", &[]), 1.0);
    redis.kill();
    server.wait_for_log(|log| log.contains("the store fails"));
    eventually("the breaker opens", || (!is_closed(&server)).then_some(()));
    assert_eq!(scrape(&server).value("tollgate_ready", &[]), 0.0);
    redis.restart().unwrap();
    let began = Instant::now();
    eventually("the breaker closes", || is_closed(&server).then_some(()));
    let log = plain(&server.wait_for_log(|log| log.contains("the store answers again")));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}: {log}", began.elapsed());
    // No client's request failed: at most the server's own, which check that its store has kept its state.
    let failed = lines(&log, "the store answers again")[0].split_once(" failed=").unwrap().1;
    assert!(failed.parse::<u64>().unwrap() <= OWN, "{log}");
    assert_eq!(lines(&log, "the store").len(), 2, "{log}");
    let page = scrape(&server);
    assert!(page.value("tollgate_store_errors_total", &[]) <= OWN as f64);
    assert_eq!(page.value("tollgate_ready", &[]), 1.0);
}

#[test]
fn errors_of_the_store_are_of_requests_and_never_fewer_than_before() {
    let mut redis = Launch::new(Flavour::Redis).start().unwrap();
    let server = ServerProcess::start(&["--store", &redis.url()]);
    assert_eq!(readyz(&server).0, 200);
    let errors = || {
        let page = scrape(&server);
        let (all, refused) = ("tollgate_store_errors_total", [("kind", "unreachable")]);
        (page.value(all, &[]), page.value(all, &refused))
    };
    redis.kill();
    let (mut failed, mut last) = (0.0, errors());
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        failed += f64::from(u8::from(server.check(CHECK)["degraded"] == true));
        readyz(&server);
        let now = errors();
        assert!(now.0 >= last.0 && now.1 >= last.1, "{now:?} after {last:?}");
        last = now;
    }
    assert!(failed > 0.0);
    eventually("every failed request is counted", || (errors().0 >= failed).then_some(()));
    assert!(errors().0 <= failed + OWN as f64, "{:?}, {failed}", errors());
}

#[test]
fn a_store_that_refuses_every_write_fails() {
    let redis = Launch::new(Flavour::Redis).config("maxmemory", "1").start().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.yaml");
    fs::write(&rules, "limits: { free: token-bucket capacity=60 refill=1/s }").unwrap();
    // A long deadline, so that a busy machine meets it.
    let flags = ["--store", &redis.url(), "--store-deadline", "5s"];
    let server =
        ServerProcess::start(&[&flags[..], &["--config", rules.to_str().unwrap()]].concat());
    for _ in 0..10 {
        assert_eq!(server.check(CHECK)["degraded"], true);
    }
    let log = plain(&server.wait_for_log(|log| log.contains("fails most decisions")));
    let told = log.split_once("the store answers, but fails most decisions failed=").unwrap().1;
    let (failed, rest) = told.split_once(" of=").unwrap();
    let (of, failure) = rest.split_once(" failure=").unwrap();
    assert!(failed == of && failed.parse::<u64>().unwrap() > 0, "{log}");
    assert!(failure.contains("OOM"), "{log}");
    assert!(is_closed(&server) && readyz(&server).0 == 200, "the store answers");
}
