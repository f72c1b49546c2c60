//! What the health service says: the same as `/readyz`.

use std::future::pending;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::lifecycle::Phase;
use crate::readiness::Readiness;

/// What health is asked of: the whole server, which is called "", and its services.
const SERVICES: [&str; 3] = ["", "tollgate", SERVICE_NAME];

/// Says whether the server is ready until it closes.
pub(super) async fn readiness(mut reporter: HealthReporter, readiness: &Readiness) {
    let lifecycle = readiness.lifecycle();
    // First: what changes after this is noticed.
    let mut answers = readiness.store().follow();
    loop {
        set(&mut reporter, readiness).await;
        let changed = async {
            match &mut answers {
                // An error is that there is no probe any more, and nothing to come.
                Some(answers) => drop(answers.changed().await),
                None => pending().await,
            }
        };
        tokio::select! {
            () = changed => {}
            () = lifecycle.reached(Phase::Draining) => break,
        }
    }
    set(&mut reporter, readiness).await;
    lifecycle.reached(Phase::Closing).await;
    // Who watches is told that there is no more to come, and need not be waited for.
    for service in SERVICES {
        reporter.clear_service_status(service).await;
    }
}

async fn set(reporter: &mut HealthReporter, readiness: &Readiness) {
    let status =
        if readiness.is_ready() { ServingStatus::Serving } else { ServingStatus::NotServing };
    for service in SERVICES {
        reporter.set_service_status(service, status).await;
    }
}
