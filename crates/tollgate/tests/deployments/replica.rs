//! P11: a replica that is promoted without the last charges.

use redis::cmd;
use tollgate_launcher::Flavour;

use crate::polling::until_well;
use crate::setup::{LIMITS, at, named};
use crate::watched::{SentinelDeployment, until_there};

/// The units lost of the key `some`. The key `all` is lost as a whole.
const LOST: u64 = 30;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promoted_replica_admits_exactly_the_unreplicated_charges_again() {
    for flavour in Flavour::ALL {
        let mut watched = SentinelDeployment::start(flavour);
        let limiter = at(&watched.url());
        let scopes = LIMITS.map(|text| named(&limiter, text, text));
        for scope in &scopes {
            assert!(scope.check("some").cost(60).await.unwrap().is_allowed());
            until_there(&watched.replica, scope, "some", 40).await;
        }
        watched.replica.freeze();
        // Cut the replication, or the replica would catch up when it resumes.
        let cut: i64 =
            watched.primary.ask(cmd("CLIENT").arg("KILL").arg("TYPE").arg("replica")).unwrap();
        assert_eq!(cut, 1);
        for scope in &scopes {
            assert!(scope.check("some").cost(LOST).await.unwrap().is_allowed());
            assert!(scope.check("all").cost(100).await.unwrap().is_allowed());
        }
        watched.primary.kill();
        watched.replica.thaw();
        until_well(&limiter, &scopes[0], &["some"]).await;
        for (scope, text) in scopes.iter().zip(LIMITS) {
            let mut allowed = [60 + LOST, 100];
            for (allowed, key) in allowed.iter_mut().zip(["some", "all"]) {
                while scope.check(key).await.unwrap().is_allowed() {
                    *allowed += 1;
                }
            }
            assert_eq!(allowed, [100 + LOST, 100 + 100], "{flavour}, {text}");
        }
    }
}
