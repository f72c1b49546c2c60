//! Opening a connection to one server.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, RedisError};
use tollgate_limiter::StoreError;

use super::address::ServerSettings;
use super::fault::{Fault, FaultKind};

/// The longest time for opening a connection.
pub(super) const MAX_OPENING: Duration = Duration::from_secs(5);

/// An open connection to one server.
#[derive(Clone)]
pub(super) struct OpenConnection {
    pub(super) connection: MultiplexedConnection,
    is_closed: Arc<AtomicBool>,
}

impl OpenConnection {
    /// Returns whether the server is known to have closed the connection. With RESP2 that is only noticed when the next
    /// command fails.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }
}

/// Opens a connection for scripts.
pub(super) async fn open(server: &ServerSettings) -> Result<OpenConnection, StoreError> {
    let is_closed = Arc::new(AtomicBool::new(false));
    let mut config = config();
    if server.is_pushing() {
        let is_closed = Arc::clone(&is_closed);
        config = config.set_push_sender(move |push: PushInfo| {
            is_closed.fetch_or(push.kind == PushKind::Disconnection, Ordering::Relaxed);
            Ok::<_, Infallible>(())
        });
    }
    let connection = connect_with(server, &config).await?;
    Ok(OpenConnection { connection, is_closed })
}

/// Opens a connection for a few commands that are not scripts. It uses RESP2, which every server and version knows.
pub(super) async fn connect(server: &ServerSettings) -> Result<MultiplexedConnection, StoreError> {
    connect_with(&server.with_protocol(ProtocolVersion::RESP2), &config()).await
}

fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(MAX_OPENING))
        .set_response_timeout(None)
}

async fn connect_with(
    server: &ServerSettings,
    config: &AsyncConnectionConfig,
) -> Result<MultiplexedConnection, StoreError> {
    let client = server.client()?;
    let opened = client.get_multiplexed_async_connection_with_config(config).await;
    opened.map_err(|error| opening_error(&error, server))
}

/// Returns the error for a connection that could not be opened. The server's text may repeat the password, which must not
/// get into an error.
fn opening_error(error: &RedisError, server: &ServerSettings) -> StoreError {
    let fault = Fault::from_command(error, server.name());
    match fault.kind {
        FaultKind::UnknownCommand if server.is_pushing() => StoreError::refused(&format!(
            "{} does not know HELLO; use Redis 6 or newer, or add protocol=resp2 to the URL",
            server.name()
        )),
        FaultKind::Connection => fault.error,
        _ if repeats_password(error, server) => {
            StoreError::refused(error.code().unwrap_or(error.category()))
        }
        _ => fault.error,
    }
}

/// Whether the server's text contains the password, or its beginning: the text may be cut off.
fn repeats_password(error: &RedisError, server: &ServerSettings) -> bool {
    let (Some(password), Some(detail)) = (server.password(), error.detail()) else { return false };
    let beginning = password.char_indices().nth(8).map_or(password, |(at, _)| &password[..at]);
    detail.contains(beginning)
}
