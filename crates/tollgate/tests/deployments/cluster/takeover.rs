//! A planned failover, as for maintenance.

use std::time::Duration;

use tollgate_launcher::{Cluster, FailOver, Flavour};

use super::load::{Load, meanwhile, spent};
use super::slots::ids_of;
use crate::setup::{builder, named};

const LIMIT: u64 = 150;

/// How many of the checks in flight at a failover may fail.
const MAX_FAILURES: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_are_kept_in_a_planned_failover_of_redis() {
    fail_over_under_load(Flavour::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_are_kept_in_a_planned_failover_of_valkey() {
    fail_over_under_load(Flavour::Valkey).await;
}

async fn fail_over_under_load(flavour: Flavour) {
    let cluster = Cluster::start(flavour, 3, 1).unwrap();
    let limiter = builder(&cluster.url()).deadline(Duration::from_secs(5)).build().unwrap();
    let scopes = [
        named(&limiter, "few", &format!("sliding-window-log limit={LIMIT} window=366d")),
        named(&limiter, "many", "fixed-window limit=1000000 window=366d"),
    ];
    let primary = cluster.nodes()[0];
    let replica = cluster.replicas_of(primary).unwrap()[0];
    let ids = ids_of(&cluster, primary, 4);
    let load = Load::start(&limiter, &scopes, &ids, 4);
    load.wait_for_answers(200).await;
    // There and back.
    for next in [replica, primary] {
        meanwhile(|| cluster.fail_over(next, FailOver::Agreed)).unwrap();
        load.wait_for_answers(200).await;
    }
    let few = &scopes[0];
    let mut rest = vec![0; ids.len()];
    for (id, rest) in ids.iter().zip(&mut rest) {
        while few.check(id).await.unwrap().is_allowed() {
            *rest += 1;
        }
    }
    let tally = load.stop().await;
    assert!(tally.failures.len() <= MAX_FAILURES, "{flavour}: {:?}", tally.failures);
    for (index, id) in ids.iter().enumerate() {
        assert_eq!(spent(few, id).await, LIMIT);
        let all = tally.allowed[index][0] + rest[index];
        assert!(all <= LIMIT && all + tally.failed[index] >= LIMIT, "{flavour}: {all}");
        let (spent, allowed) = (spent(&scopes[1], id).await, tally.allowed[index][1]);
        let may_be = allowed..=allowed + tally.failed[index];
        assert!(may_be.contains(&spent), "{flavour}: {spent} spent, {may_be:?} answered");
    }
}
