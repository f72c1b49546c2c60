//! What waits for a server that stands still is bounded, and so is the memory for it. Each test runs
//! in a process of its own, so that nothing else is counted.

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

const MOST: usize = 64 << 20;
const LIMIT: u64 = 1_000_000_000;

/// Says that a part of a test is run by that test.
const ALONE: &str = "TOLLGATE_TEST_ALONE";

/// Runs one of the parts below in a process of its own, which says how much its memory has grown.
fn assert_resident(part: &str) {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", &format!("resident::{part}"), "--ignored", "--nocapture"])
        .env(ALONE, "yes")
        .output()
        .unwrap();
    let (said, failed) = (String::from_utf8(output.stdout).unwrap(), output.stderr);
    assert!(output.status.success(), "{part}: {said}{}", String::from_utf8_lossy(&failed));
    let grown = said.lines().find_map(|line| line.split_once("resident: ")?.1.parse().ok());
    let grown: usize = grown.unwrap_or_else(|| panic!("{part}: no number in {said}"));
    assert!(grown <= MOST, "{part}: {grown} bytes resident of {MOST}");
}

#[test]
fn memory_stays_flat_while_callers_ask_a_frozen_server() {
    assert_resident("many_ask_a_frozen_server");
}

#[test]
fn memory_of_patient_callers_is_bounded() {
    assert_resident("many_wait_for_a_frozen_server");
}

/// A server, and a limiter on it that has been used, by as many as will use it.
async fn warm(server: &Server, limiter: &Limiter) {
    let scope = limited(limiter, "warm", LIMIT);
    until("it answers", || !server.log().is_empty()).await;
    let answers: Vec<_> = (0..1_000).map(|_| scope.check("warm").into_future()).collect();
    for answer in answers {
        // Some may be too late for a short deadline.
        let _ = answer.await;
    }
}

/// As fast as they can, for 3 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a part of a test above, which runs it"]
async fn many_ask_a_frozen_server() {
    if env::var_os(ALONE).is_none() {
        return;
    }
    let server = start(Flavour::Redis);
    let open = builder(&server.url()).on_failure(OnFailure::Open);
    let limiter = open.deadline(Duration::from_millis(50)).build().unwrap();
    warm(&server, &limiter).await;
    let before = resident_bytes();
    server.freeze();
    let (scope, asked) = (limited(&limiter, "scope", LIMIT), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for caller in 0..200 {
        let (scope, asked) = (scope.clone(), Arc::clone(&asked));
        tasks.spawn(async move {
            let mut number = 0_u64;
            while began.elapsed() < Duration::from_secs(3) {
                // Always another key.
                let decision = scope.check(&format!("{caller}-{number}")).await.unwrap();
                assert!(decision.is_degraded() && decision.is_allowed());
                number += 1;
            }
            asked.fetch_add(number, Ordering::Relaxed);
        });
    }
    let mut most = 0;
    while tasks.try_join_next().is_none() {
        most = most.max(resident_bytes());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tasks.join_all().await;
    let asked = asked.load(Ordering::Relaxed);
    assert!(asked > 20_000, "{asked}");
    println!("\nasked: {asked}\nresident: {}", most.saturating_sub(before));
}

/// Whoever comes when the queue is full is told at once and not charged; everybody else is decided
/// when the server goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a part of a test above, which runs it"]
async fn many_wait_for_a_frozen_server() {
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
    let ask = || scope.check("a").into_future();
    let waiting: Vec<_> = (0..MAX_WAITING).map(|_| ask()).collect();
    // What is in flight has left the queue.
    let in_queue = || limiter.health().unwrap().servers[0].waiting;
    let (mut refused, mut accepted) = (0, 0);
    let began = Instant::now();
    for _ in 0..MORE {
        // At once: whoever is refused knows already.
        match tokio::time::timeout(Duration::ZERO, ask()).await {
            Ok(answer) => match store_error(answer) {
                StoreError::Overloaded { waiting } => {
                    assert_eq!(waiting, MAX_WAITING);
                    refused += 1;
                }
                other => panic!("{other:?}"),
            },
            // It is on its way whether somebody waits for it or not.
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
    until("all were sent", || in_queue() == 0).await;
    // Those behind the last of them, too.
    let all = (MAX_WAITING + accepted) as u64;
    assert_eq!(LIMIT - remaining(&scope, "a").await, all);
    println!("\nresident: {grown}");
}

/// The memory of this process that is really there, without the program itself.
fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    let kib: usize = line.trim().trim_end_matches(" kB").parse().unwrap();
    kib * 1_024
}
