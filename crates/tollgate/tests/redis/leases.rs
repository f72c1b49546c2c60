//! Leases on a server: one script call each, and what stays of a request whose answer was lost.

use std::time::Duration;

use redis::Connection;
use tollgate::{HoldReference, OnFailure, Redis, Scope, StoreError};
use tollgate_core::{Cost, HoldId, HoldTime, LeaseRequest, LeaseState};
use tollgate_launcher::Flavour;

use crate::setup::{
    LIMITS, admin, kept, key_with, open, remaining, scope, scripts_run, start, store_error, time_us,
};

const HOUR_US: u64 = 3_600_000_000;

/// A request to open a lease with 30 units for an hour.
fn request() -> LeaseRequest {
    LeaseRequest {
        id: HoldId::of_lease(7),
        expires_us: None,
        used: 0,
        need: None,
        want: 30,
        most: 30,
        lease_for: HoldTime::from_us(HOUR_US).unwrap(),
    }
}

/// Opens or renews a lease, and returns its unused units and its expiry.
async fn lease(scope: &Scope, request: LeaseRequest) -> (u64, u64) {
    match scope.lease_on_store("a", request).await.unwrap().lease {
        LeaseState::Open { unused, expires_us, .. } => (unused, expires_us),
        other => panic!("{other:?}"),
    }
}

fn pause(admin: &mut Connection) {
    redis::cmd("CLIENT").arg("PAUSE").arg(600_000).arg("WRITE").exec(admin).unwrap();
}

#[tokio::test]
async fn lease_takes_one_script_call_and_keeps_its_key_until_it_expires() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        for text in &LIMITS[..5] {
            redis::cmd("FLUSHALL").exec(&mut admin).unwrap();
            let scope = scope(&open(&server), text);
            // The first call of a script has its text.
            lease(&scope, request()).await;
            let before = scripts_run(&mut admin);
            let (unused, expires_us) = lease(&scope, request()).await;
            assert_eq!((unused, scripts_run(&mut admin)), (30, before + 1), "{flavour}, {text}");
            let needing = LeaseRequest {
                expires_us: Some(expires_us),
                used: 5,
                need: Some(Cost::ONE),
                ..request()
            };
            let (unused, expires_us) = lease(&scope, needing).await;
            assert_eq!((unused, scripts_run(&mut admin)), (30, before + 2), "{flavour}, {text}");
            assert_eq!(remaining(&scope, "a").await, 64, "{flavour}, {text}");
            let left_us = expires_us as i64 - time_us(&mut admin);
            assert!(left_us > 0 && left_us <= HOUR_US as i64, "{flavour}, {text}: {left_us}");
            let key = key_with(&mut admin, "{a}");
            let ends_us = kept(&mut admin, key.as_bytes()).ends_ms * 1_000;
            assert!(ends_us > expires_us as i64, "{flavour}, {text}");
        }
    }
}

#[tokio::test]
async fn refusal_beside_a_lease_is_not_remembered() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        for text in &LIMITS[..5] {
            let (here, elsewhere) = (scope(&open(&server), text), scope(&open(&server), text));
            let (_, expires_us) = lease(&here, request()).await;
            for _ in 0..2 {
                let refused = elsewhere.check("a").cost(71).await.unwrap();
                assert!(!refused.is_allowed() && !refused.is_cached(), "{flavour}, {text}");
            }
            let reference = HoldReference { id: request().id, expires_us };
            here.hold("a", reference).unwrap().settle(0).await.unwrap();
            assert!(elsewhere.check("a").cost(71).await.unwrap().is_allowed(), "{flavour}, {text}");
        }
    }
}

/// A process sends a request again if it got no answer. The lease that the first request opened must not be ended then,
/// because the process uses it.
#[tokio::test]
async fn lease_that_is_answered_too_late_stays_open_for_a_repeated_request() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        for text in &LIMITS[..5] {
            redis::cmd("FLUSHALL").exec(&mut admin).unwrap();
            let builder = Redis::at(&server.url()).unwrap().on_failure(OnFailure::Closed);
            let hasty = builder.deadline(Duration::from_millis(60)).build().unwrap();
            let (hasty, patient) = (scope(&hasty, text), scope(&open(&server), text));
            remaining(&patient, "a").await;
            pause(&mut admin);
            let error = store_error(hasty.lease_on_store("a", request()).await);
            assert!(matches!(error, StoreError::Timeout { .. }), "{flavour}, {text}: {error}");
            redis::cmd("CLIENT").arg("UNPAUSE").exec(&mut admin).unwrap();
            let (unused, expires_us) = lease(&patient, request()).await;
            assert_eq!(unused, 30, "{flavour}, {text}");
            // A later request of the limiter is decided after anything that it has sent because of the late answer.
            while hasty.peek("a").await.is_err() {}
            let renewal = LeaseRequest { expires_us: Some(expires_us), used: 9, ..request() };
            assert_eq!(lease(&patient, renewal).await.0, 30, "{flavour}, {text}");
            assert_eq!(remaining(&patient, "a").await, 61, "{flavour}, {text}");
        }
    }
}
