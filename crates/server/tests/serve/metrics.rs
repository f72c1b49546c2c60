//! `GET /metrics`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use reqwest::Method;
use rustix::process::Signal;
use tollgate_launcher::{Flavour, Launch};

use crate::prometheus::Page;
use crate::server::ServerProcess;

/// The longest time that a server can take to notice a change.
const PATIENCE: Duration = Duration::from_secs(20);

const RULES: &str = "
limits:
  two: fixed-window limit=2 window=366d
  other: fixed-window limit=2 window=366d
rules:
  - { name: kept, domain: api, key: [], limit: two }
  - { name: dropped, domain: api, key: [], limit: other }
";

pub(crate) fn scrape(server: &ServerProcess) -> Page {
    let response = server.get("/metrics").send().unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/plain; version=0.0.4");
    Page::parse(&response.text().unwrap())
}

/// Scrapes the metrics until they meet a condition, and returns them.
fn until(server: &ServerProcess, what: &str, holds: impl Fn(&Page) -> bool) -> Page {
    let began = Instant::now();
    loop {
        let page = scrape(server);
        if holds(&page) {
            return page;
        }
        assert!(began.elapsed() < PATIENCE, "{what}: {page:#?}");
    }
}

fn problem(page: &Page) -> f64 {
    page.value("tollgate_rules_problem", &[])
}

/// Returns the hash of the rules.
fn hash(page: &Page) -> String {
    let info: Vec<_> = page.of("tollgate_rules_info").collect();
    let [info] = info[..] else { panic!("{info:?}") };
    assert_eq!(info.value, 1.0);
    info.labels["hash"].clone()
}

fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    std::fs::write(&path, text).unwrap();
    (directory, path)
}

/// Returns the numbers of a limit's checks: allowed and denied by the store, allowed and denied without the store, and
/// failed.
fn decided(page: &Page, limit: &str) -> [u64; 5] {
    let outcomes = [
        ("allowed", "false"),
        ("denied", "false"),
        ("allowed", "true"),
        ("denied", "true"),
        ("failed", "false"),
    ];
    outcomes.map(|(outcome, degraded)| {
        let labels = [("limit", limit), ("outcome", outcome), ("degraded", degraded)];
        page.value("tollgate_limit_decisions_total", &labels) as u64
    })
}

#[test]
fn every_metric_has_its_help_and_type() {
    let store = Launch::new(Flavour::Redis).start().unwrap();
    let server = ServerProcess::start(&["--store", &store.url()]);
    server.check(r#"{"limit":"free","key":"a"}"#);
    // A request is counted after its answer, so the second scrape counts the first.
    scrape(&server);
    let page = scrape(&server);
    let wanted = [
        ("tollgate_decisions_total", "counter"),
        ("tollgate_limit_decisions_total", "counter"),
        ("tollgate_request_duration_seconds", "histogram"),
        ("tollgate_requests_total", "counter"),
        ("tollgate_store_call_duration_seconds", "histogram"),
        ("tollgate_store_errors_total", "counter"),
        ("tollgate_store_breaker", "gauge"),
        ("tollgate_store_waiting", "gauge"),
        ("tollgate_waiting", "gauge"),
        ("tollgate_live_processes", "gauge"),
        ("tollgate_rls_unmatched_descriptors_total", "counter"),
        ("tollgate_grpc_reset_calls_total", "counter"),
        ("tollgate_leases", "gauge"),
        ("tollgate_lease_units_total", "counter"),
        ("tollgate_lease_decisions_total", "counter"),
        ("tollgate_lease_store_calls_total", "counter"),
        ("tollgate_lease_store_failures_total", "counter"),
        ("tollgate_lease_store_calls_saved", "gauge"),
        ("tollgate_keys", "gauge"),
        ("tollgate_key_bytes", "gauge"),
        ("tollgate_overflowed_total", "counter"),
        ("tollgate_logs_coarsened_total", "counter"),
        ("tollgate_rules_generation", "gauge"),
        ("tollgate_rules_reloads_total", "counter"),
        ("tollgate_rules_loaded_timestamp_seconds", "gauge"),
        ("tollgate_rules_info", "gauge"),
        ("tollgate_rules_problem", "gauge"),
        ("tollgate_authorize_delayed", "gauge"),
        ("tollgate_authorize_untrusted_total", "counter"),
        ("tollgate_operator_token_failures_total", "counter"),
        ("tollgate_build_info", "gauge"),
        ("tollgate_ready", "gauge"),
        ("tollgate_max_connections", "gauge"),
        ("tollgate_key_bytes_max", "gauge"),
        ("tollgate_log_lines_lost_total", "counter"),
        ("tollgate_spans_lost_total", "counter"),
        ("process_max_fds", "gauge"),
        ("tollgate_draining", "gauge"),
        ("tollgate_connections", "gauge"),
        ("tollgate_connections_total", "counter"),
        ("tollgate_connections_closed_total", "counter"),
        ("process_resident_memory_bytes", "gauge"),
        ("process_cpu_seconds_total", "counter"),
        ("process_open_fds", "gauge"),
        ("process_start_time_seconds", "gauge"),
    ];
    let mut kinds: Vec<_> = page.kinds.iter().map(|(name, kind)| (&**name, &**kind)).collect();
    let mut wanted = wanted.to_vec();
    kinds.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(kinds, wanted);
    for name in page.kinds.keys().filter(|name| page.kinds[*name] != "histogram") {
        assert!(page.of(name).next().is_some(), "{name} has no sample");
    }
    assert_eq!(page.value("tollgate_build_info", &[("version", env!("CARGO_PKG_VERSION"))]), 1.0);
    let breaker = |state| page.value("tollgate_store_breaker", &[("state", state)]);
    assert_eq!((breaker("closed"), breaker("open"), breaker("half_open")), (1.0, 0.0, 0.0));
    let server = page.of("tollgate_store_waiting").next().unwrap();
    assert_eq!(server.labels["server"], store.addr().to_string());
    assert_eq!(
        page.value("tollgate_store_call_duration_seconds_count", &[("store", "redis")]),
        1.0
    );
}

#[test]
fn process_metrics_match_proc() {
    let server = ServerProcess::start(&[]);
    let page = scrape(&server);
    let pid = server.pid().as_raw_pid();
    let megabytes = page.value("process_resident_memory_bytes", &[]) / f64::from(1 << 20);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let want: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!((megabytes - want / 1024.0).abs() < 16.0, "{megabytes}, {line}");
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    assert_eq!(page.value("process_open_fds", &[]), open as f64);
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let most = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let most: f64 = most.split_whitespace().next().unwrap().parse().unwrap();
    assert_eq!(page.value("process_max_fds", &[]), most);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let age = now.as_secs_f64() - page.value("process_start_time_seconds", &[]);
    assert!((0.0..PATIENCE.as_secs_f64()).contains(&age), "{age}");
    let age = now.as_secs_f64() - page.value("tollgate_rules_loaded_timestamp_seconds", &[]);
    assert!((0.0..PATIENCE.as_secs_f64()).contains(&age), "{age}");
    // CPU time is counted in ticks, so it takes several scrapes to use the first tick.
    let began = Instant::now();
    while scrape(&server).value("process_cpu_seconds_total", &[]) == 0.0 {
        assert!(began.elapsed() < PATIENCE);
    }
}

#[test]
fn every_check_is_counted_in_one_outcome() {
    let mut store = Launch::new(Flavour::Redis).start().unwrap();
    let closed = RULES.replace("rules:", "defaults: { on_store_failure: closed }\nrules:");
    let (_directory, rules) = file(RULES);
    let (_other, closed) = file(&closed);
    let flags = |rules: &PathBuf| {
        let rules = rules.to_str().unwrap().to_owned();
        ["--store".to_owned(), store.url(), "--config".to_owned(), rules]
    };
    let start = |flags: [String; 4]| ServerProcess::start(&flags.each_ref().map(String::as_str));
    let (local, closed) = (start(flags(&rules)), start(flags(&closed)));
    let check = |server: &ServerProcess, key: &str, times: usize| {
        for _ in 0..times {
            let body = format!(r#"{{"limit":"two","key":"{key}"}}"#);
            server.post("/v1/check", body).send().unwrap();
        }
    };
    // Waits until both servers are connected. On a busy machine this takes longer than a check's deadline.
    for server in [&local, &closed] {
        until(server, "a store that answers", |page| {
            check(server, "warm", 1);
            page.value("tollgate_store_call_duration_seconds_count", &[]) >= 20.0
        });
    }
    let before = [&local, &closed].map(|server| (decided(&scrape(server), "two"), server));
    store.kill();
    check(&local, "a", 5);
    let too_much = local.check(r#"{"limit":"two","key":"a","cost":3}"#);
    assert_eq!(too_much["allowed"], false);
    check(&closed, "a", 4);
    let grown = before.map(|(before, server)| {
        let after = decided(&scrape(server), "two");
        [0, 1, 2, 3, 4].map(|at| after[at] - before[at])
    });
    // Only the first server counts as a live process, so its share is the whole limit of 2 units.
    assert_eq!(grown, [[0, 0, 2, 4, 0], [0, 0, 0, 0, 4]]);
    let page = scrape(&closed);
    assert_eq!(decided(&page, "other"), [0; 5]);
    assert!(page.value("tollgate_store_errors_total", &[]) >= 4.0);
    assert_eq!(
        page.value("tollgate_requests_total", &[("endpoint", "check"), ("status", "503")]),
        decided(&page, "two")[4] as f64
    );
}

#[test]
fn checks_in_memory_are_exact() {
    let (_directory, rules) = file(RULES);
    let server = ServerProcess::start(&["--config", rules.to_str().unwrap()]);
    for key in ["a", "a", "a", "a", "b"] {
        server.check(&format!(r#"{{"limit":"two","key":"{key}"}}"#));
    }
    server.post("/v1/check", "{").send().unwrap();
    server.post("/v1/check", r#"{"limit":"unknown","key":"a"}"#).send().unwrap();
    let page = scrape(&server);
    assert_eq!(decided(&page, "two"), [3, 2, 0, 0, 0]);
    assert_eq!(page.value("tollgate_limit_decisions_total", &[]), 5.0);
    assert_eq!(page.value("tollgate_keys", &[]), 2.0);
    assert!(page.value("tollgate_key_bytes", &[]) > 0.0);
    assert_eq!(page.value("tollgate_overflowed_total", &[]), 0.0);
    let status = |status| {
        let labels = [("endpoint", "check"), ("status", status)];
        page.value("tollgate_requests_total", &labels)
    };
    assert_eq!((status("200"), status("400"), status("404")), (5.0, 1.0, 1.0));
    let labels = [("endpoint", "check"), ("store", "memory")];
    assert_eq!(page.value("tollgate_request_duration_seconds_count", &labels), 7.0);
    assert!(!page.kinds.contains_key("tollgate_store_call_duration_seconds"));
}

#[test]
fn unknown_names_add_no_series() {
    let server = ServerProcess::start(&[]);
    // The first requests create one series for each kind of name.
    let methods =
        ["GET", "POST", "INVENTED"].map(|name| Method::from_bytes(name.as_bytes()).unwrap());
    let invent = |number: usize| {
        let body = match number % 4 {
            0 => format!(r#"{{"limit":"free","key":"k{number}"}}"#),
            1 => format!(r#"{{"limit":"l{number}","key":"a"}}"#),
            2 => format!(r#"{{"domain":"d{number}","attributes":{{"a{number}":"b"}}}}"#),
            _ => format!("{number} \" \\ \n"),
        };
        server.post("/v1/check", body).send().unwrap();
        let path = match number % 4 {
            0 => format!("/p{number}"),
            1 => format!("/v1/limits/l{number}"),
            2 => format!("/v1/limits/l{number}/keys/k%22%0A%5C{number}"),
            _ => format!("/v1/check/{number}?q={number}"),
        };
        let method = if number < 12 { &methods[number / 4] } else { &methods[number % 3] };
        server.request(method.clone(), &path).send().unwrap();
    };
    (0..12).for_each(invent);
    scrape(&server);
    let before = scrape(&server).series();
    (12..5_012).for_each(invent);
    let page = scrape(&server);
    assert_eq!(page.series(), before);
    assert_eq!(page.value("tollgate_requests_total", &[("endpoint", "check")]), 5_012.0);
}

#[test]
fn reloads_are_counted_and_removed_rules_have_no_series() {
    let (_directory, path) = file(RULES);
    let server = ServerProcess::start(&["--config", path.to_str().unwrap()]);
    server.check(r#"{"limit":"two","key":"a"}"#);
    server.check(r#"{"limit":"other","key":"a"}"#);
    let reloads =
        |page: &Page, result| page.value("tollgate_rules_reloads_total", &[("result", result)]);
    let first = scrape(&server);
    assert_eq!((reloads(&first, "ok"), reloads(&first, "failed")), (0.0, 0.0));
    assert_eq!(first.value("tollgate_rules_generation", &[]), 1.0);
    let fewer = RULES.lines().filter(|line| !line.contains("dropped") && !line.contains("other"));
    std::fs::write(&path, fewer.collect::<Vec<_>>().join("\n")).unwrap();
    let page = until(&server, "a reload", |page| reloads(page, "ok") >= 1.0);
    assert_eq!(page.value("tollgate_rules_generation", &[]), 1.0 + reloads(&page, "ok"));
    let since = "tollgate_rules_loaded_timestamp_seconds";
    assert!(page.value(since, &[]) > first.value(since, &[]));
    assert_eq!(decided(&page, "two")[0], 1, "the count of a limit that stays continues");
    assert!(!page.series().iter().any(|series| series.contains("dropped")), "{page:#?}");
    assert!(page.of("tollgate_limit_decisions_total").all(|of| of.labels["limit"] == "two"));
    std::fs::write(&path, "limits: nonsense").unwrap();
    let bad = until(&server, "a refused reload", |page| reloads(page, "failed") >= 1.0);
    assert_eq!(bad.value(since, &[]), page.value(since, &[]), "the rules are unchanged");
    // The problem is reported as long as the file is invalid.
    assert_eq!((problem(&page), problem(&bad)), (0.0, 1.0));
    assert_eq!(hash(&bad), hash(&page));
    assert_ne!(hash(&first), hash(&page));
    std::fs::write(&path, RULES).unwrap();
    let good = until(&server, "a good file", |page| problem(page) == 0.0);
    assert_eq!(hash(&good), hash(&first));
}

#[test]
fn servers_with_the_same_rules_have_the_same_hash() {
    let (_directory, one) = file(RULES);
    let (_other_directory, other) = file(RULES);
    let server = |path: &PathBuf| ServerProcess::start(&["--config", path.to_str().unwrap()]);
    let (one, other) = (server(&one), server(&other));
    let hash_of = hash(&scrape(&one));
    assert_eq!(hash_of, hash(&scrape(&other)));
    assert_eq!(crate::readiness::readyz(&one).1["hash"], hash_of.as_str());
    let example =
        [ServerProcess::start(&[]), ServerProcess::start(&[])].map(|server| hash(&scrape(&server)));
    assert_eq!(example[0], example[1]);
    assert_ne!(example[0], "0000000000000000");
}

#[test]
fn ceilings_are_exported() {
    let server = ServerProcess::start(&["--max-connections", "123", "--max-memory", "3MiB"]);
    let page = scrape(&server);
    assert_eq!(page.value("tollgate_max_connections", &[]), 123.0);
    assert_eq!(page.value("tollgate_key_bytes_max", &[]), f64::from(3 << 20));
    assert_eq!(page.value("tollgate_ready", &[]), 1.0);
}

#[test]
fn draining_server_is_visible_in_its_metrics() {
    let server = ServerProcess::start(&["--drain-delay", "20s"]);
    assert_eq!(scrape(&server).value("tollgate_draining", &[]), 0.0);
    server.signal(Signal::TERM);
    let page = until(&server, "draining", |page| page.value("tollgate_draining", &[]) == 1.0);
    assert_eq!(page.value("tollgate_ready", &[]), 0.0);
}

/// Sends `times` requests on one connection, in groups of 1,000. Each request is answered with 404.
fn ask(server: &ServerProcess, times: usize) {
    const AT_ONCE: usize = 1_000;
    let address = server.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let request = "GET /x HTTP/1.1\r\nhost: a\r\n\r\n".repeat(AT_ONCE);
    let mut buffer = vec![0; 1 << 16];
    for _ in 0..times / AT_ONCE {
        stream.write_all(request.as_bytes()).unwrap();
        let (mut answered, mut last) = (0, Vec::new());
        while answered < AT_ONCE {
            let read = stream.read(&mut buffer).unwrap();
            assert!(read > 0, "the server closed the connection");
            last.extend_from_slice(&buffer[..read]);
            // The start of an answer can be split between two reads, so the end of the text is kept.
            let text = String::from_utf8_lossy(&last);
            answered += text.matches("HTTP/1.1 404").count();
            let keep = last.len().saturating_sub("HTTP/1.1 404".len() - 1);
            last.drain(..keep);
        }
    }
}

fn resident_bytes(server: &ServerProcess) -> u64 {
    let status = format!("/proc/{}/status", server.pid().as_raw_pid());
    let status = std::fs::read_to_string(status).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn unscraped_metrics_take_no_more_memory() {
    let server = ServerProcess::start(&[]);
    ask(&server, 64_000);
    let before = resident_bytes(&server);
    ask(&server, 320_000);
    let grown = resident_bytes(&server).saturating_sub(before);
    // If the server stored each duration, it would take 16 bytes for each request.
    assert!(grown < 3 << 20, "{grown} bytes more");
    assert_eq!(scrape(&server).value("tollgate_requests_total", &[("status", "404")]), 384_000.0);
}
