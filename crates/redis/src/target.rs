//! The server that a node connects to: always the same one, or the primary that sentinels name.

use tokio::time::timeout;
use tollgate_limiter::StoreError;

use super::address::ServerSettings;
use super::connect::{MAX_OPENING, OpenConnection, open};
use super::sentinel::SentinelGroup;
use super::slots::ServerAddress;

/// The server that a node connects to.
pub(super) enum Target {
    /// Always the same server.
    Fixed { server: ServerSettings, name: String, address: Option<ServerAddress> },
    /// The server that is the primary at the time.
    Primary(SentinelGroup),
}

impl Target {
    /// Returns the target that is always this server.
    pub(super) fn of(server: ServerSettings) -> Target {
        let name = server.name().to_owned();
        let address =
            server.host_and_port().map(|(host, port)| ServerAddress { host: host.into(), port });
        Target::Fixed { server, name, address }
    }

    /// Returns the address without user and password.
    pub(super) fn name(&self) -> &str {
        match self {
            Target::Fixed { name, .. } => name,
            Target::Primary(sentinels) => sentinels.name(),
        }
    }

    /// Returns the address, if it is always the same.
    pub(super) fn address(&self) -> Option<&ServerAddress> {
        match self {
            Target::Fixed { address, .. } => address.as_ref(),
            Target::Primary(_) => None,
        }
    }

    /// Opens a connection.
    pub(super) async fn open(&self) -> Result<OpenConnection, StoreError> {
        let open = async {
            match self {
                Target::Fixed { server, .. } => open(server).await,
                Target::Primary(sentinels) => sentinels.open().await,
            }
        };
        let opened = timeout(MAX_OPENING, open).await;
        opened.unwrap_or_else(|_| Err(StoreError::unreachable(self.name(), "it does not answer")))
    }

    /// Returns true if it is time to find out where the primary is, and records that this begins now. The caller must then
    /// call [`open_elsewhere`](Self::open_elsewhere).
    pub(super) fn begin_refresh_if_due(&self) -> bool {
        match self {
            Target::Fixed { .. } => false,
            Target::Primary(sentinels) => sentinels.begin_refresh_if_due(),
        }
    }

    /// Opens a connection to the primary if it has moved to another address.
    pub(super) async fn open_elsewhere(&self) -> Option<OpenConnection> {
        match self {
            Target::Fixed { .. } => None,
            Target::Primary(sentinels) => sentinels.open_elsewhere().await,
        }
    }
}
