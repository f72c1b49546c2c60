//! The gRPC port: Envoy's rate limit service, and the standard health service.

mod incoming;
mod rate_limit;
mod report;

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic_health::server::health_reporter;

use crate::lifecycle::Phase;
use crate::listener::Bounds;
use crate::served::Served;
use incoming::Incoming;
use rate_limit::RateLimit;

/// The most requests at a time on one connection. Who watches health does so for each of a few services.
const MAX_STREAMS: u32 = 8;

/// The most bytes of headers of a request, and of what is on its way on a connection.
const MAX_HEADER_BYTES: u32 = 16 << 10;
const MAX_UNREAD_BYTES: u32 = 64 << 10;

/// The most bytes of a question about health: the name of a service.
const MAX_QUESTION_BYTES: usize = 4 << 10;

/// Whether somebody is still there is asked so often, and has to be answered in so long.
const ASK_EVERY: Duration = Duration::from_secs(20);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// So old, a connection is replaced: its client may find a server that was not there before.
const MAX_AGE: Duration = Duration::from_secs(30 * 60);

/// Then it has so long to finish what it does: who only watches would go on for ever.
const MAX_AGE_GRACE: Duration = Duration::from_secs(60);

/// Serves gRPC until the server closes, and everything that is in flight then.
pub(crate) async fn serve(listener: TcpListener, bounds: Bounds, served: Arc<Served>) {
    let lifecycle = &served.lifecycle;
    let (reporter, health) = health_reporter();
    let server = Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .initial_connection_window_size(MAX_UNREAD_BYTES)
        .initial_stream_window_size(MAX_UNREAD_BYTES)
        .http2_keepalive_interval(Some(ASK_EVERY))
        .http2_keepalive_timeout(Some(ANSWER_WITHIN))
        .max_connection_age(MAX_AGE)
        .max_connection_age_grace(MAX_AGE_GRACE)
        .timeout(bounds.request)
        .add_service(RateLimitServiceServer::new(RateLimit::new(Arc::clone(&served))))
        .add_service(health.max_decoding_message_size(MAX_QUESTION_BYTES));
    let connections = Arc::clone(&served.grpc_connections);
    let incoming = Incoming::new(listener, bounds, lifecycle.clone(), connections);
    let ended = server.serve_with_incoming_shutdown(incoming, lifecycle.reached(Phase::Closing));
    if let (Err(error), ()) = tokio::join!(ended, report::readiness(reporter, &served)) {
        tracing::error!(%error, "gRPC has ended");
    }
}
