//! Holds of several limits whose keys are on different servers.

use std::time::Duration;

use tollgate::{JointHold, JointHoldDecision, Limiter, Scope};
use tollgate_launcher::Flavour;

use crate::across::Deployment;
use crate::polling::{ids_on, remaining, until_remaining};
use crate::setup::{LIMITS, at, named};

const HOUR: Duration = Duration::from_secs(3_600);

/// The limits that can have holds: all but the shaping bucket.
fn holding() -> &'static [&'static str] {
    &LIMITS[..5]
}

async fn reserve(limiter: &Limiter, scope: &Scope, ids: &[String]) -> JointHoldDecision {
    let parts: Vec<_> =
        ids.iter().map(|id| scope.reserve(id).cost(10).hold_for(HOUR).into()).collect();
    limiter.reserve_all(&parts).await.unwrap()
}

async fn hold(limiter: &Limiter, scope: &Scope, ids: &[String]) -> JointHold {
    reserve(limiter, scope, ids).await.into_hold().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joint_reservation_holds_all_limits_or_none() {
    for deployment in Deployment::all(Flavour::Redis) {
        let limiter = at(&deployment.url());
        let ids = ids_on(&limiter, deployment.servers()).await;
        for text in holding() {
            let scope = named(&limiter, text, text);
            for (full, id) in ids.iter().enumerate() {
                let filled = scope.check(id).cost(95).await.unwrap().into_receipt().unwrap();
                let refused = reserve(&limiter, &scope, &ids).await;
                assert!(!refused.is_allowed() && refused.hold().is_none(), "{text}");
                assert_eq!(refused.decision().refused_by(), Some(full), "{text}");
                assert_eq!(scope.refund(id, filled).await.unwrap(), 95, "{text}");
                for id in &ids {
                    // The earlier places release their holds after the answer.
                    until_remaining(&scope, id, 100).await;
                }
            }
            let held = hold(&limiter, &scope, &ids).await;
            for id in &ids {
                assert_eq!(remaining(&scope, id).await, 90, "{text}");
            }
            let settled = held.settle(|_| 4).await.unwrap();
            assert!(settled.iter().all(|each| each.charged_units() == 4), "{text}: {settled:?}");
            for id in &ids {
                assert_eq!(remaining(&scope, id).await, 96, "{text}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joint_extension_that_one_place_refuses_is_taken_back_elsewhere() {
    for deployment in Deployment::all(Flavour::Valkey) {
        let limiter = at(&deployment.url());
        let ids = ids_on(&limiter, deployment.servers()).await;
        for text in holding() {
            let scope = named(&limiter, text, text);
            let held = hold(&limiter, &scope, &ids).await;
            for (full, id) in ids.iter().enumerate() {
                let filled = scope.check(id).cost(88).await.unwrap().into_receipt().unwrap();
                let refused = held.extend(|_| (5, HOUR)).await.unwrap();
                assert!(!refused.is_granted() && refused.ended().is_none(), "{text}");
                for (at, each) in refused.each().iter().enumerate() {
                    assert!(!each.is_granted(), "{text}");
                    assert_eq!(each.decided().is_allowed(), at != full, "{text}, {at} of {full}");
                }
                assert_eq!(scope.refund(id, filled).await.unwrap(), 88, "{text}");
                for id in &ids {
                    until_remaining(&scope, id, 90).await;
                }
            }
            assert!(held.extend(|_| (5, HOUR)).await.unwrap().is_granted(), "{text}");
            for id in &ids {
                assert_eq!(remaining(&scope, id).await, 85, "{text}");
            }
            held.release().await.unwrap();
        }
    }
}
