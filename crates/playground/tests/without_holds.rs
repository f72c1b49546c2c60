//! A store without holds has neither reservations nor the concurrency limit.

#![allow(clippy::panic, clippy::unwrap_used)]

use std::time::Duration;

use tollgate::store::{Call, Charge, CheckRequest, JointRequest, KeyState, RemoteStore, Wake};
use tollgate::{Answer, Decision, Error, Health, JointDecision, Limiter, StoreError};
use tollgate_core::{ChargeReceipt, Holds};
use tollgate_playground::{
    Playground, PlaygroundAlgorithm, PlaygroundError, PlaygroundReserveBody, PlaygroundSettleBody,
    Session, StateBody,
};

/// A store whose keys have spent nothing, and that decides nothing.
#[derive(Debug)]
struct StoreWithoutHolds;

impl RemoteStore for StoreWithoutHolds {
    fn check(&self, _: CheckRequest) -> Answer<Decision> {
        Answer::ready(Err(StoreError::Gone.into()))
    }

    fn check_all(&self, _: JointRequest) -> Answer<JointDecision> {
        Answer::ready(Err(StoreError::Gone.into()))
    }

    fn refund(&self, _: Charge, _: ChargeReceipt, _: Call, _: Wake) -> Answer<u64> {
        Answer::ready(Ok(0))
    }

    fn reset(&self, _: Charge, _: Call, _: Wake) -> Answer<()> {
        Answer::ready(Ok(()))
    }

    fn state(&self, charge: Charge, _: Call) -> Answer<KeyState> {
        let limit = *charge.limit();
        let (state, holds) = (limit.fresh(), Holds::default());
        Answer::ready(Ok(KeyState { limit, state, holds, now_us: 0 }))
    }

    fn health(&self) -> Health {
        Health::new(Vec::new(), Vec::new(), None)
    }
}

#[tokio::test]
async fn store_without_holds_refuses_reservations_and_has_no_concurrency() {
    let limiter = Limiter::builder().store(|_| Ok(StoreWithoutHolds)).unwrap().build();
    let playground = Playground::on_servers(&limiter, Duration::from_secs(1)).unwrap();
    assert!(!playground.has_holds() && Playground::in_memory().has_holds());
    let session = Session::of(&http::HeaderMap::new());
    for algorithm in PlaygroundAlgorithm::ALL {
        let reserved =
            playground.reserve(algorithm, PlaygroundReserveBody::default(), &session).await;
        let settled = playground.settle(algorithm, PlaygroundSettleBody::default(), &session).await;
        for error in [reserved.map(|_| ()).unwrap_err(), settled.map(|_| ()).unwrap_err()] {
            let PlaygroundError::Limiter(error) = error else { panic!("{error}") };
            assert!(matches!(error, Error::HoldsUnsupported), "{error}");
            assert!(error.to_string().contains("this store has no holds"), "{error}");
        }
    }
    let state = playground.state(StateBody::default(), &session).await.unwrap();
    let state = serde_json::to_value(state).unwrap();
    let algorithms: Vec<_> = state["algorithms"].as_object().unwrap().keys().collect();
    assert_eq!(algorithms.len(), PlaygroundAlgorithm::OF_REQUESTS.len(), "{algorithms:?}");
    playground.reset(&session).await.unwrap();
}
