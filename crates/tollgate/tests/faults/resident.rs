//! The requests that wait for a frozen server are bounded, and so is their memory. Each test runs in a
//! process of its own, so that the memory of other tests is not counted.

use std::env;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate::{Limiter, OnFailure, StoreError};
use tollgate_launcher::{Flavour, Server};

use crate::setup::{
    MARGIN, PATIENCE, builder, limited, remaining, start, store_error, until, until_answered,
    within,
};

/// The most that the memory may grow.
const MOST: usize = 64 << 20;
const LIMIT: u64 = 1_000_000_000;

/// The environment variable that a test sets for the part that it runs in another process.
const ALONE: &str = "TOLLGATE_TEST_ALONE";

/// Runs one of the ignored tests below in a process of its own, which prints how much its memory has grown.
fn assert_resident(part: &str) {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", &format!("resident::{part}"), "--ignored", "--nocapture"])
        .env(ALONE, "yes")
        .output()
        .unwrap();
    let (printed, failed) = (String::from_utf8(output.stdout).unwrap(), output.stderr);
    assert!(output.status.success(), "{part}: {printed}{}", String::from_utf8_lossy(&failed));
    let grown = printed.lines().find_map(|line| line.split_once("resident: ")?.1.parse().ok());
    let grown: usize = grown.unwrap_or_else(|| panic!("{part}: no number in {printed}"));
    assert!(grown <= MOST, "{part}: memory grew by {grown} bytes, above {MOST}");
}

#[test]
fn memory_is_bounded_while_checks_of_a_frozen_server_fail() {
    assert_resident("checks_of_a_frozen_server_fail");
}

#[test]
fn memory_is_bounded_while_checks_wait_for_a_frozen_server() {
    assert_resident("checks_wait_for_a_frozen_server");
}

/// Makes 1,000 checks at once, so that buffers have grown before memory is measured.
async fn warm(server: &Server, limiter: &Limiter) {
    let scope = limited(limiter, "warm", LIMIT);
    until("the server logs", || !server.log().is_empty()).await;
    let answers: Vec<_> = (0..1_000).map(|_| scope.check("warm").into_future()).collect();
    for answer in answers {
        // Some may fail by a short deadline.
        let _ = answer.await;
    }
}

/// 200 callers check at full speed for 3 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by a test above in a process of its own"]
async fn checks_of_a_frozen_server_fail() {
    if env::var_os(ALONE).is_none() {
        return;
    }
    let server = start(Flavour::Redis);
    let open = builder(&server.url()).on_failure(OnFailure::Open);
    let limiter = open.deadline(Duration::from_millis(50)).build().unwrap();
    warm(&server, &limiter).await;
    let before = resident_bytes();
    server.freeze();
    let (scope, checks) = (limited(&limiter, "scope", LIMIT), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for caller in 0..200 {
        let (scope, checks) = (scope.clone(), Arc::clone(&checks));
        tasks.spawn(async move {
            let mut number = 0_u64;
            while began.elapsed() < Duration::from_secs(3) {
                // A new key for every check.
                let decision = scope.check(&format!("{caller}-{number}")).await.unwrap();
                assert!(decision.is_degraded() && decision.is_allowed());
                number += 1;
            }
            checks.fetch_add(number, Ordering::Relaxed);
        });
    }
    let mut most = 0;
    while tasks.try_join_next().is_none() {
        most = most.max(resident_bytes());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tasks.join_all().await;
    let checks = checks.load(Ordering::Relaxed);
    assert!(checks > 20_000, "{checks}");
    println!("\nchecks: {checks}\nresident: {}", most.saturating_sub(before));
}

/// A check that finds the queue full fails at once and is not charged. All others are decided when the
/// server resumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by a test above in a process of its own"]
async fn checks_wait_for_a_frozen_server() {
    const MAX_WAITING: usize = 65_536;
    // Two batches of 64.
    const MAX_IN_FLIGHT: usize = 128;
    const MORE: usize = 100_000;
    if env::var_os(ALONE).is_none() {
        return;
    }
    let server = start(Flavour::Redis);
    let limiter = within(&server.url(), PATIENCE);
    warm(&server, &limiter).await;
    let scope = limited(&limiter, "scope", LIMIT);
    until_answered(&scope, "a").await;
    let before = resident_bytes();
    server.freeze();
    let check = || scope.check("a").into_future();
    let waiting: Vec<_> = (0..MAX_WAITING).map(|_| check()).collect();
    // Checks in flight have left the queue, so as many more are accepted.
    let in_queue = || limiter.health().unwrap().servers[0].waiting;
    let (mut refused, mut accepted) = (0, 0);
    let began = Instant::now();
    for _ in 0..MORE {
        // A refused check is answered at the first poll.
        match tokio::time::timeout(Duration::ZERO, check()).await {
            Ok(answer) => match store_error(answer) {
                StoreError::Overloaded { waiting } => {
                    assert_eq!(waiting, MAX_WAITING);
                    refused += 1;
                }
                other => panic!("{other:?}"),
            },
            // An accepted check is sent, also when its answer is dropped.
            Err(_) => accepted += 1,
        }
    }
    assert!(began.elapsed() < MARGIN * 5, "{:?}", began.elapsed());
    let grown = resident_bytes().saturating_sub(before);
    assert_eq!(in_queue(), MAX_WAITING);
    assert!(accepted <= MAX_IN_FLIGHT && refused == MORE - accepted, "{accepted}, {refused}");
    server.thaw();
    for answer in waiting {
        assert!(answer.await.unwrap().is_allowed());
    }
    until("all checks are sent", || in_queue() == 0).await;
    // The accepted checks were charged too.
    let all = (MAX_WAITING + accepted) as u64;
    assert_eq!(LIMIT - remaining(&scope, "a").await, all);
    println!("\nresident: {grown}");
}

/// The resident memory of this process without its program and files (`RssAnon`).
fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    let kib: usize = line.trim().trim_end_matches(" kB").parse().unwrap();
    kib * 1_024
}
