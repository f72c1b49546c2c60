//! Limiters on several servers whose runtime ends.

use std::thread;

use tollgate::{Limiter, Scope};
use tollgate_launcher::{Cluster, Flavour, Launch};

use crate::polling::{ids_on, remaining, until, until_well};
use crate::setup::{LIMITS, at, named};
use crate::watched::{SentinelDeployment, demote, promote, there, until_there};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Makes a limiter in a runtime of its own, uses it there, and ends the runtime.
fn made_in_an_ended_runtime(url: &str, ids: &[String]) -> Limiter {
    runtime().block_on(async {
        let limiter = at(url);
        let scope = named(&limiter, "scope", LIMITS[0]);
        for id in ids {
            assert!(scope.check(id).await.unwrap().is_allowed());
        }
        limiter
    })
}

/// Uses a limiter in two runtimes at once, and asserts that nothing fails.
fn assert_exact(limiter: &Limiter, ids: &[String]) {
    let scope = named(limiter, "scope", LIMITS[0]);
    let check_all = async |scope: &Scope| {
        for id in ids {
            assert!(scope.check(id).await.unwrap().is_allowed());
        }
    };
    thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| runtime().block_on(check_all(&scope)));
        }
    });
    runtime().block_on(async {
        for id in ids {
            assert_eq!(remaining(&scope, id).await, 97, "{id}");
        }
    });
    assert_eq!(limiter.health().unwrap().failed, 0);
}

#[test]
fn cluster_is_used_after_the_runtime_has_ended() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0).unwrap();
    let ids = runtime().block_on(ids_on(&at(&cluster.url()), cluster.servers()));
    assert_exact(&made_in_an_ended_runtime(&cluster.url(), &ids), &ids);
}

#[test]
fn shards_are_used_after_the_runtime_has_ended() {
    let servers = [(); 3].map(|()| Launch::new(Flavour::Valkey).start().unwrap());
    let addrs = servers.each_ref().map(|server| server.addr().to_string());
    let url = format!("redis+shards://{}", addrs.join(","));
    let ids = runtime().block_on(ids_on(&at(&url), &servers));
    assert_exact(&made_in_an_ended_runtime(&url, &ids), &ids);
}

/// The limiter knows only the seed, and learns the other nodes by a second query.
#[test]
fn slots_are_looked_up_again_when_the_runtime_ends_meanwhile() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0).unwrap();
    let seed = &cluster.servers()[0];
    let ids = runtime().block_on(ids_on(&at(&cluster.url()), cluster.servers()));
    cluster.servers().iter().for_each(|server| server.freeze());
    let first = runtime();
    let limiter = first.block_on(async { at(&format!("redis+cluster://{}", seed.addr())) });
    let scope = named(&limiter, "scope", LIMITS[0]);
    let check = scope.check(&ids[0]).into_future();
    first.shutdown_background();
    cluster.servers().iter().for_each(|server| server.thaw());
    runtime().block_on(async {
        // Sent by the limiter's own thread, unless it was in flight already.
        let _ = check.await;
        until("all nodes are known", async || {
            let _ = scope.peek(&ids[0]).await.unwrap();
            (limiter.health().unwrap().servers.len() == 3).then_some(())
        })
        .await;
    });
}

#[test]
fn sentinels_are_followed_after_the_runtime_has_ended() {
    let watched = SentinelDeployment::start(Flavour::Redis);
    let ids = ["a".to_owned()];
    let limiter = made_in_an_ended_runtime(&watched.url(), &ids);
    assert_exact(&limiter, &ids);
    let scope = named(&limiter, "scope", LIMITS[0]);
    runtime().block_on(async {
        until_there(&watched.replica, &scope, "a", 97).await;
        promote(&watched.replica);
        demote(&watched.primary, &watched.replica);
        watched.watch_anew(&watched.replica);
        until_well(&limiter, &scope, &ids).await;
        until("the new primary is charged", async || {
            scope.check("a").await.is_ok_and(|decision| decision.is_allowed()).then_some(())
        })
        .await;
        assert_eq!(remaining(&there(&watched.replica, &scope), "a").await, 96);
    });
}
