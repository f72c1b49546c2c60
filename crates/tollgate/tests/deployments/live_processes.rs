//! Limiters are counted under one key, wherever that key is, and the last number holds when its server fails.

use std::time::{Duration, Instant};

use tollgate::{Limiter, Redis};
use tollgate_launcher::{Cluster, Flavour, Launch};

use crate::setup::{LIMITS, PATIENCE, named};
use crate::shards;
use crate::watched::SentinelDeployment;

/// A limiter with the default policy.
async fn counted(url: &str) -> Limiter {
    let limiter = Redis::at(url).unwrap().deadline(PATIENCE).build().unwrap();
    assert!(!named(&limiter, "scope", LIMITS[0]).peek("a").await.unwrap().is_degraded());
    limiter
}

async fn until_live(limiter: &Limiter, processes: u32) {
    let began = Instant::now();
    while limiter.live_processes() != Some(processes) {
        assert!(began.elapsed() < PATIENCE, "{:?}", limiter.live_processes());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn assert_counted(url: &str) {
    let first = counted(url).await;
    until_live(&first, 1).await;
    let second = counted(url).await;
    until_live(&second, 2).await;
    until_live(&first, 2).await;
    drop(second);
    until_live(&first, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limiters_on_a_cluster_are_counted() {
    let cluster = Cluster::start(Flavour::Valkey, 3, 0).unwrap();
    assert_counted(&cluster.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limiters_behind_sentinels_are_counted_also_by_a_new_primary() {
    let mut watched = SentinelDeployment::start(Flavour::Redis);
    assert_counted(&watched.url()).await;
    let limiters = [counted(&watched.url()).await, counted(&watched.url()).await];
    for limiter in &limiters {
        until_live(limiter, 2).await;
    }
    watched.primary.kill();
    let third = Redis::at(&watched.url()).unwrap().build().unwrap();
    let began = Instant::now();
    while third.live_processes() != Some(3) {
        // A limiter follows the primary when it sends checks.
        for limiter in limiters.iter().chain([&third]) {
            let _ = named(limiter, "scope", LIMITS[0]).peek("a").await;
        }
        assert!(began.elapsed() < PATIENCE, "{:?}", third.live_processes());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limiters_on_shards_are_counted_by_one_server_and_the_number_outlives_it() {
    let mut servers = shards::start(&Launch::new(Flavour::Redis), 3);
    let url = shards::url("", &servers);
    let limiters = [counted(&url).await, counted(&url).await];
    for limiter in &limiters {
        until_live(limiter, 2).await;
    }
    servers.iter_mut().for_each(|server| server.kill());
    for limiter in &limiters {
        let share = named(limiter, "scope", LIMITS[0]).peek("b").await.unwrap();
        assert_eq!((share.is_degraded(), share.remaining()), (true, 50));
    }
}
