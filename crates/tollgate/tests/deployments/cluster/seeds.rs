//! Seeds in the URL that are dead, silent or down for a while.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use tollgate::{BreakerState, Error, StoreError};
use tollgate_launcher::{Cluster, Flavour};

use super::load::{until, until_answered};
use super::slots::ids_of;
use crate::setup::{LIMITS, PATIENCE, at, builder, named};

const DEADLINE: Duration = Duration::from_millis(500);

/// An address on which nothing listens. No server of another test takes it.
fn unused_addr() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::new(127, 77, 0, 2), 0)).unwrap().local_addr().unwrap()
}

/// A check that could not be sent to a dead seed is sent to the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_check_succeeds_when_a_seed_is_gone() {
    let cluster = Cluster::start(Flavour::Redis, 1, 0).unwrap();
    let seeds = [unused_addr(), unused_addr(), cluster.servers()[0].addr()];
    for round in 0..12 {
        let order: Vec<_> =
            seeds.iter().cycle().skip(round % 3).take(3).map(SocketAddr::to_string).collect();
        let scope = named(&at(&format!("redis+cluster://{}", order.join(","))), "scope", LIMITS[0]);
        assert_eq!(scope.check("a").await.unwrap().remaining(), 99 - round as u64);
    }
}

/// One of the other two seeds never answers, and on one address nothing listens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_live_seed_of_three_is_enough() {
    let cluster = Cluster::start(Flavour::Valkey, 3, 0).unwrap();
    let mute = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let live = cluster.servers()[1].addr();
    let seeds = [unused_addr(), mute.local_addr().unwrap(), live].map(|addr| addr.to_string());
    for first in 0..seeds.len() {
        let order: Vec<_> = seeds.iter().cycle().skip(first).take(3).cloned().collect();
        let url = format!("redis+cluster://{}", order.join(","));
        let limiter = builder(&url).deadline(DEADLINE).build().unwrap();
        let scope = named(&limiter, &url, "fixed-window limit=1000000 window=366d");
        let began = Instant::now();
        for node in cluster.nodes() {
            for id in ids_of(&cluster, node, 3) {
                until_answered(&scope, &id).await;
            }
        }
        assert!(began.elapsed() < PATIENCE / 3, "{url}: {:?}", began.elapsed());
        // When all nodes are known, the dead seeds are not used any more.
        until("all nodes are known", || limiter.health().unwrap().servers.len() == 3).await;
        for node in cluster.nodes() {
            for id in ids_of(&cluster, node, 20) {
                assert!(scope.check(&id).await.unwrap().is_allowed());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_cluster_is_used_again() {
    let mut cluster = Cluster::start(Flavour::Redis, 3, 0).unwrap();
    // A limiter that has used the cluster, and one that has not.
    let [known, new] =
        [(); 2].map(|()| builder(&cluster.url()).deadline(DEADLINE).build().unwrap());
    let [scope, of_new] = [&known, &new]
        .map(|limiter| named(limiter, "scope", "fixed-window limit=1000000 window=366d"));
    let ids: Vec<String> =
        cluster.nodes().into_iter().flat_map(|node| ids_of(&cluster, node, 2)).collect();
    for id in &ids {
        scope.check(id).await.unwrap();
    }
    let nodes = cluster.nodes();
    nodes.iter().for_each(|&node| cluster[node].kill());
    for (scope, limiter) in [(&scope, &known), (&of_new, &new)] {
        let mut breaker_opened = 0;
        for id in ids.iter().cycle().take(60) {
            let began = Instant::now();
            match scope.check(id).await {
                Err(Error::Store(StoreError::Unreachable { server, problem })) => {
                    assert!(!problem.is_empty(), "{server}");
                }
                Err(Error::Store(StoreError::BreakerOpen { server, failure, .. })) => {
                    assert!(failure.contains("no connection"), "{server}: {failure}");
                    breaker_opened += 1;
                }
                // A request that is sent as the connection breaks may get no reply.
                Err(Error::Store(StoreError::Timeout { .. })) => {}
                other => panic!("{other:?}"),
            }
            assert!(began.elapsed() < DEADLINE + Duration::from_secs(2));
        }
        assert!(breaker_opened > 10, "{breaker_opened}");
        let health = limiter.health().unwrap();
        assert!(health.failed >= 60);
        assert!(health.servers.iter().any(|server| server.breaker != BreakerState::Closed));
    }
    for node in nodes {
        cluster[node].restart().unwrap();
    }
    cluster.wait_until_settled().unwrap();
    let settled = Instant::now();
    for scope in [&scope, &of_new] {
        for id in &ids {
            until_answered(scope, id).await;
        }
    }
    assert!(settled.elapsed() < Duration::from_secs(5), "{:?}", settled.elapsed());
    for scope in [&scope, &of_new] {
        for id in &ids {
            assert!(scope.check(id).await.unwrap().is_allowed());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_without_an_owner_fails_only_its_own_keys() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0).unwrap();
    let orphan = ids_of(&cluster, cluster.nodes()[0], 1).remove(0);
    for server in cluster.servers() {
        let slot = super::slots::slot_of(&orphan);
        server.ask::<()>(redis::cmd("CLUSTER").arg("DELSLOTS").arg(slot)).unwrap();
    }
    let limiter = at(&cluster.url());
    let scope = named(&limiter, "scope", "fixed-window limit=1000000 window=366d");
    let others: Vec<String> =
        cluster.nodes().into_iter().flat_map(|node| ids_of(&cluster, node, 3)).collect();
    until_answered(&scope, &others[0]).await;
    until("all servers are known", || limiter.health().unwrap().servers.len() == 3).await;
    for _ in 0..5 {
        for _ in 0..20 {
            let problem = match scope.check(&orphan).await {
                Err(Error::Store(StoreError::Refused { problem })) => problem,
                other => panic!("{other:?}"),
            };
            assert!(problem.contains("CLUSTERDOWN"), "{problem}");
        }
        for id in &others {
            assert!(scope.check(id).await.unwrap().is_allowed());
        }
    }
}
