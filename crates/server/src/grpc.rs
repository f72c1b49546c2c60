//! The gRPC port: Envoy's rate limit service, and the standard services of health and reflection.
//!
//! - `connection`: one connection, from its first byte to its last
//! - `calls`: what is counted of calls; `call`: one call of Envoy's; `routed`: calls of the other services
//! - `body`: what a call receives; `answer`: what is sent; `timeout`: how long a caller waits
//! - `rate_limit`: what Envoy asks; `protobuf`: how the answer is written
//! - `report`: what the health service reports; `reflection`: what clients can learn of the services

mod answer;
mod body;
mod call;
mod calls;
mod connection;
mod protobuf;
mod rate_limit;
mod reflection;
mod report;
mod routed;
mod timeout;

use std::sync::Arc;
use std::time::Duration;

use h2::server::Builder;
use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic_health::server::health_reporter;

use crate::listener::{Bounds, Connections};
use crate::readiness::Readiness;
use calls::Calls;
pub(crate) use rate_limit::{RateLimitService, fuzz};

/// The most calls at a time on one connection: the most that Envoy makes on a new one before it has read this number.
/// A call beyond it is refused, and Envoy then lets the request pass.
const MAX_STREAMS: u32 = 1_024;

/// The most bytes of a call's headers, of which each takes 32 beside its name and value. Envoy sends on what its client
/// sent as `tracestate`, up to 60 KiB. An attacker makes 2,048 headers of 35 bytes out of it: see `driver`.
const MAX_HEADER_BYTES: u32 = 70 << 10;

/// The most bytes that a client may send before they are taken: of one call, and of a whole connection. They are taken as
/// soon as they are read and charged to the call, so they bound no memory; calls of 60 KiB should not wait for each other.
const WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

/// The most bytes of one answer that h2 takes before the client has room for them.
const MAX_UNSENT_BYTES: usize = 64 << 10;

/// The longest frame: what every client may send without asking.
const MAX_FRAME_BYTES: u32 = 16 << 10;

/// The most calls that may be reset in the bytes of one read: HEADERS and RST_STREAM have 25 bytes or more, so a read of
/// 16 KiB has fewer. How many may be reset in all is for `connection::resets`.
const MAX_RESETS_A_READ: usize = 2_048;

/// The most streams that h2 may reset on a connection for errors of its client.
const MAX_ERRORS: usize = 1_024;

/// The most streams that h2 remembers after it has reset them, because frames for them may be on their way.
const MAX_RESET_STREAMS: usize = 16;

/// The most bytes of a question about health, or about the services: a name.
const MAX_QUESTION_BYTES: usize = 4 << 10;

/// Whether somebody is still there is asked so often, and has to be answered in so long.
const ASK_EVERY: Duration = Duration::from_secs(20);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// So old, a connection is told to end, and its client may find a server that was not there before; up to so much
/// later, so that those that came together do not go together.
const MAX_AGE: Duration = Duration::from_secs(30 * 60);
const MAX_AGE_APART_S: u64 = 5 * 60;

/// Then it has so long to finish what it does: who only watches would go on for ever.
const MAX_AGE_GRACE: Duration = Duration::from_secs(60);

/// The parts of the server that the gRPC port is made of.
pub(crate) struct GrpcParts {
    pub(crate) envoy: RateLimitService,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) connections: Arc<Connections>,
}

/// Serves gRPC until the server closes, and everything that is in flight then.
pub(crate) async fn serve(listener: TcpListener, bounds: Bounds, parts: GrpcParts) {
    let GrpcParts { envoy, readiness, connections } = parts;
    let (reporter, health) = health_reporter();
    let routes = Routes::new(health.max_decoding_message_size(MAX_QUESTION_BYTES));
    let calls = Calls::new(reflection::add_to(routes), Arc::new(envoy), bounds.request);
    let lifecycle = readiness.lifecycle();
    let serving = connection::serve(listener, bounds, connections, lifecycle, calls);
    tokio::join!(serving, report::readiness(reporter, &readiness));
}

/// Returns the settings of HTTP/2, with bounds to what a client can do.
fn http2() -> Builder {
    let mut http2 = Builder::new();
    http2
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_frame_size(MAX_FRAME_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_window_size(WINDOW_BYTES)
        .max_send_buffer_size(MAX_UNSENT_BYTES)
        .max_pending_accept_reset_streams(MAX_RESETS_A_READ)
        .max_local_error_reset_streams(Some(MAX_ERRORS))
        .max_concurrent_reset_streams(MAX_RESET_STREAMS);
    http2
}
