//! L1: processes with leases on the same keys admit no more than the limits, while things break.
//!
//! Every process records what it was answered. Over any interval, the units that were certainly admitted in it stay within
//! the bound of the limit; a store that loses its data may admit one whole limit more.

use std::time::Duration;

use redis::cmd;
use tollgate_conformance::history::{Histories, excess_over};
use tollgate_core::Intent;
use tollgate_launcher::{Cluster, FailOver, Flavour, Launch, Proxy};

use super::callers::{CallerKind, CallerProcesses};
use super::{SOME, limit_of};
use crate::cluster::load::meanwhile;
use crate::cluster::slots::ids_of;
use crate::setup::{at, named};
use crate::watched::SentinelDeployment;

/// Longer than a lease, which lasts 1 s.
const PAST_THE_LEASE: Duration = Duration::from_millis(1_200);

/// The limit of which no unit comes back.
const CONSERVED: &str = "fixed-window limit=10000000 window=366d";

fn start(count: usize, url: &str, id: &str) -> CallerProcesses {
    CallerProcesses::start(count, url, id, CallerKind::Leased)
}

/// Stops the callers, and asserts that no key has admitted more than its bound allows. Returns their records.
fn within_bounds(callers: CallerProcesses, most_losses: usize) -> Histories {
    let (histories, hits) = callers.stop_and_count();
    let answered: usize = histories.0.values().map(Vec::len).sum();
    assert!(hits > answered as u64 / 4, "{hits} hits of {answered} requests");
    for (name, history) in &histories.0 {
        if let Some(excess) = excess_over(&limit_of(name), history, most_losses) {
            panic!("{name}: {excess}");
        }
    }
    histories
}

/// The units that callers have spent of the limit of which no unit comes back, by the answers that they got; and whether the
/// outcome of a request is unknown.
fn spent(histories: &Histories) -> (u64, bool) {
    let (_, history) = histories.0.iter().find(|(name, _)| name.ends_with(CONSERVED)).unwrap();
    let charged = history.iter().filter(|request| request.intent == Intent::Charge);
    let is_allowed = |request: &&tollgate_conformance::history::RecordedRequest| {
        request.answer.is_some_and(|answer| answer.decision.is_allowed())
    };
    let units = charged.clone().filter(is_allowed).map(|request| request.cost.units()).sum();
    (units, charged.clone().any(|request| request.answer.is_none()))
}

async fn remaining(url: &str, id: &str) -> u64 {
    named(&at(url), CONSERVED, CONSERVED).peek(id).await.unwrap().remaining()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_processes_share_keys_and_every_unit_is_accounted_for() {
    for flavour in Flavour::ALL {
        let server = Launch::new(flavour).start().unwrap();
        let callers = CallerProcesses::start(8, &server.url(), "a", CallerKind::LeasedPatiently);
        callers.wait_for_answers(8 * SOME).await;
        let (units, is_unknown) = spent(&within_bounds(callers, 0));
        assert!(!is_unknown);
        assert_eq!(remaining(&server.url(), "a").await, 10_000_000 - units, "{flavour}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_leave_units_unused() {
    let server = Launch::new(Flavour::Redis).start().unwrap();
    let mut callers = start(4, &server.url(), "a");
    for killed in [0, 1] {
        callers.wait_for_answers(2 * SOME).await;
        callers.kill(killed);
    }
    callers.wait_for_answers(2 * SOME).await;
    let (units, _) = spent(&within_bounds(callers, 0));
    assert!(remaining(&server.url(), "a").await <= 10_000_000 - units);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_was_frozen_past_its_lease_admits_nothing_from_it() {
    let server = Launch::new(Flavour::Redis).start().unwrap();
    let callers = start(4, &server.url(), "a");
    for frozen in [0, 1] {
        callers.wait_for_answers(2 * SOME).await;
        callers.freeze(frozen);
        tokio::time::sleep(PAST_THE_LEASE).await;
        callers.thaw(frozen);
    }
    callers.wait_for_answers(2 * SOME).await;
    within_bounds(callers, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_and_partitions_admit_nothing_more() {
    let server = Launch::new(Flavour::Redis).start().unwrap();
    let proxy = Proxy::start(server.addr()).unwrap();
    let callers = start(4, &proxy.url(), "a");
    for lose in [Proxy::drop_replies, Proxy::cut_after_request, Proxy::cut_mid_reply] {
        callers.wait_for_answers(SOME).await;
        lose(&proxy, 4);
    }
    callers.wait_for_answers(SOME).await;
    proxy.refuse_connections();
    proxy.cut_connections();
    tokio::time::sleep(PAST_THE_LEASE).await;
    proxy.accept_connections();
    callers.wait_for_answers(2 * SOME).await;
    within_bounds(callers, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_frozen_admits_nothing_more() {
    let server = Launch::new(Flavour::Redis).start().unwrap();
    let callers = start(4, &server.url(), "a");
    callers.wait_for_answers(2 * SOME).await;
    server.freeze();
    tokio::time::sleep(PAST_THE_LEASE).await;
    server.thaw();
    callers.wait_for_answers(2 * SOME).await;
    within_bounds(callers, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_store_forgets_the_leases_with_the_keys_once() {
    let mut server = Launch::new(Flavour::Redis).start().unwrap();
    let callers = start(4, &server.url(), "a");
    callers.wait_for_answers(2 * SOME).await;
    server.kill();
    server.restart().unwrap();
    callers.wait_for_answers(2 * SOME).await;
    within_bounds(callers, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_promoted_may_not_know_the_latest_leases() {
    let mut watched = SentinelDeployment::start(Flavour::Redis);
    let callers = start(4, &watched.url(), "a");
    callers.wait_for_answers(SOME).await;
    // The replica misses the leases from now on: it does not catch up, because its connection is closed.
    watched.replica.freeze();
    watched.primary.ask::<i64>(cmd("CLIENT").arg("KILL").arg("TYPE").arg("replica")).unwrap();
    callers.wait_for_answers(SOME).await;
    watched.primary.kill();
    watched.replica.thaw();
    callers.wait_for_answers(2 * SOME).await;
    within_bounds(callers, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agreed_cluster_failover_keeps_the_leases() {
    let cluster = Cluster::start(Flavour::Redis, 3, 1).unwrap();
    let primary = cluster.nodes()[0];
    let replica = cluster.replicas_of(primary).unwrap()[0];
    let ids = ids_of(&cluster, primary, 1);
    let callers = start(3, &cluster.url(), &ids[0]);
    callers.wait_for_answers(2 * SOME).await;
    meanwhile(|| cluster.fail_over(replica, FailOver::Agreed)).unwrap();
    callers.wait_for_answers(2 * SOME).await;
    within_bounds(callers, 0);
}
