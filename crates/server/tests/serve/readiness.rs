//! `GET /readyz`: whether a load balancer should send requests to the server.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tollgate_launcher::{Cluster, Flavour, Launch, Proxy};

use crate::eventually::eventually;
use crate::server::{ServerProcess, body_of};

/// Returns the status and the body of `/readyz`.
pub(crate) fn readyz(server: &ServerProcess) -> (u16, Value) {
    let response = server.get("/readyz").send().unwrap();
    (response.status().as_u16(), serde_json::from_str(&response.text().unwrap()).unwrap())
}

/// Waits until `/readyz` answers with a status, and returns the body.
fn wait_for(server: &ServerProcess, status: u16) -> Value {
    eventually(&format!("readiness of {status}"), || {
        let (now, readiness) = readyz(server);
        (now == status).then_some(readiness)
    })
}

#[test]
fn memory_is_always_ready() {
    let server = ServerProcess::start(&[]);
    let hash = readyz(&server).1["hash"].clone();
    let digits = hash.as_str().unwrap();
    assert!(digits.len() == 16 && digits.chars().all(|digit| digit.is_ascii_hexdigit()), "{hash}");
    let readiness = json!({
        "ready": true, "store": "memory", "generation": 1, "rules": 3, "limits": 6,
        "phase": "serving", "rules_problem": null, "hash": hash,
    });
    assert_eq!(readyz(&server), (200, readiness));
    let alive = server.get("/healthz").send().unwrap();
    assert_eq!((alive.status().as_u16(), alive.text().unwrap().as_str()), (200, "ok"));
}

#[test]
fn only_operators_see_why_the_rules_file_was_refused() {
    const TOKEN: &str = "0123456789abcdef0123456789abcdef";
    let mut file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    writeln!(file, "limits: {{ free: token-bucket capacity=10 refill=1/d }}").unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    let name = file.path().file_name().unwrap().to_str().unwrap().to_owned();
    let start =
        |variables: &[(&str, &str)]| ServerProcess::start_with(&["--config", &path], variables);
    let with_token = start(&[("TOLLGATE_OPERATOR_TOKEN", TOKEN)]);
    let without_token = start(&[]);
    writeln!(file, "a_misspelt_section: 1").unwrap();
    for server in [&with_token, &without_token] {
        eventually("the file is refused", || readyz(server).1["rules_problem"].as_str().map(drop));
    }
    let problem = |request: reqwest::blocking::RequestBuilder| {
        let response = request.send().unwrap();
        assert_eq!(response.status(), 200, "the previous rules still decide");
        body_of(response)["rules_problem"].as_str().unwrap().to_owned()
    };
    let hidden = "there is a problem with the rules; operators see it here and in the log";
    let ask = || with_token.get("/readyz");
    assert_eq!(problem(ask()), hidden);
    assert_eq!(problem(ask().bearer_auth("a wrong token")), hidden);
    let shown = problem(ask().bearer_auth(TOKEN));
    assert!(
        shown.contains(&name) && shown.contains("has no field `a_misspelt_section`"),
        "{shown}"
    );

    let local = problem(without_token.get("/readyz"));
    assert!(local.contains(&name), "{local}");
    let proxied = without_token.get("/readyz").header("x-forwarded-for", "203.0.113.9");
    assert_eq!(problem(proxied), hidden);
}

#[test]
fn lost_store_makes_the_server_unready_until_it_returns() {
    let mut redis = Launch::new(Flavour::Redis).start().unwrap();
    let server = ServerProcess::start(&["--store", &redis.url(), "--drain-delay", "0s"]);
    assert_eq!(wait_for(&server, 200)["store"], "reachable");
    redis.kill();
    let began = Instant::now();
    let readiness = wait_for(&server, 503);
    assert_eq!((&readiness["ready"], &readiness["store"]), (&false.into(), &"unreachable".into()));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(server.get("/healthz").send().unwrap().status(), 200);
    server.wait_for_log(|log| log.contains("the store fails"));
    redis.restart().unwrap();
    assert_eq!(wait_for(&server, 200)["store"], "reachable");
    server.wait_for_log(|log| {
        // More readiness requests do not log the outage again.
        readyz(&server);
        log.contains("the store answers again")
    });
    server.signal(Signal::TERM);
    let (_, log) = server.wait();
    assert_eq!(log.matches("the store fails").count(), 1, "{log}");
    assert_eq!(log.matches("the store answers again").count(), 1, "{log}");
    assert_eq!(log.matches("WARN").count(), 1, "{log}");
}

#[test]
fn stalled_store_makes_the_server_unready_until_it_answers() {
    let redis = Launch::new(Flavour::Redis).start().unwrap();
    let server = ServerProcess::start(&["--store", &redis.url()]);
    wait_for(&server, 200);
    redis.freeze();
    wait_for(&server, 503);
    redis.thaw();
    wait_for(&server, 200);
}

#[test]
fn server_starts_without_its_store_and_logs_it() {
    let mut redis = Launch::new(Flavour::Redis).start().unwrap();
    redis.kill();
    let server = ServerProcess::start(&["--store", &redis.url()]);
    assert_eq!(readyz(&server).0, 503);
    let log = server.wait_for_log(|log| log.contains("the store "));
    assert!(log.contains("the store fails"), "{log}");
    let failure = format!("no connection to {}", redis.addr());
    assert!(log.contains(&failure), "{log}");
    redis.restart().unwrap();
    wait_for(&server, 200);
}

#[test]
fn server_may_be_ready_without_its_store() {
    let mut redis = Launch::new(Flavour::Redis).start().unwrap();
    let server = ServerProcess::start(&["--store", &redis.url(), "--ready-without-store"]);
    redis.kill();
    let readiness = eventually("the server reports that the store is unreachable", || {
        let (status, readiness) = readyz(&server);
        assert_eq!((status, &readiness["ready"]), (200, &true.into()));
        (readiness["store"] == "unreachable").then_some(readiness)
    });
    assert_eq!(readiness["phase"], "serving");
}

#[test]
fn one_lost_shard_makes_the_server_unready_until_it_returns() {
    let launch = || Launch::new(Flavour::Redis).start().unwrap();
    let (one, mut other) = (launch(), launch());
    let store = format!("redis+shards://{},{}", one.addr(), other.addr());
    let server = ServerProcess::start(&["--store", &store]);
    wait_for(&server, 200);
    other.kill();
    wait_for(&server, 503);
    other.restart().unwrap();
    wait_for(&server, 200);
}

#[test]
fn cluster_is_reached_again_after_a_failover() {
    let mut cluster = Cluster::start(Flavour::Redis, 3, 1).unwrap();
    let server = ServerProcess::start(&["--store", &cluster.url()]);
    wait_for(&server, 200);
    let primary = cluster.primaries().unwrap()[0];
    let replica = cluster.replicas_of(primary).unwrap()[0];
    cluster[primary].kill();
    wait_for(&server, 503);
    cluster.wait_for_primary(replica).unwrap();
    wait_for(&server, 200);
}

#[test]
fn concurrent_readiness_requests_share_one_answer() {
    let redis = Launch::new(Flavour::Redis).start().unwrap();
    let proxy = Proxy::start(redis.addr()).unwrap();
    let server = ServerProcess::start(&["--store", &proxy.url(), "--store-deadline", "5s"]);
    wait_for(&server, 200);
    proxy.delay(|| Duration::from_millis(50));
    let before = proxy.scripts_passed();
    let (mut rounds, mut queries) = (0, 0);
    while rounds < 3 || queries == 0 {
        thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| assert_eq!(readyz(&server).0, 200));
            }
        });
        (rounds, queries) = (rounds + 1, proxy.scripts_passed() - before);
    }
    // One or two store requests per round; more on a machine that takes long to start all threads.
    assert!(queries <= 16 * rounds, "the store was queried {queries} times");
}

#[test]
fn address_of_a_store_is_logged_without_its_password() {
    let user = "geheimrat on >geheim ~* &* +@all";
    let redis = Launch::new(Flavour::Redis).config("user", user).start().unwrap();
    let url = format!("redis://geheimrat:geheim@{}", redis.addr());
    let variables = [("TOLLGATE_STORE", &*url), ("TOLLGATE_LOG", "trace")];
    let server = ServerProcess::start_with(&["--drain-delay", "0s"], &variables);
    wait_for(&server, 200);
    server.check(r#"{"limit":"free","key":"a"}"#);
    server.signal(Signal::TERM);
    let (_, log) = server.wait();
    assert!(log.contains(&format!("\nstore: redis at {}\n", redis.addr())), "{log}");
    assert!(!log.contains("geheim"), "{log}");
}
