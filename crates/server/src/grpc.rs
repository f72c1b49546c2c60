//! The gRPC port: Envoy's rate limit service, and the standard services of health and reflection.
//!
//! - `connection`: one connection, from its first byte to its last
//! - `calls`: runs calls and counts them; `call`: one call of Envoy's service; `tonic_calls`: calls of the other
//!   services
//! - `body`: receives the body of a call; `answer`: sends an answer; `timeout`: how long a caller waits
//! - `rate_limit`: Envoy's rate limit service; `protobuf`: writes its answers
//! - `health`: reports readiness to the health service; `reflection`: describes the services to clients

mod answer;
mod body;
mod call;
mod calls;
mod connection;
mod health;
mod protobuf;
mod rate_limit;
mod reflection;
mod timeout;
mod tonic_calls;

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

/// The most calls at a time on one connection: as many as Envoy makes on a new connection before it has read this
/// setting. A call beyond them is refused, and Envoy then lets the request pass.
const MAX_STREAMS: u32 = 1_024;

/// The most bytes of a call's headers, where each header counts 32 bytes besides its name and value. Envoy passes on
/// its client's `tracestate`, which has up to 60 KiB. An attacker can fill this with 2,048 headers of 35 bytes: see
/// `driver`.
const MAX_HEADER_BYTES: u32 = 70 << 10;

/// The most bytes that a client may send before the server takes them: of one call, and of a whole connection. The
/// server takes bytes as soon as they are read, and charges them to their call, so these windows need not bound memory.
/// They are large so that calls of 60 KiB do not wait for each other.
const WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

/// The most bytes of one answer that h2 keeps while the client has no window for them.
const MAX_UNSENT_BYTES: usize = 64 << 10;

/// The longest frame: the default of HTTP/2.
const MAX_FRAME_BYTES: u32 = 16 << 10;

/// The most calls that may be reset within one read. HEADERS and RST_STREAM together have at least 25 bytes, so a read
/// of 16 KiB has fewer resets. `connection::resets` bounds the resets of a whole connection.
const MAX_RESETS_A_READ: usize = 2_048;

/// The most streams that h2 may reset on a connection because of its client's errors.
const MAX_ERRORS: usize = 1_024;

/// The most streams that h2 remembers after it has reset them, because more frames for them may arrive.
const MAX_RESET_STREAMS: usize = 16;

/// The most bytes of a request to the health or the reflection service, which is little more than a name.
const MAX_TONIC_REQUEST_BYTES: usize = 4 << 10;

/// How long a client may be silent before it gets a ping, and how long it then has to answer.
const PING_AFTER: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// The age at which the server ends a connection, so that its client may connect to a server that was added meanwhile.
/// Each connection lives longer by a random time of up to [`MAX_AGE_JITTER_S`], so that connections that were made
/// together do not end together.
const MAX_AGE: Duration = Duration::from_secs(30 * 60);
const MAX_AGE_JITTER_S: u64 = 5 * 60;

/// The time that an old connection has to finish its calls. A health watch would otherwise never end.
const MAX_AGE_GRACE: Duration = Duration::from_secs(60);

/// The parts of the server that the gRPC port uses.
pub(crate) struct GrpcParts {
    pub(crate) envoy: RateLimitService,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) connections: Arc<Connections>,
}

/// Serves gRPC until the server closes, and then until the calls in flight have ended.
pub(crate) async fn serve(listener: TcpListener, bounds: Bounds, parts: GrpcParts) {
    let GrpcParts { envoy, readiness, connections } = parts;
    let (reporter, health) = health_reporter();
    let routes = Routes::new(health.max_decoding_message_size(MAX_TONIC_REQUEST_BYTES));
    let calls = Calls::new(reflection::add_to(routes), Arc::new(envoy), bounds.request);
    let lifecycle = readiness.lifecycle();
    let serving = connection::serve(listener, bounds, connections, lifecycle, calls);
    tokio::join!(serving, health::report_readiness(reporter, &readiness));
}

/// Returns the settings of HTTP/2, which bound what a client can do.
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
