//! Where a node's connection leads, and how it is opened.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, ProtocolVersion, PushInfo, PushKind, RedisError};
use tokio::time::timeout;

use super::address::Server;
use super::node::Node;
use super::sentinel::Sentinels;
use super::slots::Address;
use tollgate_limiter::StoreError;

/// How long it may take to open a connection.
pub(super) const OPENING: Duration = Duration::from_secs(5);

/// Where a node's connection leads.
pub(super) enum Target {
    /// To one server, always.
    Fixed { server: Server, name: String, address: Option<Address> },
    /// To the server that is the primary at the time.
    Primary(Sentinels),
}

impl Target {
    pub(super) fn of(server: Server) -> Target {
        let name = server.name().to_owned();
        let address =
            server.host_and_port().map(|(host, port)| Address { host: host.into(), port });
        Target::Fixed { server, name, address }
    }

    /// Its address, without user and password.
    pub(super) fn name(&self) -> &str {
        match self {
            Target::Fixed { name, .. } => name,
            Target::Primary(sentinels) => sentinels.name(),
        }
    }

    /// The address of one that is always the same.
    pub(super) fn address(&self) -> Option<&Address> {
        match self {
            Target::Fixed { address, .. } => address.as_ref(),
            Target::Primary(_) => None,
        }
    }

    pub(super) async fn open(&self) -> Result<Open, StoreError> {
        let open = async {
            match self {
                Target::Fixed { server, .. } => open(server).await,
                Target::Primary(sentinels) => sentinels.open().await,
            }
        };
        let opened = timeout(OPENING, open).await;
        opened.unwrap_or_else(|_| Err(StoreError::unreachable(self.name(), "it does not answer")))
    }

    /// Now and then, looks whether it is still where it was.
    pub(super) fn refresh_if_old(&self, node: &Arc<Node>) {
        if let Target::Primary(sentinels) = self {
            sentinels.refresh_if_old(node);
        }
    }
}

/// A connection that is kept, and whether the other side has closed it.
#[derive(Clone)]
pub(super) struct Open {
    pub(super) connection: MultiplexedConnection,
    is_closed: Arc<AtomicBool>,
}

impl Open {
    /// Then nothing was sent on it. One of RESP2 is only found closed by what is.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }
}

/// Opens a connection to be kept.
pub(super) async fn open(server: &Server) -> Result<Open, StoreError> {
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
    Ok(Open { connection, is_closed })
}

/// Opens a connection for a question or two, which any server understands.
pub(super) async fn connect(server: &Server) -> Result<MultiplexedConnection, StoreError> {
    connect_with(&server.speaking(ProtocolVersion::RESP2), &config()).await
}

fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(Some(OPENING)).set_response_timeout(None)
}

async fn connect_with(
    server: &Server,
    config: &AsyncConnectionConfig,
) -> Result<MultiplexedConnection, StoreError> {
    let client = server.client()?;
    let opened = client.get_multiplexed_async_connection_with_config(config).await;
    opened.map_err(|error| opening_error(&error, server))
}

/// What an error of a server comes to.
pub(super) fn store_error(error: &RedisError, server: &str) -> StoreError {
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => {
            let code = error.code().unwrap_or(error.category());
            StoreError::refused(&format!("{code} {}", error.detail().unwrap_or_default()))
        }
        _ => StoreError::unreachable(server, &error.to_string()),
    }
}

/// What goes wrong before there is a connection: what the server says then may repeat the password.
fn opening_error(error: &RedisError, server: &Server) -> StoreError {
    // All of it, or as much as fits in what it says.
    let said = error.detail().unwrap_or_default();
    let is_said = |password: &str| {
        let beginning = password.char_indices().nth(8).map_or(password, |(at, _)| &password[..at]);
        said.contains(beginning)
    };
    let repeats_password = server.password().is_some_and(is_said);
    if server.is_pushing() && said.contains("unknown command") {
        return StoreError::refused(
            "it does not know HELLO; use Redis 6 or newer, or add protocol=resp2 to the URL",
        );
    }
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed
            if repeats_password =>
        {
            StoreError::refused(error.code().unwrap_or(error.category()))
        }
        _ => store_error(error, server.name()),
    }
}
