//! The gRPC port: Envoy's rate limit service, and the standard services of health and reflection.
//!
//! - `connection`: from its first byte to its last; `calls`: what is asked for, and what is counted of it
//! - `call`: one message and its answer; `timeout`: how long its caller waits
//! - `rate_limit`: what Envoy asks; `protobuf`: how the answer is written
//! - `report`: what health is told; `reflection`: what clients can learn of the services

mod call;
mod calls;
mod connection;
mod protobuf;
mod rate_limit;
mod reflection;
mod report;
mod timeout;

use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2::Builder;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic_health::server::health_reporter;

use crate::listener::Bounds;
use crate::served::Served;
use calls::Calls;
pub(crate) use rate_limit::fuzz;

/// The most requests at a time on one connection: as many as Envoy sends on a new one before it has read how many it
/// may. Those that are refused it lets pass.
const MAX_STREAMS: u32 = 1_024;

/// The most bytes of headers of a request: Envoy may send a client's on, such as `tracestate`, of which it takes 60 KiB.
const MAX_HEADER_BYTES: u32 = 128 << 10;

/// The most bytes that are on their way, of one request and of a whole connection. That many requests of 60 KiB do
/// not wait for each other: Envoy lets those pass that are late.
const MAX_UNREAD_BYTES: u32 = 256 << 10;
const MAX_UNREAD_OF_ALL_BYTES: u32 = 4 << 20;

/// The most bytes of answers that wait to be sent.
const MAX_UNSENT_BYTES: usize = 64 << 10;

/// As long as a frame may be without asking.
const MAX_FRAME_BYTES: u32 = 16 << 10;

// What a connection can make the server keep: each request 4 KiB of a message, 4 KiB of an answer and 2 KiB beside
// them, 1,024 times; 4 MiB that nobody has read, and 128 KiB of headers. That is less than 15 MiB. What of a message is
// longer is from the budget that all have together.

/// So many requests may be taken back before anybody has looked at them, and so many be wrong: whoever goes beyond
/// floods, and the connection ends. Envoy takes back what its clients do, and what it was not answered in 20 ms: of a
/// server that was held up for a third of a second, 16 times all that may be open. Whatever else is on the connection must be answered still, or Envoy lets it pass.
const MAX_TAKEN_BACK: usize = 16 << 10;
const MAX_WRONG: usize = 1_024;

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

/// Serves gRPC until the server closes, and everything that is in flight then.
pub(crate) async fn serve(listener: TcpListener, bounds: Bounds, served: Arc<Served>) {
    let (reporter, health) = health_reporter();
    let routes = Routes::new(health.max_decoding_message_size(MAX_QUESTION_BYTES));
    let calls = Calls::new(reflection::add_to(routes), Arc::clone(&served), bounds.request);
    let connections = connection::serve(listener, bounds, &served, calls);
    tokio::join!(connections, report::readiness(reporter, &served));
}

/// HTTP/2, with bounds to what a client can do.
fn http2() -> Builder<TokioExecutor> {
    let mut http2 = Builder::new(TokioExecutor::new());
    http2
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_frame_size(MAX_FRAME_BYTES)
        .initial_connection_window_size(MAX_UNREAD_OF_ALL_BYTES)
        .initial_stream_window_size(MAX_UNREAD_BYTES)
        .max_send_buf_size(MAX_UNSENT_BYTES)
        .max_pending_accept_reset_streams(MAX_TAKEN_BACK)
        .max_local_error_reset_streams(MAX_WRONG)
        .keep_alive_interval(ASK_EVERY)
        .keep_alive_timeout(ANSWER_WITHIN)
        // Nobody asked what day it is.
        .auto_date_header(false);
    http2
}
