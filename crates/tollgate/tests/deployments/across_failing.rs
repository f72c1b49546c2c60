//! Several limits of one check, of which a server fails.

use std::time::{Duration, Instant};

use tollgate::{Limiter, OnFailure, Scope, StoreError};
use tollgate_launcher::{Flavour, Launch, Proxy, Server};

use crate::asking::{ids_on, remaining, store_error, until_remaining, until_well};
use crate::setup::{LIMITS, at, builder, named};
use crate::shards;

const DEADLINE: Duration = Duration::from_millis(600);

/// Three servers, and an id on each.
struct Three {
    servers: Vec<Server>,
    ids: Vec<String>,
}

impl Three {
    async fn start(flavour: Flavour) -> Three {
        let servers = shards::start(&Launch::new(flavour), 3);
        let ids = ids_on(&at(&shards::url("", &servers)), &servers).await;
        Three { servers, ids }
    }

    fn limiter(&self, on_failure: OnFailure) -> Limiter {
        let builder = builder(&shards::url("", &self.servers)).deadline(DEADLINE);
        builder.on_failure(on_failure).build().unwrap()
    }

    /// With connections to all.
    async fn scope(&self, on_failure: OnFailure, text: &str) -> (Limiter, Scope) {
        let limiter = self.limiter(on_failure);
        let scope = named(&limiter, text, text);
        until_well(&limiter, &scope, &self.ids).await;
        (limiter, scope)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_server_is_an_error_and_charges_on_others_are_refunded() {
    let mut three = Three::start(Flavour::Redis).await;
    for is_killed in [false, true] {
        for text in LIMITS {
            let (limiter, scope) = three.scope(OnFailure::Closed, text).await;
            // Not at the front of a queue: there, a place cannot be given back.
            let [first, last] = [0, 2].map(|at| &three.ids[at]);
            scope.reset(first).await.unwrap();
            assert!(scope.check(first).cost(10).await.unwrap().is_allowed());
            match is_killed {
                false => three.servers[1].freeze(),
                true => three.servers[1].kill(),
            }
            let began = Instant::now();
            let several: Vec<_> = three.ids.iter().map(|id| scope.check(id).cost(20)).collect();
            let error = store_error(limiter.check_all(&several).await);
            assert!(began.elapsed() < DEADLINE + Duration::from_secs(2), "{:?}", began.elapsed());
            let is_clear = match is_killed {
                false => matches!(error, StoreError::Timeout { .. }),
                // What is sent as a connection breaks may hear nothing.
                true => {
                    matches!(error, StoreError::Unreachable { .. } | StoreError::Timeout { .. })
                }
            };
            assert!(is_clear, "{text}: {error:?}");
            until_remaining(&scope, first, 90).await;
            assert_eq!(remaining(&scope, last).await, 100, "{text}: it was not asked");
            match is_killed {
                false => three.servers[1].thaw(),
                true => three.servers[1].restart().unwrap(),
            }
        }
    }
}

/// Whatever the scope of the place that fails says, and whatever the limiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strictest_scope_decides_when_a_server_fails() {
    for limiters in [OnFailure::Open, OnFailure::Closed] {
        let mut three = Three::start(Flavour::Redis).await;
        let (limiter, scope) = three.scope(limiters, LIMITS[0]).await;
        let open = scope.clone().on_failure(OnFailure::Open);
        let closed = named(&limiter, "closed", LIMITS[0]).on_failure(OnFailure::Closed);
        three.servers[1].kill();
        let [well, failing] = [0, 1].map(|at| three.ids[at].as_str());
        for checks in [
            [closed.check(well), open.check(failing)],
            [open.check(well), closed.check(failing)],
            [open.check(well), closed.peek(failing)],
            [closed.peek(well), open.check(failing)],
        ] {
            store_error(limiter.check_all(&checks).await);
            until_remaining(&open, well, 100).await;
            until_remaining(&closed, well, 100).await;
        }
        for checks in [
            [open.check(well), open.check(failing)],
            [open.check(well), closed.check(failing).shadow()],
            [closed.check(well).shadow(), open.check(failing)],
            [open.check(well), open.peek(failing)],
            [open.check(well), closed.peek(failing).shadow()],
        ] {
            let allowed = limiter.check_all(&checks).await.unwrap();
            let degraded: Vec<bool> = allowed.each().iter().map(|it| it.is_degraded()).collect();
            assert!(allowed.is_allowed(), "{allowed:?}");
            assert_eq!(degraded, [false, true]);
        }
        let watching = [closed.check(well).shadow(), closed.check(failing).shadow()];
        assert!(limiter.check_all(&watching).await.unwrap().is_allowed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scopes_deadline_applies_on_every_server() {
    let three = Three::start(Flavour::Valkey).await;
    let (limiter, scope) = three.scope(OnFailure::Closed, LIMITS[0]).await;
    let short = named(&limiter, "short", LIMITS[0]).deadline(Duration::from_millis(100));
    let long = scope.clone().deadline(Duration::from_secs(30));
    let [well, frozen] = [0, 1].map(|at| three.ids[at].as_str());
    three.servers[1].freeze();
    let began = Instant::now();
    let checks = [long.check(well), short.check(frozen)];
    match store_error(limiter.check_all(&checks).await) {
        StoreError::Timeout { after, .. } => assert!(after <= Duration::from_millis(100)),
        other => panic!("{other:?}"),
    }
    assert!(began.elapsed() < DEADLINE + Duration::from_secs(2), "{:?}", began.elapsed());
    until_remaining(&long, well, 100).await;
    let began = Instant::now();
    let answer = limiter.check_all(&[long.check(well), long.check(frozen)]);
    while began.elapsed() < DEADLINE * 3 / 2 {
        assert!(remaining(&long, well).await >= 99);
    }
    three.servers[1].thaw();
    let allowed = answer.await.unwrap();
    assert!(allowed.is_allowed() && !allowed.is_degraded(), "{allowed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_server_admits_when_open_and_charges_on_others_stay() {
    let mut three = Three::start(Flavour::Valkey).await;
    let (limiter, scope) = three.scope(OnFailure::Open, LIMITS[0]).await;
    three.servers[1].kill();
    let several = || three.ids.iter().map(|id| scope.check(id).cost(20)).collect::<Vec<_>>();
    let allowed = limiter.check_all(&several()).await.unwrap();
    assert!(allowed.is_allowed() && allowed.is_degraded(), "{allowed:?}");
    let degraded: Vec<bool> = allowed.each().iter().map(|each| each.is_degraded()).collect();
    assert_eq!(degraded, [false, true, false]);
    let receipts = allowed.into_each().into_iter().map(|each| each.into_receipt().is_some());
    assert_eq!(receipts.collect::<Vec<_>>(), [true, false, true]);
    for at in [0, 2] {
        assert_eq!(remaining(&scope, &three.ids[at]).await, 80);
    }
    // One that works still refuses, and then nothing is charged.
    assert!(scope.check(&three.ids[2]).cost(70).await.unwrap().is_allowed());
    let refused = limiter.check_all(&several()).await.unwrap();
    assert_eq!(refused.refused_by(), Some(2), "{refused:?}");
    assert_eq!(remaining(&scope, &three.ids[0]).await, 80);
    assert_eq!(remaining(&scope, &three.ids[2]).await, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_share_of_a_failed_server_refuses_the_joint_check() {
    let mut three = Three::start(Flavour::Redis).await;
    let local = OnFailure::Local { processes: 4 };
    let (limiter, scope) = three.scope(local, LIMITS[0]).await;
    three.servers[1].kill();
    let several: Vec<_> = three.ids.iter().map(|id| scope.check(id).cost(20)).collect();
    let allowed = limiter.check_all(&several).await.unwrap();
    assert!(allowed.is_allowed() && allowed.is_degraded(), "{allowed:?}");
    // Of 100 a quarter is this process's, and 5 are left of it.
    let refused = limiter.check_all(&several).await.unwrap();
    assert_eq!(
        (refused.refused_by(), refused.requests_remaining()),
        (Some(1), Some(0)),
        "{refused:?}"
    );
    for at in [0, 2] {
        assert_eq!(remaining(&scope, &three.ids[at]).await, 80);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shadow_limit_on_a_failed_server_never_refuses() {
    let mut three = Three::start(Flavour::Redis).await;
    let (limiter, scope) = three.scope(OnFailure::Closed, LIMITS[3]).await;
    three.servers[0].kill();
    let [watched, first, second] = [0, 1, 2].map(|at| &three.ids[at]);
    let several = [scope.check(watched).shadow(), scope.check(first), scope.check(second)];
    for spent in 1..=8 {
        let allowed = limiter.check_all(&several).await.unwrap();
        assert!(allowed.is_allowed(), "{allowed:?}");
        assert_eq!(allowed.requests_remaining(), Some(100 - spent));
        let degraded: Vec<bool> = allowed.each().iter().map(|each| each.is_degraded()).collect();
        assert_eq!(degraded, [true, false, false]);
        assert_eq!(remaining(&scope, first).await, 100 - spent);
        assert_eq!(remaining(&scope, second).await, 100 - spent);
    }
    // Nor where it is only looked at.
    let looking = [scope.peek(watched).shadow(), scope.peek(first), scope.peek(second)];
    let looked = limiter.check_all(&looking).await.unwrap();
    let left: Vec<u64> = looked.each().iter().map(|each| each.remaining()).collect();
    assert_eq!((looked.is_allowed(), left), (true, vec![100, 92, 92]), "{looked:?}");
    // Nor does it turn a refusal into an error.
    assert!(scope.check(second).cost(92).await.unwrap().is_allowed());
    let refused = limiter.check_all(&several).await.unwrap();
    assert_eq!(
        (refused.refused_by(), refused.requests_remaining()),
        (Some(2), Some(0)),
        "{refused:?}"
    );
    assert_eq!(remaining(&scope, first).await, 92);
}

/// Nobody is there to take the units back: they stay spent, and nobody gets them twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charge_stays_spent_when_its_refund_fails() {
    let servers = shards::start(&Launch::new(Flavour::Valkey), 2);
    let proxy = Proxy::start(servers[0].addr()).unwrap();
    let url = format!("redis+shards://{},{}", proxy.addr(), servers[1].addr());
    let ids = ids_on(&at(&url), &servers).await;
    let limiter = builder(&url).deadline(4 * DEADLINE).build().unwrap();
    let scope = named(&limiter, "scope", LIMITS[0]);
    until_well(&limiter, &scope, &ids).await;
    let directly = named(&at(&servers[0].url()), "scope", LIMITS[0]);
    servers[1].freeze();
    let several = [scope.check(&ids[0]).cost(30), scope.check(&ids[1]).cost(30)];
    let asking = tokio::spawn(limiter.check_all(&several));
    // Once the first is charged, and before the other is given up.
    until_remaining(&directly, &ids[0], 70).await;
    proxy.refuse_connections();
    proxy.cut_connections();
    store_error(asking.await.unwrap());
    // By now the refund, which is before this, has failed as well.
    store_error(scope.peek(&ids[0]).await);
    proxy.pass();
    servers[1].thaw();
    until_well(&limiter, &scope, &ids).await;
    assert_eq!(remaining(&scope, &ids[0]).await, 70);
    assert_eq!(remaining(&directly, &ids[0]).await, 70);
}
