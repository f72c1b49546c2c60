//! Holds of several limits whose keys are on different servers, one of which fails: nothing stays half done.

use std::time::Duration;

use redis::cmd;
use tollgate::{JointHold, Limiter, OnFailure, Scope, StoreError};
use tollgate_launcher::{Flavour, Server};

use crate::across_failing::ThreeShards;
use crate::polling::{keys_on, remaining, store_error, until_remaining, until_well};
use crate::setup::{LIMITS, at, named};
use crate::shards;

const HOUR: Duration = Duration::from_secs(3_600);

/// The share of this process is 25 of 100.
const LOCAL: OnFailure = OnFailure::Local { processes: Some(4) };

/// Reserves 10 units of each id.
async fn hold(limiter: &Limiter, scope: &Scope, ids: &[String]) -> JointHold {
    let parts: Vec<_> =
        ids.iter().map(|id| scope.reserve(id).cost(10).hold_for(HOUR).into()).collect();
    limiter.reserve_all(&parts).await.unwrap().into_hold().unwrap()
}

/// Returns what remains of this process's share, while the server of the id fails.
async fn share_remaining(scope: &Scope, id: &str) -> u64 {
    let peeked = scope.peek(id).await.unwrap();
    assert!(peeked.is_degraded(), "{peeked:?}");
    peeked.remaining()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_on_the_local_share_is_released_when_another_place_refuses() {
    let mut shards = ThreeShards::start(Flavour::Redis).await;
    let (limiter, scope) = shards.scope(LOCAL, LIMITS[0]).await;
    assert!(scope.check(&shards.ids[2]).cost(95).await.unwrap().is_allowed());
    shards.servers[1].kill();
    let parts = shards.ids.iter().map(|id| scope.reserve(id).cost(10).hold_for(HOUR).into());
    let refused = limiter.reserve_all(&parts.collect::<Vec<_>>()).await.unwrap();
    assert_eq!(refused.decision().refused_by(), Some(2), "{refused:?}");
    until_remaining(&scope, &shards.ids[0], 100).await;
    assert_eq!(share_remaining(&scope, &shards.ids[1]).await, 25);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservation_that_a_server_answers_too_late_is_released_there() {
    for (flavour, policy) in [(Flavour::Redis, OnFailure::Closed), (Flavour::Valkey, LOCAL)] {
        let shards = ThreeShards::start(flavour).await;
        for text in &LIMITS[..5] {
            let (limiter, scope) = shards.scope(policy, text).await;
            shards.servers[1].freeze();
            let parts =
                shards.ids.iter().map(|id| scope.reserve(id).cost(10).hold_for(HOUR).into());
            let reserved = limiter.reserve_all(&parts.collect::<Vec<_>>()).await;
            let held = match policy {
                OnFailure::Closed => {
                    let error = store_error(reserved);
                    assert!(matches!(error, StoreError::Timeout { .. }), "{text}: {error:?}");
                    None
                }
                _ => reserved.unwrap().into_hold(),
            };
            assert_eq!(held.is_some(), policy == LOCAL, "{text}");
            shards.servers[1].thaw();
            until_well(&limiter, &scope, &shards.ids).await;
            until_remaining(&scope, &shards.ids[1], 100).await;
            if let Some(held) = held {
                held.release().await.unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extension_that_a_server_answers_too_late_is_taken_back_there() {
    let shards = ThreeShards::start(Flavour::Valkey).await;
    for text in &LIMITS[..5] {
        let (limiter, scope) = shards.scope(OnFailure::Closed, text).await;
        let held = hold(&limiter, &scope, &shards.ids).await;
        shards.servers[1].freeze();
        store_error(held.extend(|_| (5, HOUR)).await);
        until_remaining(&scope, &shards.ids[0], 90).await;
        shards.servers[1].thaw();
        until_well(&limiter, &scope, &shards.ids).await;
        until_remaining(&scope, &shards.ids[1], 90).await;
        assert_eq!(remaining(&scope, &shards.ids[2]).await, 90, "{text}");
        held.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extension_that_is_taken_back_keeps_a_later_expiry_of_another_process() {
    let shards = ThreeShards::start(Flavour::Redis).await;
    // Bytes that are not used may follow the holds of a log.
    for text in LIMITS[..5].iter().filter(|text| !text.contains("log")) {
        let limiter = at(&shards::url("", &shards.servers));
        let scope = named(&limiter, text, text);
        let elsewhere = named(&at(&shards::url("", &shards.servers)), text, text);
        until_well(&limiter, &scope, &shards.ids).await;
        let held = hold(&limiter, &scope, &shards.ids[..2]).await;
        assert!(scope.check(&shards.ids[1]).cost(88).await.unwrap().is_allowed());
        let again = elsewhere.hold(&shards.ids[0], held.holds()[0].reference()).unwrap();
        shards.servers[1].freeze();
        let extension = tokio::spawn(held.extend(|_| (5, HOUR)));
        // The first server has extended its hold, and the second has not answered.
        until_remaining(&elsewhere, &shards.ids[0], 85).await;
        assert!(again.extend(0, 5 * HOUR).await.unwrap().is_granted());
        let later_us = again.expires_at_us();
        shards.servers[1].thaw();
        assert!(!extension.await.unwrap().unwrap().is_granted(), "{text}");
        until_remaining(&elsewhere, &shards.ids[0], 90).await;
        assert_eq!(expiry_us(&shards.servers[0], &shards.ids[0]), later_us, "{text}");
        held.release().await.unwrap();
        for at in [0, 1] {
            shards.servers[at].ask::<()>(cmd("FLUSHALL").arg("SYNC")).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_peek_does_not_hide_the_refusal_of_a_joint_extension() {
    let shards = ThreeShards::start(Flavour::Valkey).await;
    for text in &LIMITS[..5] {
        let (limiter, scope) = shards.scope(OnFailure::Closed, text).await;
        let held = hold(&limiter, &scope, &shards.ids).await;
        let filled = scope.check(&shards.ids[0]).cost(88).await.unwrap().into_receipt().unwrap();
        shards.servers[2].freeze();
        let refused = held.extend(|_| (5, HOUR)).await.unwrap();
        let allowed: Vec<bool> =
            refused.each().iter().map(|each| each.decided().is_allowed()).collect();
        assert_eq!((refused.is_granted(), allowed), (false, vec![false, true, true]), "{text}");
        shards.servers[2].thaw();
        until_well(&limiter, &scope, &shards.ids).await;
        scope.refund(&shards.ids[0], filled).await.unwrap();
        held.release().await.unwrap();
    }
}

/// An extension that adds no units is always admitted, also for a spent key, so it has no wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_that_adds_no_units_is_not_the_one_that_refuses_a_joint_extension() {
    let shards = ThreeShards::start(Flavour::Redis).await;
    let (limiter, scope) = shards.scope(OnFailure::Closed, LIMITS[3]).await;
    let held = hold(&limiter, &scope, &shards.ids[..2]).await;
    for id in &shards.ids[..2] {
        assert!(scope.check(id).cost(90).await.unwrap().is_allowed());
    }
    let first = shards.ids[0].as_bytes();
    let refused = held.extend(|own| (u64::from(own.key() == first), HOUR)).await.unwrap();
    let allowed: Vec<bool> =
        refused.each().iter().map(|each| each.decided().is_allowed()).collect();
    assert_eq!((refused.is_granted(), allowed), (false, vec![false, true]), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extension_on_the_local_share_is_taken_back_when_the_store_refuses_or_fails() {
    let mut shards = ThreeShards::start(Flavour::Redis).await;
    let (limiter, scope) = shards.scope(LOCAL, LIMITS[0]).await;
    shards.servers[1].kill();
    let held = hold(&limiter, &scope, &shards.ids[..2]).await;
    let degraded: Vec<bool> = held.holds().iter().map(|hold| hold.is_degraded()).collect();
    assert_eq!(degraded, [false, true]);
    let expires_us = held.holds()[1].expires_at_us();
    assert_eq!(share_remaining(&scope, &shards.ids[1]).await, 15);
    assert!(scope.check(&shards.ids[0]).cost(88).await.unwrap().is_allowed());
    let refused = held.extend(|_| (5, 2 * HOUR)).await.unwrap();
    let allowed: Vec<bool> =
        refused.each().iter().map(|each| each.decided().is_allowed()).collect();
    assert_eq!((refused.is_granted(), allowed), (false, vec![false, true]), "{refused:?}");
    assert_eq!(share_remaining(&scope, &shards.ids[1]).await, 15);
    assert_eq!(held.holds()[1].expires_at_us(), expires_us);
    shards.servers[0].kill();
    store_error(held.extend(|_| (5, 2 * HOUR)).await);
    assert_eq!(share_remaining(&scope, &shards.ids[1]).await, 15);
    assert_eq!(held.holds()[1].expires_at_us(), expires_us);
}

/// Returns when the only hold of this id expires: the last number of its value (`kept_holds.lua`).
fn expiry_us(server: &Server, id: &str) -> u64 {
    let keys = keys_on(server);
    let key = keys.iter().find(|key| key.contains(&format!("{{{id}}}")) && !key.contains("probe"));
    let value: Vec<u8> = server.ask(cmd("GET").arg(key.unwrap())).unwrap();
    let bytes = &value[value.len() - 7..];
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}
