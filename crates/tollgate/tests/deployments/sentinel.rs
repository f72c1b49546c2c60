//! The primary that sentinels name, which changes.

use std::time::{Duration, Instant};

use tollgate::{Error, Limiter, Scope, StoreError};
use tollgate_launcher::Flavour;

use crate::polling::{remaining, store_error, until};
use crate::setup::{LIMITS, PATIENCE, at, builder, named};
use crate::watched::{SentinelDeployment, cut_clients, demote, promote, there, until_there};

/// A limit that no test reaches.
const WIDE: &str = "fixed-window limit=1000000 window=366d";

/// How long a change of the primary may go unnoticed: the sentinels are queried every second while there are
/// requests, and a busy machine may take 4 s more.
const NOTICED_WITHIN: Duration = Duration::from_secs(1 + 4);

/// A limiter with a deadline of 250 ms.
fn short_deadline(url: &str) -> Limiter {
    builder(url).deadline(Duration::from_millis(250)).build().unwrap()
}

/// Checks until one unit is charged. Returns the errors before that.
async fn until_charged(scope: &Scope, key: &str) -> Vec<Error> {
    let mut errors = Vec::new();
    until("a check is decided", async || match scope.check(key).await {
        Ok(decision) => decision.is_allowed().then_some(()),
        Err(error) => {
            errors.push(error);
            None
        }
    })
    .await;
    errors
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_primary_is_replaced_and_replicated_charges_count() {
    for flavour in Flavour::ALL {
        let mut watched = SentinelDeployment::start(flavour);
        let scope = named(&at(&watched.url()), "scope", LIMITS[0]);
        assert_eq!(scope.check("a").cost(40).await.unwrap().remaining(), 60);
        until_there(&watched.replica, &scope, "a", 60).await;
        watched.primary.kill();
        let errors = until_charged(&scope, "a").await;
        assert!(!errors.is_empty(), "{flavour}: no check failed after the kill");
        assert_eq!(remaining(&there(&watched.replica, &scope), "a").await, 59, "{flavour}");
    }
}

/// The connection to the frozen primary stays open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_primary_is_left_soon_after_the_sentinels_name_another() {
    let watched = SentinelDeployment::start(Flavour::Valkey);
    let scope = named(&short_deadline(&watched.url()), "scope", LIMITS[0]);
    until_charged(&scope, "a").await;
    until_there(&watched.replica, &scope, "a", 99).await;
    watched.primary.freeze();
    let watching = tokio::task::spawn_blocking(move || {
        watched.sentinels.wait_for_primary(watched.replica.addr()).unwrap();
        (Instant::now(), watched)
    });
    until_charged(&scope, "a").await;
    let charged = Instant::now();
    let (named, watched) = watching.await.unwrap();
    let after = charged.saturating_duration_since(named);
    assert!(after < NOTICED_WITHIN, "{after:?}");
    assert_eq!(remaining(&there(&watched.replica, &scope), "a").await, 98);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demoted_primary_is_left_after_one_error() {
    let watched = SentinelDeployment::start(Flavour::Redis);
    let scope = named(&at(&watched.url()), "scope", LIMITS[0]);
    assert!(scope.check("a").cost(30).await.unwrap().is_allowed());
    until_there(&watched.replica, &scope, "a", 70).await;
    promote(&watched.replica);
    demote(&watched.primary, &watched.replica);
    watched.watch_anew(&watched.replica);
    let errors = until_charged(&scope, "a").await;
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].to_string().contains("READONLY"), "{errors:?}");
    assert_eq!(remaining(&there(&watched.replica, &scope), "a").await, 69);
}

/// A replica would answer peeks, with the state that it last received.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_that_the_sentinels_still_name_is_not_used() {
    let watched = SentinelDeployment::start(Flavour::Valkey);
    let scope = named(&at(&watched.url()), "scope", LIMITS[0]);
    assert!(scope.check("a").await.unwrap().is_allowed());
    // The sentinels notice after two seconds.
    demote(&watched.primary, &watched.replica);
    let error = store_error(scope.check("a").await).to_string();
    assert!(error.contains("READONLY"), "{error}");
    let error = store_error(scope.peek("a").await).to_string();
    assert!(error.contains("is not the primary any more"), "{error}");
}

/// The old primary still answers as a primary; only the sentinels name another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_primary_is_left_without_an_error() {
    let watched = SentinelDeployment::start(Flavour::Valkey);
    let scope = named(&at(&watched.url()), "scope", WIDE);
    scope.check("a").await.unwrap();
    until_there(&watched.replica, &scope, "a", 999_999).await;
    promote(&watched.replica);
    watched.watch_anew(&watched.replica);
    let (moved, on_replica) = (Instant::now(), there(&watched.replica, &scope));
    until("checks reach the new primary", async || {
        assert!(scope.check("a").await.unwrap().is_allowed());
        (remaining(&on_replica, "a").await < 999_999).then_some(())
    })
    .await;
    assert!(moved.elapsed() < NOTICED_WITHIN, "{:?}", moved.elapsed());
    let before = remaining(&there(&watched.primary, &scope), "a").await;
    for _ in 0..50 {
        scope.check("a").await.unwrap();
    }
    assert_eq!(remaining(&there(&watched.primary, &scope), "a").await, before);
}

/// A limiter that is still connected to the old primary spends the units that it has left, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn returned_old_primary_admits_at_most_what_it_had_left() {
    let watched = SentinelDeployment::start(Flavour::Redis);
    let url = watched.url();
    let (moved, left) =
        (short_deadline(&url), builder(&url).deadline(PATIENCE / 10).build().unwrap());
    let (moved, left) = (named(&moved, "scope", LIMITS[0]), named(&left, "scope", LIMITS[0]));
    until_charged(&moved, "a").await;
    assert!(left.check("a").cost(49).await.unwrap().is_allowed());
    until_there(&watched.replica, &left, "a", 50).await;
    watched.primary.freeze();
    until_charged(&moved, "a").await;
    watched.primary.thaw();
    // The check goes to the old primary, on the connection that was open before.
    assert!(left.check("a").await.unwrap().is_allowed());
    let mut allowed = 50 + 1 + 1;
    let new = there(&watched.replica, &left);
    until("both limiters refuse", async || {
        let mut refused = 0;
        for scope in [&moved, &left] {
            match scope.check("a").await {
                Ok(decision) if decision.is_allowed() => allowed += 1,
                Ok(_) => refused += 1,
                // The sentinels make the old primary a replica, which closes its connections.
                Err(_) => {}
            }
        }
        (refused == 2 && remaining(&new, "a").await == 0).then_some(())
    })
    .await;
    assert!((101..=150).contains(&allowed), "{allowed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_that_missed_a_failover_is_ignored() {
    let mut watched = SentinelDeployment::start(Flavour::Valkey);
    let scope = named(&short_deadline(&watched.url()), "scope", LIMITS[0]);
    until_charged(&scope, "a").await;
    until_there(&watched.replica, &scope, "a", 99).await;
    watched.sentinels.servers_mut()[0].kill();
    watched.primary.kill();
    until_charged(&scope, "a").await;
    watched.sentinels.wait_for_primary(watched.replica.addr()).unwrap();
    // From now on only this sentinel answers. It names the old primary, which takes itself for the primary.
    watched.sentinels.servers_mut()[1..].iter_mut().for_each(|sentinel| sentinel.kill());
    watched.primary.restart().unwrap();
    watched.sentinels.servers_mut()[0].restart().unwrap();
    assert_eq!(watched.sentinels.primary().unwrap(), watched.primary.addr());
    cut_clients(&watched.replica);
    let began = Instant::now();
    until("the outdated sentinel is rejected", async || {
        let error = store_error(scope.check("a").await).to_string();
        error.contains("does not know of the last failover").then_some(())
    })
    .await;
    while began.elapsed() < Duration::from_secs(2) {
        store_error(scope.check("a").await);
    }
    assert_eq!(remaining(&there(&watched.primary, &scope), "a").await, 100);
    for sentinel in &mut watched.sentinels.servers_mut()[1..] {
        sentinel.restart().unwrap();
    }
    until_charged(&scope, "a").await;
    assert_eq!(remaining(&there(&watched.replica, &scope), "a").await, 97);
}

/// Reconfigured sentinels number failovers from the start again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconfigured_sentinels_are_followed() {
    let mut watched = SentinelDeployment::start(Flavour::Redis);
    let scope = named(&short_deadline(&watched.url()), "scope", LIMITS[0]);
    until_charged(&scope, "a").await;
    until_there(&watched.replica, &scope, "a", 99).await;
    watched.primary.kill();
    until_charged(&scope, "a").await;
    watched.sentinels.wait_for_primary(watched.replica.addr()).unwrap();
    watched.watch_anew(&watched.replica);
    cut_clients(&watched.replica);
    until_charged(&scope, "a").await;
    assert_eq!(remaining(&there(&watched.replica, &scope), "a").await, 97);
}

/// The shortest time in which one of three new limiters makes its first check.
async fn fastest_first_check(url: &str) -> Duration {
    let mut fastest = PATIENCE;
    for _ in 0..3 {
        let (began, scope) = (Instant::now(), named(&at(url), "scope", WIDE));
        assert!(scope.check("a").await.unwrap().is_allowed());
        fastest = fastest.min(began.elapsed());
    }
    fastest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_sentinels_may_be_dead_or_frozen() {
    let mut watched = SentinelDeployment::start(Flavour::Redis);
    // The first sentinel in the URL is queried first, and the next a moment later.
    watched.sentinels.servers()[0].freeze();
    let fastest = fastest_first_check(&watched.url()).await;
    assert!(fastest < Duration::from_millis(1_500), "{fastest:?}");
    watched.sentinels.servers_mut()[0].kill();
    let fastest = fastest_first_check(&watched.url()).await;
    assert!(fastest < Duration::from_millis(1_500), "{fastest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connected_primary_is_used_while_no_sentinel_answers() {
    let mut watched = SentinelDeployment::start(Flavour::Valkey);
    let url = watched.url();
    let connected = named(&at(&url), "scope", WIDE);
    connected.check("a").await.unwrap();
    watched.sentinels.servers_mut().iter_mut().for_each(|sentinel| sentinel.kill());
    let began = Instant::now();
    let late = named(&at(&url), "scope", WIDE);
    let error = store_error(late.check("a").await);
    assert!(matches!(&error, StoreError::Unreachable { server, .. } if url.contains(&**server)));
    // Long enough that the sentinels are queried without an answer.
    while began.elapsed() < Duration::from_millis(1_500) {
        assert!(connected.check("a").await.unwrap().is_allowed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for sentinel in watched.sentinels.servers_mut() {
        sentinel.restart().unwrap();
    }
    until_charged(&late, "a").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_primary_name_is_in_the_error() {
    let watched = SentinelDeployment::start(Flavour::Redis);
    let url = watched.url().replace("/limits", "/limitz");
    let error = store_error(named(&at(&url), "scope", WIDE).check("a").await);
    let StoreError::Refused { problem } = error else { panic!("{error:?}") };
    assert!(problem.contains("`limitz`"), "{problem}");
}
