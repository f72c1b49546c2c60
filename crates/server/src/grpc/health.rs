//! Reports to the health service whether the server is ready, the same as `/readyz`.

use std::future::pending;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::lifecycle::Phase;
use crate::readiness::Readiness;

/// The names in the health service: "" for the whole server, and its services.
const SERVICES: [&str; 3] = ["", "tollgate", SERVICE_NAME];

/// Reports whether the server is ready, until it closes.
pub(super) async fn report_readiness(mut reporter: HealthReporter, readiness: &Readiness) {
    let lifecycle = readiness.lifecycle();
    // Before the first report, so that no later change is missed.
    let mut answers = readiness.store().follow();
    loop {
        set(&mut reporter, readiness).await;
        let changed = async {
            match &mut answers {
                // OK because `readiness` keeps the sender, so this is never an error.
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
    // Ends the streams of watching clients, so that the server does not wait for them.
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
