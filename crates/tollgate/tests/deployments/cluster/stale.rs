//! A primary that is frozen until its replica is promoted, and then resumes beside it.

use std::time::{Duration, Instant};

use redis::cmd;
use tollgate::Limiter;
use tollgate_launcher::{Cluster, Flavour};

use super::load::{Load, meanwhile, spent, until_answered, until_spent};
use super::slots::{count, errors, ids_of};
use crate::setup::{builder, named};

const DEADLINE: Duration = Duration::from_millis(200);

/// How long a limiter may take to find the new primary after all other nodes know it.
const RECOVERY: Duration = Duration::from_secs(3);

const LIMIT: u64 = 100;

fn limiter_of(cluster: &Cluster) -> Limiter {
    builder(&cluster.url()).deadline(DEADLINE).build().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_primary_that_returns_admits_at_most_one_more_burst() {
    let cluster = Cluster::start(Flavour::Redis, 3, 1).unwrap();
    let limit = format!("fixed-window limit={LIMIT} window=366d");
    let [busy, idle, asleep] = [(); 3].map(|()| limiter_of(&cluster));
    let [scope, of_idle, of_sleeper] = [&busy, &idle, &asleep].map(|it| named(it, "few", &limit));
    let stale = cluster.nodes()[0];
    let replica = cluster.replicas_of(stale).unwrap()[0];
    let ids = ids_of(&cluster, stale, 3);
    // All limiters are connected to the primary that will be frozen.
    for scope in [&of_idle, &of_sleeper] {
        until_answered(scope, &ids[0]).await;
    }
    let load = Load::start(&busy, std::slice::from_ref(&scope), &ids, 2);
    load.wait_for_answers(LIMIT).await;

    cluster[stale].freeze();
    meanwhile(|| cluster.wait_for_primary(replica)).unwrap();
    let settled = Instant::now();
    for scope in [&scope, &of_sleeper] {
        until_answered(scope, &ids[0]).await;
    }
    let took = settled.elapsed();
    assert!(took < RECOVERY, "{took:?}");

    cluster[stale].thaw();
    let mut by_idle = vec![0; ids.len()];
    for (id, allowed) in ids.iter().zip(&mut by_idle) {
        for _ in 0..LIMIT / 2 {
            let answer = of_idle.check(id).await;
            *allowed += u64::from(answer.is_ok_and(|decision| decision.is_allowed()));
        }
    }
    meanwhile(|| cluster.wait_until_settled()).unwrap();
    for id in &ids {
        until_answered(&of_idle, id).await;
        until_spent(&scope, id, LIMIT).await;
        assert_eq!(spent(&of_idle, id).await, LIMIT);
    }
    let tally = load.stop().await;
    for (allowed, by_idle) in tally.allowed.iter().zip(by_idle) {
        assert!(allowed[0] + by_idle <= 2 * LIMIT, "{allowed:?} and {by_idle}");
    }
    // From here on no limiter sends requests to the old primary.
    cluster[stale].ask::<()>(cmd("CONFIG").arg("RESETSTAT")).unwrap();
    for scope in [&scope, &of_idle, &of_sleeper] {
        for id in ids.iter().cycle().take(30) {
            assert_eq!(spent(scope, id).await, LIMIT);
        }
    }
    let scripts = ["evalsha", "eval"]
        .map(|name| count(&cluster, stale, "commandstats", &format!("cmdstat_{name}:calls=")));
    assert_eq!(scripts, [0, 0], "{:?}", errors(&cluster, stale));
}
