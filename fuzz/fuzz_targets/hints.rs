//! Passes any response of a server to a paced client. The client must not panic or hang, and must not wait longer than its
//! maximum.

#![no_main]

use std::convert::Infallible;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Response, StatusCode};
use libfuzzer_sys::fuzz_target;
use tollgate::tower::{PaceError, PaceLayer};
use tollgate::{Limit, Limiter};
use tower::{Layer, ServiceExt, service_fn};

const NAMES: [&str; 6] = [
    "retry-after",
    "ratelimit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "ratelimit-remaining",
    "ratelimit-reset",
];

const MAX_DELAY: Duration = Duration::from_secs(60);

fuzz_target!(|input: &[u8]| {
    let limit: Limit = "token-bucket capacity=9 refill=1/s".parse().expect("a valid limit");
    let limiter = Limiter::builder().max_bytes(1 << 16).build();
    let scope = limiter.scope("fuzz", limit).expect("memory for the first scope");
    let layer = PaceLayer::new(scope).max_delay(MAX_DELAY).max_wait(Duration::ZERO);
    let answer = response(input);
    let service = layer.layer(service_fn(move |()| {
        let answer = answer.clone();
        async move { Ok::<_, Infallible>(answer) }
    }));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(async {
        assert!(service.clone().oneshot(()).await.is_ok());
        if let Err(PaceError::TooLong { would_wait }) = service.oneshot(()).await {
            assert!(would_wait <= MAX_DELAY, "{would_wait:?}");
        }
    });
});

/// Returns a response. The first byte of the input chooses the status, and the first byte of each line after it chooses a
/// header.
fn response(input: &[u8]) -> Response<()> {
    let mut response = Response::new(());
    let Some((status, lines)) = input.split_first() else { return response };
    *response.status_mut() =
        [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE]
            [usize::from(status % 3)];
    for line in lines.split(|&byte| byte == b'\n') {
        let Some((name, value)) = line.split_first() else { continue };
        let Ok(value) = HeaderValue::from_bytes(value) else { continue };
        let name = HeaderName::from_static(NAMES[usize::from(*name) % NAMES.len()]);
        response.headers_mut().append(name, value);
    }
    response
}
