//! Metrics, readiness and logs when the store is unreachable, and when it answers but cannot decide.

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

/// The largest number of the server's own requests that fail before its probe notices a change: one when an outage begins
/// and one when it ends. Probes are not counted.
const MAX_OWN_FAILURES: u64 = 2;

fn is_closed(server: &ServerProcess) -> bool {
    scrape(server).value("tollgate_store_breaker", &[("state", "closed")]) == 1.0
}

fn lines<'l>(log: &'l str, text: &str) -> Vec<&'l str> {
    log.lines().filter(|line| line.contains(text)).collect()
}

#[test]
fn breaker_is_never_closed_during_an_outage() {
    let mut redis = Launch::new(Flavour::Redis).start().unwrap();
    let server = ServerProcess::start(&["--store", &redis.url()]);
    assert!(is_closed(&server));
    redis.kill();
    eventually("the breaker opens", || {
        server.check(CHECK);
        (!is_closed(&server)).then_some(())
    });
    // Two requests per second, for longer than every pause of the breaker.
    let began = Instant::now();
    let mut sent = 0;
    while began.elapsed() < Duration::from_secs(5) {
        if began.elapsed() >= sent * Duration::from_millis(500) {
            server.check(CHECK);
            sent += 1;
        }
        assert!(!is_closed(&server), "after {:?}", began.elapsed());
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn idle_server_logs_when_its_store_fails_and_returns() {
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
    // No request of a client failed. Only the server's own requests can fail, which check that the store has kept its state.
    let failed = lines(&log, "the store answers again")[0].split_once(" failed=").unwrap().1;
    assert!(failed.parse::<u64>().unwrap() <= MAX_OWN_FAILURES, "{log}");
    assert_eq!(lines(&log, "the store").len(), 2, "{log}");
    let page = scrape(&server);
    assert!(page.value("tollgate_store_errors_total", &[]) <= MAX_OWN_FAILURES as f64);
    assert_eq!(page.value("tollgate_ready", &[]), 1.0);
}

#[test]
fn store_errors_count_requests_and_never_decrease() {
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
    assert!(errors().0 <= failed + MAX_OWN_FAILURES as f64, "{:?}, {failed}", errors());
}

#[test]
fn store_that_refuses_every_write_counts_as_failed() {
    let redis = Launch::new(Flavour::Redis).config("maxmemory", "1").start().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.yaml");
    fs::write(&rules, "limits: { free: token-bucket capacity=60 refill=1/s }").unwrap();
    // A long deadline, because the machine can be busy.
    let flags = ["--store", &redis.url(), "--store-deadline", "5s"];
    let server =
        ServerProcess::start(&[&flags[..], &["--config", rules.to_str().unwrap()]].concat());
    for _ in 0..10 {
        assert_eq!(server.check(CHECK)["degraded"], true);
    }
    let log = plain(&server.wait_for_log(|log| log.contains("fails most decisions")));
    let counts = log.split_once("the store answers, but fails most decisions failed=").unwrap().1;
    let (failed, rest) = counts.split_once(" of=").unwrap();
    let (of, failure) = rest.split_once(" failure=").unwrap();
    assert!(failed == of && failed.parse::<u64>().unwrap() > 0, "{log}");
    assert!(failure.contains("OOM"), "{log}");
    assert!(is_closed(&server) && readyz(&server).0 == 200, "the store answers");
}
