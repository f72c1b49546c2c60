//! A primary that is killed, and whose replica is promoted.

use std::time::{Duration, Instant};

use tollgate_launcher::{Cluster, Flavour};

use super::load::{Load, meanwhile, spent, until_answered, until_spent};
use super::slots::ids_of;
use crate::setup::{builder, named};

const DEADLINE: Duration = Duration::from_secs(1);

/// How long a limiter may take to find the new primary after all nodes know it.
const RECOVERY: Duration = Duration::from_secs(3);

const LIMIT: u64 = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promoted_replica_is_found_when_a_primary_of_redis_is_killed() {
    kill_under_load(Flavour::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promoted_replica_is_found_when_a_primary_of_valkey_is_killed() {
    kill_under_load(Flavour::Valkey).await;
}

async fn kill_under_load(flavour: Flavour) {
    let mut cluster = Cluster::start(flavour, 3, 1).unwrap();
    let limiter = builder(&cluster.url()).deadline(DEADLINE).build().unwrap();
    let scope = named(&limiter, "few", &format!("fixed-window limit={LIMIT} window=366d"));
    // With a long deadline, so that a slow machine causes no failures.
    let long = builder(&cluster.url()).build().unwrap();
    let many = named(&long, "many", "sliding-window-log limit=50000 window=366d");
    let [victim, other, ..] = cluster.nodes()[..] else { panic!() };
    let replica = cluster.replicas_of(victim).unwrap()[0];
    let (lost, kept) = (ids_of(&cluster, victim, 3), ids_of(&cluster, other, 3));
    let hit = Load::start(&limiter, std::slice::from_ref(&scope), &lost, 2);
    let spared = Load::start(&long, std::slice::from_ref(&many), &kept, 2);
    hit.wait_for_answers(LIMIT).await;

    cluster[victim].kill();
    meanwhile(|| cluster.wait_for_primary(replica)).unwrap();
    let settled = Instant::now();
    for id in &lost {
        until_answered(&scope, id).await;
    }
    let took = settled.elapsed();
    assert!(took < RECOVERY, "{flavour}: {took:?}");

    // The limiter continues to charge, up to the limit.
    for id in &lost {
        until_spent(&scope, id, LIMIT).await;
    }
    spared.wait_for_answers(100).await;
    let (hit, spared) = (hit.stop().await, spared.stop().await);
    for (allowed, failed) in hit.allowed.iter().zip(&hit.failed) {
        // Charges that the replica lacked are admitted again: at most one more burst.
        assert!(allowed[0] <= 2 * LIMIT, "{flavour}: {allowed:?}");
        assert!(allowed[0] + failed >= LIMIT, "{flavour}: {allowed:?}, {failed}");
    }
    let late = hit.failures.iter().find(|(at, _)| *at > settled + took + DEADLINE);
    assert!(late.is_none(), "{flavour}: {late:?}");
    assert!(!hit.failures.is_empty(), "no check failed after the kill");
    assert!(spared.failures.is_empty(), "{flavour}: {:?}", spared.failures[0]);
    for (id, allowed) in kept.iter().zip(&spared.allowed) {
        assert_eq!(spent(&many, id).await, allowed[0], "{flavour}");
    }
}
