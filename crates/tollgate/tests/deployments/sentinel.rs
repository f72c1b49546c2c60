//! The primary that sentinels name, wherever it goes.

use std::time::{Duration, Instant};

use tollgate::{Error, Limiter, Scope, StoreError};
use tollgate_launcher::Flavour;

use crate::asking::{remaining, store_error, until};
use crate::setup::{LIMITS, PATIENCE, at, builder, named};
use crate::watched::{Watched, cut_clients, demote, promote, there, until_there};

/// A limit that no test reaches.
const WIDE: &str = "fixed-window limit=1000000 window=366d";

/// How often, while there are requests, the sentinels are asked again; and what a machine that has
/// much to do may add to it.
const SOON: Duration = Duration::from_secs(1 + 4);

/// One that gives a server up after a moment.
fn hasty(url: &str) -> Limiter {
    builder(url).deadline(Duration::from_millis(250)).build().unwrap()
}

/// Charges one unit as soon as somebody takes it; what was said before.
async fn charged_at_last(scope: &Scope, key: &str) -> Vec<Error> {
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
async fn a_primary_that_dies_is_replaced_and_what_was_replicated_counts() {
    for flavour in Flavour::ALL {
        let mut watched = Watched::start(flavour);
        let scope = named(&at(&watched.url()), "scope", LIMITS[0]);
        assert_eq!(scope.check("a").cost(40).await.unwrap().remaining(), 60);
        until_there(&watched.replica, &scope, "a", 60).await;
        watched.primary.kill();
        let errors = charged_at_last(&scope, "a").await;
        assert!(!errors.is_empty(), "{flavour}: who else could have answered?");
        assert_eq!(remaining(&there(&watched.replica, &scope), "a").await, 59, "{flavour}");
    }
}

/// The connection to it stays open, and nothing says that it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_hangs_is_left_soon_after_the_sentinels_have_another() {
    let watched = Watched::start(Flavour::Valkey);
    let scope = named(&hasty(&watched.url()), "scope", LIMITS[0]);
    charged_at_last(&scope, "a").await;
    until_there(&watched.replica, &scope, "a", 99).await;
    watched.primary.freeze();
    let watching = tokio::task::spawn_blocking(move || {
        watched.sentinels.wait_for_primary(watched.replica.addr()).unwrap();
        (Instant::now(), watched)
    });
    charged_at_last(&scope, "a").await;
    let charged = Instant::now();
    let (named, watched) = watching.await.unwrap();
    let after = charged.saturating_duration_since(named);
    assert!(after < SOON, "{after:?}");
    assert_eq!(remaining(&there(&watched.replica, &scope), "a").await, 98);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demoted_primary_is_left_after_one_error() {
    let watched = Watched::start(Flavour::Redis);
    let scope = named(&at(&watched.url()), "scope", LIMITS[0]);
    assert!(scope.check("a").cost(30).await.unwrap().is_allowed());
    until_there(&watched.replica, &scope, "a", 70).await;
    promote(&watched.replica);
    demote(&watched.primary, &watched.replica);
    watched.watch_anew(&watched.replica);
    let errors = charged_at_last(&scope, "a").await;
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].to_string().contains("READONLY"), "{errors:?}");
    assert_eq!(remaining(&there(&watched.replica, &scope), "a").await, 69);
}

/// It would answer what only looks, from what it last heard of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_the_sentinels_still_name_is_not_asked() {
    let watched = Watched::start(Flavour::Valkey);
    let scope = named(&at(&watched.url()), "scope", LIMITS[0]);
    assert!(scope.check("a").await.unwrap().is_allowed());
    // It takes the sentinels two seconds to find that strange.
    demote(&watched.primary, &watched.replica);
    let told = store_error(scope.check("a").await).to_string();
    assert!(told.contains("READONLY"), "{told}");
    let told = store_error(scope.peek("a").await).to_string();
    assert!(told.contains("is not the primary any more"), "{told}");
}

/// Nothing fails: only the sentinels know better.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_primary_is_left_without_an_error() {
    let watched = Watched::start(Flavour::Valkey);
    let scope = named(&at(&watched.url()), "scope", WIDE);
    scope.check("a").await.unwrap();
    until_there(&watched.replica, &scope, "a", 999_999).await;
    promote(&watched.replica);
    watched.watch_anew(&watched.replica);
    let (moved, elsewhere) = (Instant::now(), there(&watched.replica, &scope));
    until("checks reach the new primary", async || {
        assert!(scope.check("a").await.unwrap().is_allowed());
        (remaining(&elsewhere, "a").await < 999_999).then_some(())
    })
    .await;
    assert!(moved.elapsed() < SOON, "{:?}", moved.elapsed());
    let before = remaining(&there(&watched.primary, &scope), "a").await;
    for _ in 0..50 {
        scope.check("a").await.unwrap();
    }
    assert_eq!(remaining(&there(&watched.primary, &scope), "a").await, before);
}

/// Those who still talk to the old one spend what it thinks is left, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_primary_that_comes_back_admits_at_most_what_it_had_left() {
    let watched = Watched::start(Flavour::Redis);
    let url = watched.url();
    let (moved, left) = (hasty(&url), builder(&url).deadline(PATIENCE / 10).build().unwrap());
    let (moved, left) = (named(&moved, "scope", LIMITS[0]), named(&left, "scope", LIMITS[0]));
    charged_at_last(&moved, "a").await;
    assert!(left.check("a").cost(49).await.unwrap().is_allowed());
    until_there(&watched.replica, &left, "a", 50).await;
    watched.primary.freeze();
    charged_at_last(&moved, "a").await;
    watched.primary.thaw();
    // It is asked on the connection that was there before.
    assert!(left.check("a").await.unwrap().is_allowed());
    let mut allowed = 50 + 1 + 1;
    let new = there(&watched.replica, &left);
    until("both find that all is spent", async || {
        let mut refused = 0;
        for scope in [&moved, &left] {
            match scope.check("a").await {
                Ok(decision) if decision.is_allowed() => allowed += 1,
                Ok(_) => refused += 1,
                // The sentinels make a replica of it, and cut its clients.
                Err(_) => {}
            }
        }
        (refused == 2 && remaining(&new, "a").await == 0).then_some(())
    })
    .await;
    assert!((101..=150).contains(&allowed), "{allowed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_missed_a_failover_does_not_lead_back() {
    let mut watched = Watched::start(Flavour::Valkey);
    let scope = named(&hasty(&watched.url()), "scope", LIMITS[0]);
    charged_at_last(&scope, "a").await;
    until_there(&watched.replica, &scope, "a", 99).await;
    watched.sentinels.servers_mut()[0].kill();
    watched.primary.kill();
    charged_at_last(&scope, "a").await;
    watched.sentinels.wait_for_primary(watched.replica.addr()).unwrap();
    // From now on only that one answers, and the one it names takes itself for the primary.
    watched.sentinels.servers_mut()[1..].iter_mut().for_each(|sentinel| sentinel.kill());
    watched.primary.restart().unwrap();
    watched.sentinels.servers_mut()[0].restart().unwrap();
    assert_eq!(watched.sentinels.primary().unwrap(), watched.primary.addr());
    cut_clients(&watched.replica);
    let began = Instant::now();
    until("the one that answers is found wanting", async || {
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
    charged_at_last(&scope, "a").await;
    assert_eq!(remaining(&there(&watched.replica, &scope), "a").await, 97);
}

/// Their numbering of failovers begins anew then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_were_set_up_anew_are_believed() {
    let mut watched = Watched::start(Flavour::Redis);
    let scope = named(&hasty(&watched.url()), "scope", LIMITS[0]);
    charged_at_last(&scope, "a").await;
    until_there(&watched.replica, &scope, "a", 99).await;
    watched.primary.kill();
    charged_at_last(&scope, "a").await;
    watched.sentinels.wait_for_primary(watched.replica.addr()).unwrap();
    watched.watch_anew(&watched.replica);
    cut_clients(&watched.replica);
    charged_at_last(&scope, "a").await;
    assert_eq!(remaining(&there(&watched.replica, &scope), "a").await, 97);
}

/// The quickest of some that begin to use the sentinels.
async fn quickest_beginning(url: &str) -> Duration {
    let mut quickest = PATIENCE;
    for _ in 0..3 {
        let (began, scope) = (Instant::now(), named(&at(url), "scope", WIDE));
        assert!(scope.check("a").await.unwrap().is_allowed());
        quickest = quickest.min(began.elapsed());
    }
    quickest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_sentinels_may_be_dead_or_mute() {
    let mut watched = Watched::start(Flavour::Redis);
    // The first of the URL is asked first, and the next a moment later.
    watched.sentinels.servers()[0].freeze();
    let quickest = quickest_beginning(&watched.url()).await;
    assert!(quickest < Duration::from_millis(1_500), "{quickest:?}");
    watched.sentinels.servers_mut()[0].kill();
    let quickest = quickest_beginning(&watched.url()).await;
    assert!(quickest < Duration::from_millis(1_500), "{quickest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connected_primary_is_used_while_no_sentinel_answers() {
    let mut watched = Watched::start(Flavour::Valkey);
    let url = watched.url();
    let connected = named(&at(&url), "scope", WIDE);
    connected.check("a").await.unwrap();
    watched.sentinels.servers_mut().iter_mut().for_each(|sentinel| sentinel.kill());
    let began = Instant::now();
    let late = named(&at(&url), "scope", WIDE);
    let error = store_error(late.check("a").await);
    assert!(matches!(&error, StoreError::Unreachable { server, .. } if url.contains(&**server)));
    // Long enough for the sentinels to be asked in vain.
    while began.elapsed() < Duration::from_millis(1_500) {
        assert!(connected.check("a").await.unwrap().is_allowed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for sentinel in watched.sentinels.servers_mut() {
        sentinel.restart().unwrap();
    }
    charged_at_last(&late, "a").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_no_sentinel_knows_is_in_the_error() {
    let watched = Watched::start(Flavour::Redis);
    let url = watched.url().replace("/limits", "/limitz");
    let error = store_error(named(&at(&url), "scope", WIDE).check("a").await);
    let StoreError::Refused { problem } = error else { panic!("{error:?}") };
    assert!(problem.contains("`limitz`"), "{problem}");
}
