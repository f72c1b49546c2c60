//! Requests to a cluster without faults.

use redis::cmd;
use tollgate::{Limiter, Scope};
use tollgate_launcher::{Cluster, Flavour};

use super::load::until;
use super::slots::{count, errors, ids_of};
use crate::setup::{at, named};

const UNLIMITED: &str = "fixed-window limit=1000000 window=366d";

/// A limiter that has the slot map, and connections to all nodes.
async fn connected(cluster: &Cluster) -> Limiter {
    let limiter = at(&cluster.url());
    let scope = named(&limiter, "scope", UNLIMITED);
    scope.check("a").await.unwrap();
    let seeds = cluster.servers().len();
    until("all nodes are known", || limiter.health().unwrap().servers.len() == seeds).await;
    // Checks on every node, so that the slot map is in use and not the seeds.
    for node in cluster.nodes() {
        for id in ids_of(cluster, node, 2) {
            scope.check(&id).await.unwrap();
        }
    }
    limiter
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_checks_all_go_to_the_right_server() {
    for flavour in Flavour::ALL {
        let cluster = Cluster::start(flavour, 3, 0).unwrap();
        let limiter = connected(&cluster).await;
        for server in cluster.servers() {
            server.ask::<()>(cmd("CONFIG").arg("RESETSTAT")).unwrap();
        }
        let scopes = ["a", "b", "c"].map(|name| named(&limiter, name, UNLIMITED));
        let checks = check_alone(&scopes[0], 6_000).await
            + check_several_of_one_id(&limiter, &scopes, 500).await
            + check_batches(&limiter, &scopes, 5).await
            + check_several_ids(&limiter, &scopes, 500).await;
        assert!(checks >= 10_000, "{checks}");
        for node in cluster.nodes() {
            assert_eq!(errors(&cluster, node), [""; 0], "{flavour}");
        }
    }
}

/// Makes `count` checks of different ids, 100 at a time.
async fn check_alone(scope: &Scope, count: usize) -> usize {
    for start in (0..count).step_by(100) {
        let ids: Vec<String> = (start..start + 100).map(|number| format!("id-{number}")).collect();
        let answers: Vec<_> = ids.iter().map(|id| scope.check(id).into_future()).collect();
        for answer in answers {
            assert!(answer.await.unwrap().is_allowed());
        }
    }
    count
}

async fn check_several_of_one_id(limiter: &Limiter, scopes: &[Scope], count: usize) -> usize {
    for number in 0..count {
        let id = format!("several-{number}");
        let checks: Vec<_> = scopes.iter().map(|scope| scope.check(&id)).collect();
        assert!(limiter.check_all(&checks).await.unwrap().is_allowed());
    }
    count * scopes.len()
}

async fn check_several_ids(limiter: &Limiter, scopes: &[Scope], count: usize) -> usize {
    for number in 0..count {
        let ids: Vec<_> = (0..scopes.len()).map(|place| format!("id-{number}-{place}")).collect();
        let checks: Vec<_> = scopes.iter().zip(&ids).map(|(scope, id)| scope.check(id)).collect();
        assert!(limiter.check_all(&checks).await.unwrap().is_allowed());
    }
    count * scopes.len()
}

/// Makes `count` batches of 300 requests: of one limit, of two limits of one id, and of two ids.
async fn check_batches(limiter: &Limiter, scopes: &[Scope], count: usize) -> usize {
    let ids: Vec<String> = (0..301).map(|number| format!("batch-{number}")).collect();
    let requests: Vec<Vec<_>> = (0..300)
        .map(|number| {
            let first = scopes[0].check(&ids[number]);
            match number % 10 {
                0 => vec![first, scopes[1].check(&ids[number])],
                1 => vec![first, scopes[1].check(&ids[number + 1])],
                _ => vec![first],
            }
        })
        .collect();
    let requests: Vec<&[_]> = requests.iter().map(Vec::as_slice).collect();
    for round in 1..=count as u64 {
        let answers = limiter.batch(&requests).await.unwrap();
        assert_eq!(answers.len(), 300);
        for answer in answers {
            let answer = answer.unwrap();
            assert!(answer.is_allowed());
            assert_eq!(answer.each()[0].remaining(), 1_000_000 - round);
        }
    }
    count * 300
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_of_different_slots_of_a_node_share_round_trips() {
    for flavour in Flavour::ALL {
        let cluster = Cluster::start(flavour, 3, 0).unwrap();
        let limiter = connected(&cluster).await;
        let scope = named(&limiter, "scope", UNLIMITED);
        let node = cluster.nodes()[1];
        let ids = ids_of(&cluster, node, 64);
        let reads = || count(&cluster, node, "stats", "total_reads_processed:");
        let scripts = || count(&cluster, node, "commandstats", "cmdstat_evalsha:calls=");
        let before = (reads(), scripts());
        for _ in 0..10 {
            let answers: Vec<_> = ids.iter().map(|id| scope.check(id).into_future()).collect();
            for answer in answers {
                answer.await.unwrap();
            }
        }
        let (reads, scripts) = (reads() - before.0, scripts() - before.1);
        // One script for each slot, but few round trips.
        assert_eq!(scripts, 640, "{flavour}");
        assert!(reads <= 160, "{flavour}: {reads} round trips for 640 checks");
    }
}
