//! The addresses of the servers, and the settings of connections to them.

mod url;

use std::fmt;
use std::sync::Arc;

use redis::{Client, ConnectionAddr, ConnectionInfo, ProtocolVersion};
use tollgate_limiter::{Error, StoreError};

use super::tls::Certificates;

/// The servers of a limiter, and how the keys are spread over them.
#[derive(Clone, Debug)]
pub(super) enum Deployment {
    One(ServerSettings),
    /// A cluster: some of its servers. Their replies name the others.
    Cluster {
        seeds: Vec<ServerSettings>,
    },
    Sentinel {
        sentinels: Vec<ServerSettings>,
        /// The name of the primary in the sentinels' configuration.
        name: String,
        /// The settings of connections to the primary; the sentinels know its address.
        primary: ServerSettings,
    },
    /// Servers that do not know of each other. Each of them has some of the keys.
    Shards(Vec<ServerSettings>),
}

impl Deployment {
    /// Reads a URL, and the files that it names.
    pub(super) fn of(url: &str) -> Result<Deployment, Error> {
        url::deployment(url).map_err(|problem| Error::Setting { setting: "redis", problem })
    }

    /// Changes the certificates of all servers.
    // Certificates need the feature `tls`, which brings a TLS library.
    #[cfg(feature = "tls")]
    pub(super) fn certify(
        &mut self,
        setting: &'static str,
        change: impl FnOnce(&mut Certificates) -> Result<(), String>,
    ) -> Result<(), Error> {
        let mut servers = self.servers();
        let given = servers.first().and_then(|server| server.certificates.as_deref());
        let Some(mut certificates) = given.cloned() else {
            let problem = "the URL does not use TLS; use rediss, or leave the certificate out";
            return Err(Error::Setting { setting, problem: problem.to_owned() });
        };
        change(&mut certificates).map_err(|problem| Error::Setting { setting, problem })?;
        let certificates = Arc::new(certificates);
        for server in &mut servers {
            server.certificates = Some(Arc::clone(&certificates));
        }
        Ok(())
    }

    #[cfg(feature = "tls")]
    fn servers(&mut self) -> Vec<&mut ServerSettings> {
        match self {
            Deployment::One(server) => vec![server],
            Deployment::Cluster { seeds: servers } | Deployment::Shards(servers) => {
                servers.iter_mut().collect()
            }
            Deployment::Sentinel { sentinels, primary, .. } => {
                sentinels.iter_mut().chain([primary]).collect()
            }
        }
    }
}

/// A server, and the settings of connections to it.
#[derive(Clone)]
pub(super) struct ServerSettings {
    connection: ConnectionInfo,
    name: String,
    /// `None` if connections are not encrypted.
    certificates: Option<Arc<Certificates>>,
}

impl ServerSettings {
    /// Returns a server. With certificates, connections to it use TLS.
    fn new(
        mut connection: ConnectionInfo,
        certificates: Option<Arc<Certificates>>,
    ) -> ServerSettings {
        let name = match connection.addr().clone() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                let name = name(&host, port);
                if certificates.is_some() {
                    let insecure = false;
                    let tls = ConnectionAddr::TcpTls { host, port, insecure, tls_params: None };
                    connection = connection.set_addr(tls);
                }
                name
            }
            other => other.to_string(),
        };
        ServerSettings { connection, name, certificates }
    }

    /// Returns the client that opens connections.
    pub(super) fn client(&self) -> Result<Client, StoreError> {
        let connection = self.connection.clone();
        match &self.certificates {
            None => Client::open(connection),
            Some(certificates) => certificates.client(connection),
        }
        .map_err(|error| StoreError::unreachable(&self.name, error.category()))
    }

    /// Returns the same server with another version of the protocol.
    pub(super) fn with_protocol(&self, protocol: ProtocolVersion) -> ServerSettings {
        let settings = self.connection.redis_settings().clone().set_protocol(protocol);
        let connection = self.connection.clone().set_redis_settings(settings);
        ServerSettings { connection, ..self.clone() }
    }

    /// Whether the server sends push messages (RESP3).
    pub(super) fn is_pushing(&self) -> bool {
        self.connection.redis_settings().protocol().supports_resp3()
    }

    /// Returns a server with the same user, TLS and database at another address.
    pub(super) fn at(&self, host: &str, port: u16) -> ServerSettings {
        let elsewhere = ConnectionAddr::Tcp(host.to_owned(), port);
        ServerSettings::new(self.connection.clone().set_addr(elsewhere), self.certificates.clone())
    }

    /// Returns host and port, or the socket's path: `redis.example:6379`, `[::1]:6379`, `/run/redis.sock`. The name is the same
    /// however the URL spells the address, and has no user and no password.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns host and port; `None` for a Unix socket.
    pub(super) fn host_and_port(&self) -> Option<(&str, u16)> {
        match self.connection.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some((host, *port))
            }
            _ => None,
        }
    }

    /// Returns the password, which must not be in any error.
    pub(super) fn password(&self) -> Option<&str> {
        self.connection.redis_settings().password()
    }
}

/// Leaves the user out: a URL without the colon has the password in the user's place.
impl fmt::Debug for ServerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("name", &self.name)
            .field("database", &self.connection.redis_settings().db())
            .field("tls", &self.certificates.is_some())
            .finish_non_exhaustive()
    }
}

fn name(host: &str, port: u16) -> String {
    let host = host.to_ascii_lowercase();
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests;
