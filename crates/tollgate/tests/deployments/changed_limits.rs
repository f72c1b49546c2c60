//! Spent units stay spent when a limit changes, also when the keys are on different servers.

use tollgate::{Limit, Scope};
use tollgate_launcher::{Cluster, Flavour, Launch};

use crate::polling::remaining;
use crate::setup::{LIMITS, at, named};
use crate::shards;

/// The same limit with another size, on a new limiter as in another process.
fn sized(url: &str, text: &str, size: u64) -> Scope {
    let sized = text.replace("=100 ", &format!("={size} "));
    assert_eq!(sized.parse::<Limit>().unwrap().size(), size);
    named(&at(url), text, &sized)
}

async fn assert_spent_units_are_kept(url: &str) {
    let ids: Vec<String> = (0..20).map(|number| format!("user:{number}")).collect();
    for text in LIMITS {
        let (old, new) = (sized(url, text, 100), sized(url, text, 150));
        for id in &ids {
            assert!(old.check(id).cost(30).await.unwrap().is_allowed(), "{text}");
        }
        // All at once. Each check is sent again, to its own server and slot.
        let checks: Vec<_> =
            ids.iter().map(|id| IntoFuture::into_future(new.check(id).cost(20))).collect();
        for check in checks {
            assert_eq!(check.await.unwrap().remaining(), 100, "{text}");
        }
        for id in &ids {
            assert_eq!(remaining(&old, id).await, 50, "{text}");
        }
    }
}

/// Asserts that a joint check on several servers carries over the state of the one limit that has changed.
async fn assert_joint_check_carries_over(url: &str) {
    for text in LIMITS {
        let old = named(&at(url), "user", text);
        assert!(old.check(&format!("b {text}")).cost(30).await.unwrap().is_allowed(), "{text}");
        let limiter = at(url);
        let user = named(&limiter, "user", "fixed-window limit=50 window=366d");
        let (id, others) = (format!("b {text}"), (0..4).map(|number| format!("{number} {text}")));
        let others: Vec<String> = others.collect();
        let with_others = |cost: u64| {
            let others = others.iter().map(|other| user.check(other).cost(cost));
            others.chain([user.check(&id).cost(cost)]).collect::<Vec<_>>()
        };
        let refused = limiter.check_all(&with_others(25)).await.unwrap();
        assert_eq!(refused.refused_by(), Some(4), "{text}");
        let allowed = limiter.check_all(&with_others(20)).await.unwrap();
        assert!(allowed.is_allowed(), "{text}");
        let left: Vec<u64> = allowed.each().iter().map(|each| each.remaining()).collect();
        assert_eq!(left, [30, 30, 30, 30, 0], "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spent_units_are_kept_on_a_cluster_when_the_limit_changes() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0).unwrap();
    assert_spent_units_are_kept(&cluster.url()).await;
    assert_joint_check_carries_over(&cluster.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spent_units_are_kept_on_shards_when_the_limit_changes() {
    let servers = shards::start(&Launch::new(Flavour::Valkey), 3);
    let url = shards::url("", &servers);
    assert_spent_units_are_kept(&url).await;
    assert_joint_check_carries_over(&url).await;
}
