use std::future::{Ready, ready};

use http::Response;
use tollgate::tower::{PaceError, PaceLayer};
use tower::retry::{Policy, RetryLayer};
use tower::{Layer, ServiceExt};

use crate::setup::{Outcome, Server, busy, paced, scope};

/// Retries while the server answers 429.
#[derive(Clone)]
struct WhileBusy;

impl Policy<u32, Response<()>, PaceError> for WhileBusy {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut u32, outcome: &mut Outcome) -> Option<Ready<()>> {
        outcome.as_ref().is_ok_and(|response| response.status() == 429).then(|| ready(()))
    }

    fn clone_request(&mut self, request: &u32) -> Option<u32> {
        Some(*request)
    }
}

#[tokio::test(start_paused = true)]
async fn retry_is_sent_after_the_servers_retry_after() {
    let server = Server::new(&[busy("2"), busy("3")]);
    let layer = PaceLayer::new(scope("token-bucket capacity=1 refill=10/s"));
    let service = RetryLayer::new(WhileBusy).layer(paced(&layer, &server));
    assert_eq!(service.oneshot(0).await.unwrap().status(), 200);
    assert_eq!(server.arrivals_ms(), [0, 2_000, 5_000]);
}
