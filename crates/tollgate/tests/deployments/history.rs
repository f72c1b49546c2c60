//! P5 across processes, while things break: what all callers saw is what one caller would have seen.
//!
//! Processes record every request and its answer. For each key, some order of the requests must explain the answers
//! (`tollgate_conformance::history`). A request that failed, or whose process was killed, may have been charged or not; a
//! store that loses its data or fails over goes back to an earlier state of a key, once.

mod callers;
mod leased;

use std::time::Duration;

use redis::cmd;
use tollgate::Limit;
use tollgate_conformance::history::{Histories, Unexplained, excess_over, explain};
use tollgate_launcher::{Cluster, FailOver, Flavour, Launch, Proxy};

use crate::cluster::load::meanwhile;
use crate::cluster::slots::ids_of;
use crate::setup::at;
use crate::watched::SentinelDeployment;
use callers::{CallerKind, CallerProcesses, last_peek, units_come_back};

/// How many requests are answered between two faults.
const SOME: usize = 400;

/// Longer than the deadline of the callers.
const FREEZE: Duration = Duration::from_millis(1_200);

fn start(count: usize, url: &str, id: &str) -> CallerProcesses {
    CallerProcesses::start(count, url, id, CallerKind::AtTheirTime)
}

/// The limit of a key, by the name under which its requests are recorded.
fn limit_of(name: &str) -> Limit {
    name.split_once(' ').unwrap().1.parse().unwrap()
}

/// Counts over the histories of all keys.
#[derive(Debug, Default)]
struct Findings {
    answered: usize,
    unknown: usize,
    losses: usize,
}

/// Stops the callers, and peeks at every key. Returns their records with these peeks.
async fn stop(callers: CallerProcesses, url: &str) -> Histories {
    let mut histories = callers.stop();
    let limiter = at(url);
    for (name, history) in &mut histories.0 {
        history.push(last_peek(&limiter, name, history).await);
    }
    histories
}

/// Asserts that the history of each key is explained, with at most this many losses of state for each.
fn explained(histories: &Histories, most_losses: usize) -> Findings {
    let mut findings = Findings::default();
    for (name, history) in &histories.0 {
        let limit = limit_of(name);
        let order = explain(&limit, history, most_losses)
            .unwrap_or_else(|unexplained| panic!("{name}: {unexplained}"));
        if let Some(excess) = excess_over(&limit, history, most_losses) {
            panic!("{name}: {excess}");
        }
        let answered = history.iter().filter(|request| request.answer.is_some()).count();
        findings.answered += answered;
        findings.unknown += history.len() - answered;
        findings.losses += order.losses();
    }
    findings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_to_processes_are_those_of_one_order() {
    for flavour in Flavour::ALL {
        let server = Launch::new(flavour).start().unwrap();
        let callers = start(2, &server.url(), "a");
        callers.wait_for_answers(4 * SOME).await;
        let findings = explained(&stop(callers, &server.url()).await, 0);
        assert!(findings.answered > 4 * SOME, "{flavour}: {findings:?}");
    }
}

/// The keys of these histories for which there is no order.
fn unexplained(histories: &Histories) -> Vec<&str> {
    let unexplained = histories.0.iter().filter(|(name, history)| {
        matches!(explain(&limit_of(name), history, 0), Err(Unexplained::NoOrder(_)))
    });
    unexplained.map(|(name, _)| name.as_str()).collect()
}

/// Callers read the state, decide and write, without anything that makes this one step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_in_two_steps_is_found() {
    let server = Launch::new(Flavour::Redis).start().unwrap();
    let callers = CallerProcesses::start(2, &server.url(), "a", CallerKind::ReadThenWrite);
    callers.wait_for_answers(4 * SOME).await;
    let histories = stop(callers, &server.url()).await;
    assert!(!unexplained(&histories).is_empty());
}

/// A lost reply to a refused check does no harm, so there are several.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charge_that_is_sent_again_after_its_reply_is_lost_is_found() {
    let server = Launch::new(Flavour::Redis).start().unwrap();
    let proxy = Proxy::start(server.addr()).unwrap();
    let callers = CallerProcesses::start(2, &proxy.url(), "a", CallerKind::SendAgain);
    for _ in 0..10 {
        callers.wait_for_answers(SOME / 8).await;
        proxy.cut_after_request(1);
    }
    callers.wait_for_answers(SOME / 8).await;
    let histories = stop(callers, &server.url()).await;
    assert!(!unexplained(&histories).is_empty());
}

/// Callers with leases will be judged in this way. Where no unit comes back, the remaining units show the order too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_admitted_at_the_servers_time_stay_within_the_bound() {
    let server = Launch::new(Flavour::Redis).start().unwrap();
    let proxy = Proxy::start(server.addr()).unwrap();
    let mut callers = CallerProcesses::start(2, &proxy.url(), "a", CallerKind::AtTheStoresTime);
    callers.wait_for_answers(SOME).await;
    proxy.cut_mid_reply(2);
    callers.wait_for_answers(SOME).await;
    callers.kill(0);
    server.freeze();
    tokio::time::sleep(FREEZE).await;
    server.thaw();
    callers.wait_for_answers(SOME).await;
    let mut exceed_half = 0;
    for (name, history) in &stop(callers, &server.url()).await.0 {
        if !units_come_back(name) {
            explain(&limit_of(name), history, 0).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        if let Some(excess) = excess_over(&limit_of(name), history, 0) {
            panic!("{name}: {excess}");
        }
        let half = limit_of(&name.replace("=40 ", "=20 "));
        exceed_half += usize::from(excess_over(&half, history, 0).is_some());
    }
    assert!(exceed_half > 0, "the callers spend too little for this test");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_leave_one_order_on_redis() {
    lose_replies(Flavour::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_leave_one_order_on_valkey() {
    lose_replies(Flavour::Valkey).await;
}

async fn lose_replies(flavour: Flavour) {
    let server = Launch::new(flavour).start().unwrap();
    let proxy = Proxy::start(server.addr()).unwrap();
    let callers = start(2, &proxy.url(), "a");
    for lose in [Proxy::drop_replies, Proxy::cut_after_request, Proxy::cut_mid_reply] {
        callers.wait_for_answers(SOME).await;
        lose(&proxy, 2);
    }
    callers.wait_for_answers(SOME).await;
    proxy.cut_connections();
    callers.wait_for_answers(SOME).await;
    let findings = explained(&stop(callers, &server.url()).await, 0);
    assert!(findings.unknown > 0, "{flavour}: {findings:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_frozen_processes_leave_one_order() {
    for flavour in Flavour::ALL {
        let server = Launch::new(flavour).start().unwrap();
        let mut callers = start(4, &server.url(), "a");
        for killed in [0, 1] {
            callers.wait_for_answers(SOME).await;
            callers.kill(killed);
            callers.freeze(2);
            callers.wait_for_answers(SOME).await;
            callers.thaw(2);
        }
        callers.wait_for_answers(SOME).await;
        server.freeze();
        tokio::time::sleep(FREEZE).await;
        server.thaw();
        callers.wait_for_answers(SOME).await;
        let findings = explained(&stop(callers, &server.url()).await, 0);
        assert!(findings.unknown > 0, "{flavour}: {findings:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_forgets_the_keys_once() {
    for flavour in Flavour::ALL {
        let mut server = Launch::new(flavour).start().unwrap();
        let callers = start(2, &server.url(), "a");
        callers.wait_for_answers(2 * SOME).await;
        server.kill();
        server.restart().unwrap();
        callers.wait_for_answers(2 * SOME).await;
        let findings = explained(&stop(callers, &server.url()).await, 1);
        // At least the keys whose units do not come back.
        assert!(findings.losses >= 3, "{flavour}: {findings:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_that_is_promoted_goes_back_once_on_redis() {
    fail_over_by_sentinels(Flavour::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_that_is_promoted_goes_back_once_on_valkey() {
    fail_over_by_sentinels(Flavour::Valkey).await;
}

async fn fail_over_by_sentinels(flavour: Flavour) {
    let mut watched = SentinelDeployment::start(flavour);
    let callers = start(2, &watched.url(), "a");
    callers.wait_for_answers(SOME).await;
    // The replica misses the charges from now on: it does not catch up, because its connection is closed.
    watched.replica.freeze();
    watched.primary.ask::<i64>(cmd("CLIENT").arg("KILL").arg("TYPE").arg("replica")).unwrap();
    callers.wait_for_answers(SOME).await;
    watched.primary.kill();
    watched.replica.thaw();
    callers.wait_for_answers(SOME).await;
    let findings = explained(&stop(callers, &watched.url()).await, 1);
    // At least the keys whose units do not come back.
    assert!(findings.losses >= 3, "{flavour}: {findings:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_failovers_lose_state_only_without_agreement_on_redis() {
    fail_over_in_cluster(Flavour::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_failovers_lose_state_only_without_agreement_on_valkey() {
    fail_over_in_cluster(Flavour::Valkey).await;
}

async fn fail_over_in_cluster(flavour: Flavour) {
    let mut cluster = Cluster::start(flavour, 3, 1).unwrap();
    let primary = cluster.nodes()[0];
    let replica = cluster.replicas_of(primary).unwrap()[0];
    let ids = ids_of(&cluster, primary, 2);

    let callers = start(2, &cluster.url(), &ids[0]);
    callers.wait_for_answers(SOME).await;
    meanwhile(|| cluster.fail_over(replica, FailOver::Agreed)).unwrap();
    callers.wait_for_answers(SOME).await;
    let findings = explained(&stop(callers, &cluster.url()).await, 0);
    assert!(findings.answered >= 2 * SOME, "{flavour}: {findings:?}");

    let callers = start(2, &cluster.url(), &ids[1]);
    callers.wait_for_answers(SOME).await;
    cluster[replica].kill();
    meanwhile(|| cluster.fail_over(primary, FailOver::Forced)).unwrap();
    callers.wait_for_answers(SOME).await;
    let findings = explained(&stop(callers, &cluster.url()).await, 1);
    assert!(findings.unknown > 0, "{flavour}: {findings:?}");
}
