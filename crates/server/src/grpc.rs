//! The gRPC port.

use tokio::net::TcpListener;

use crate::lifecycle::{Lifecycle, Phase};

/// Serves gRPC until the server closes.
pub(crate) async fn serve(listener: TcpListener, lifecycle: Lifecycle) {
    let _listener = listener;
    lifecycle.reached(Phase::Closing).await;
}
