//! Where a node's connection leads, and how it is opened.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, RedisError};
use tokio::time::timeout;

use super::address::Server;
use super::node::Node;
use super::sentinel::Sentinels;
use super::slots::Address;
use crate::error::StoreError;

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

    pub(super) async fn open(&self) -> Result<MultiplexedConnection, StoreError> {
        let open = async {
            match self {
                Target::Fixed { server, .. } => connect(server).await,
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

/// Opens a connection.
pub(super) async fn connect(server: &Server) -> Result<MultiplexedConnection, StoreError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(OPENING))
        .set_response_timeout(None);
    let client = server.client()?;
    let opened = client.get_multiplexed_async_connection_with_config(&config).await;
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
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed
            if repeats_password =>
        {
            StoreError::refused(error.code().unwrap_or(error.category()))
        }
        _ => store_error(error, server.name()),
    }
}
