//! Several limits of one check whose keys are on different servers, one of which fails.

use std::time::{Duration, Instant};

use tollgate::{Limiter, OnFailure, Scope, StoreError};
use tollgate_launcher::{Flavour, Launch, Proxy, Server};

use crate::polling::{ids_on, remaining, store_error, until_remaining, until_well};
use crate::setup::{LIMITS, at, builder, named};
use crate::shards;

const DEADLINE: Duration = Duration::from_millis(600);

/// Three shards, and an id on each.
pub(crate) struct ThreeShards {
    pub(crate) servers: Vec<Server>,
    pub(crate) ids: Vec<String>,
}

impl ThreeShards {
    pub(crate) async fn start(flavour: Flavour) -> ThreeShards {
        let servers = shards::start(&Launch::new(flavour), 3);
        let ids = ids_on(&at(&shards::url("", &servers)), &servers).await;
        ThreeShards { servers, ids }
    }

    fn limiter(&self, on_failure: OnFailure) -> Limiter {
        let builder = builder(&shards::url("", &self.servers)).deadline(DEADLINE);
        builder.on_failure(on_failure).build().unwrap()
    }

    /// A limiter with connections to all shards, and a scope.
    pub(crate) async fn scope(&self, on_failure: OnFailure, text: &str) -> (Limiter, Scope) {
        let limiter = self.limiter(on_failure);
        let scope = named(&limiter, text, text);
        until_well(&limiter, &scope, &self.ids).await;
        (limiter, scope)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_server_is_an_error_and_charges_on_others_are_refunded() {
    let mut shards = ThreeShards::start(Flavour::Redis).await;
    for is_killed in [false, true] {
        for text in LIMITS {
            let (limiter, scope) = shards.scope(OnFailure::Closed, text).await;
            // A shaping limit does not refund the first charge, so the charge of the check is the second.
            let [first, last] = [0, 2].map(|at| &shards.ids[at]);
            scope.reset(first).await.unwrap();
            assert!(scope.check(first).cost(10).await.unwrap().is_allowed());
            match is_killed {
                false => shards.servers[1].freeze(),
                true => shards.servers[1].kill(),
            }
            let began = Instant::now();
            let several: Vec<_> = shards.ids.iter().map(|id| scope.check(id).cost(20)).collect();
            let error = store_error(limiter.check_all(&several).await);
            assert!(began.elapsed() < DEADLINE + Duration::from_secs(2), "{:?}", began.elapsed());
            let is_clear = match is_killed {
                false => matches!(error, StoreError::Timeout { .. }),
                // A request that is sent as the connection breaks may get no reply.
                true => {
                    matches!(error, StoreError::Unreachable { .. } | StoreError::Timeout { .. })
                }
            };
            assert!(is_clear, "{text}: {error:?}");
            until_remaining(&scope, first, 90).await;
            assert_eq!(remaining(&scope, last).await, 100, "{text}: the last server was charged");
            match is_killed {
                false => shards.servers[1].thaw(),
                true => shards.servers[1].restart().unwrap(),
            }
        }
    }
}

/// The policies of the failed scope and of the limiter may be less strict.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strictest_failure_policy_decides_when_a_server_fails() {
    for limiters in [OnFailure::Open, OnFailure::Closed] {
        let mut shards = ThreeShards::start(Flavour::Redis).await;
        let (limiter, scope) = shards.scope(limiters, LIMITS[0]).await;
        let open = scope.clone().on_failure(OnFailure::Open);
        let closed = named(&limiter, "closed", LIMITS[0]).on_failure(OnFailure::Closed);
        shards.servers[1].kill();
        let [well, failing] = [0, 1].map(|at| shards.ids[at].as_str());
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
        let shadows = [closed.check(well).shadow(), closed.check(failing).shadow()];
        assert!(limiter.check_all(&shadows).await.unwrap().is_allowed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scopes_deadline_applies_on_every_server() {
    let shards = ThreeShards::start(Flavour::Valkey).await;
    let (limiter, scope) = shards.scope(OnFailure::Closed, LIMITS[0]).await;
    let short = named(&limiter, "short", LIMITS[0]).deadline(Duration::from_millis(100));
    let long = scope.clone().deadline(Duration::from_secs(30));
    let [well, frozen] = [0, 1].map(|at| shards.ids[at].as_str());
    shards.servers[1].freeze();
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
    shards.servers[1].thaw();
    let allowed = answer.await.unwrap();
    assert!(allowed.is_allowed() && !allowed.is_degraded(), "{allowed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_server_admits_when_open_and_charges_on_others_stay() {
    let mut shards = ThreeShards::start(Flavour::Valkey).await;
    let (limiter, scope) = shards.scope(OnFailure::Open, LIMITS[0]).await;
    shards.servers[1].kill();
    let several = || shards.ids.iter().map(|id| scope.check(id).cost(20)).collect::<Vec<_>>();
    let allowed = limiter.check_all(&several()).await.unwrap();
    assert!(allowed.is_allowed() && allowed.is_degraded(), "{allowed:?}");
    let degraded: Vec<bool> = allowed.each().iter().map(|each| each.is_degraded()).collect();
    assert_eq!(degraded, [false, true, false]);
    let receipts = allowed.into_each().into_iter().map(|each| each.into_receipt().is_some());
    assert_eq!(receipts.collect::<Vec<_>>(), [true, false, true]);
    for at in [0, 2] {
        assert_eq!(remaining(&scope, &shards.ids[at]).await, 80);
    }
    // A working server can still refuse, and then nothing is charged.
    assert!(scope.check(&shards.ids[2]).cost(70).await.unwrap().is_allowed());
    let refused = limiter.check_all(&several()).await.unwrap();
    assert_eq!(refused.refused_by(), Some(2), "{refused:?}");
    assert_eq!(remaining(&scope, &shards.ids[0]).await, 80);
    assert_eq!(remaining(&scope, &shards.ids[2]).await, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_share_of_a_failed_server_refuses_the_joint_check() {
    let mut shards = ThreeShards::start(Flavour::Redis).await;
    let local = OnFailure::Local { processes: Some(4) };
    let (limiter, scope) = shards.scope(local, LIMITS[0]).await;
    shards.servers[1].kill();
    let several: Vec<_> = shards.ids.iter().map(|id| scope.check(id).cost(20)).collect();
    let allowed = limiter.check_all(&several).await.unwrap();
    assert!(allowed.is_allowed() && allowed.is_degraded(), "{allowed:?}");
    // The share of this process is 25 of 100, and 5 of it are left.
    let refused = limiter.check_all(&several).await.unwrap();
    assert_eq!(
        (refused.refused_by(), refused.requests_remaining()),
        (Some(1), Some(0)),
        "{refused:?}"
    );
    for at in [0, 2] {
        assert_eq!(remaining(&scope, &shards.ids[at]).await, 80);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shadow_limit_on_a_failed_server_never_refuses() {
    let mut shards = ThreeShards::start(Flavour::Redis).await;
    let (limiter, scope) = shards.scope(OnFailure::Closed, LIMITS[3]).await;
    shards.servers[0].kill();
    let [watched, first, second] = [0, 1, 2].map(|at| &shards.ids[at]);
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
    // A shadow peek does not refuse either.
    let peeks = [scope.peek(watched).shadow(), scope.peek(first), scope.peek(second)];
    let peeked = limiter.check_all(&peeks).await.unwrap();
    let left: Vec<u64> = peeked.each().iter().map(|each| each.remaining()).collect();
    assert_eq!((peeked.is_allowed(), left), (true, vec![100, 92, 92]), "{peeked:?}");
    // The failed shadow limit does not turn a refusal into an error.
    assert!(scope.check(second).cost(92).await.unwrap().is_allowed());
    let refused = limiter.check_all(&several).await.unwrap();
    assert_eq!(
        (refused.refused_by(), refused.requests_remaining()),
        (Some(2), Some(0)),
        "{refused:?}"
    );
    assert_eq!(remaining(&scope, first).await, 92);
}

/// The units stay spent on a server that cannot be reached for the refund.
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
    let joint_check = tokio::spawn(limiter.check_all(&several));
    // The first server is charged, and the second has not timed out yet.
    until_remaining(&directly, &ids[0], 70).await;
    proxy.refuse_connections();
    proxy.cut_connections();
    store_error(joint_check.await.unwrap());
    // The refund was queued before this peek, so it has failed too.
    store_error(scope.peek(&ids[0]).await);
    proxy.pass();
    servers[1].thaw();
    until_well(&limiter, &scope, &ids).await;
    assert_eq!(remaining(&scope, &ids[0]).await, 70);
    assert_eq!(remaining(&directly, &ids[0]).await, 70);
}
