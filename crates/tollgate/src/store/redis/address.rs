//! Where the servers are, and what it takes to connect to them.

mod url;

use std::fmt;
use std::sync::Arc;

use redis::{Client, ConnectionAddr, ConnectionInfo, ProtocolVersion};

use super::tls::Certificates;
use crate::error::{Error, StoreError};

/// Where the servers are, and how they are to each other.
#[derive(Clone, Debug)]
pub(super) enum Deployment {
    One(Server),
    /// Those to ask for all others.
    Cluster {
        seeds: Vec<Server>,
    },
    Sentinel {
        sentinels: Vec<Server>,
        /// Of the primary, as the Sentinels know it.
        name: String,
        /// What the primary is connected with; its address is the Sentinels' to say.
        primary: Server,
    },
    /// Each has some of the keys.
    Shards(Vec<Server>),
}

impl Deployment {
    /// What a URL says. The files that it names are read now.
    pub(super) fn of(url: &str) -> Result<Deployment, Error> {
        url::deployment(url).map_err(|problem| Error::Setting { setting: "redis", problem })
    }

    /// Gives every server other certificates.
    #[cfg(feature = "tls")]
    pub(super) fn certify(
        &mut self,
        setting: &'static str,
        change: impl FnOnce(&mut Certificates) -> Result<(), String>,
    ) -> Result<(), Error> {
        let mut servers = self.servers();
        let given = servers.first().and_then(|server| server.certificates.as_deref());
        let Some(mut certificates) = given.cloned() else {
            let problem = "the URL asks for no TLS; use rediss, or leave the certificate out";
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
    fn servers(&mut self) -> Vec<&mut Server> {
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

/// A server, and what it takes to connect to it.
#[derive(Clone)]
pub(super) struct Server {
    connection: ConnectionInfo,
    name: String,
    /// If it speaks TLS.
    certificates: Option<Arc<Certificates>>,
}

impl Server {
    /// One with certificates speaks TLS.
    fn new(mut connection: ConnectionInfo, certificates: Option<Arc<Certificates>>) -> Server {
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
        Server { connection, name, certificates }
    }

    /// What connects to it.
    pub(super) fn client(&self) -> Result<Client, StoreError> {
        let connection = self.connection.clone();
        match &self.certificates {
            None => Client::open(connection),
            Some(certificates) => certificates.client(connection),
        }
        .map_err(|error| StoreError::unreachable(&self.name, error.category()))
    }

    /// The same, in another version of the protocol.
    pub(super) fn speaking(&self, protocol: ProtocolVersion) -> Server {
        let settings = self.connection.redis_settings().clone().set_protocol(protocol);
        let connection = self.connection.clone().set_redis_settings(settings);
        Server { connection, ..self.clone() }
    }

    /// Whether it tells what was not asked for.
    pub(super) fn is_pushing(&self) -> bool {
        self.connection.redis_settings().protocol().supports_resp3()
    }

    /// The same user, TLS and database, elsewhere.
    pub(super) fn at(&self, host: &str, port: u16) -> Server {
        let elsewhere = ConnectionAddr::Tcp(host.to_owned(), port);
        Server::new(self.connection.clone().set_addr(elsewhere), self.certificates.clone())
    }

    /// Host and port, or the socket's path: `redis.example:6379`, `[::1]:6379`, `/run/redis.sock`. The
    /// same however the URL has it, without user and password.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// `None` of one on a socket.
    pub(super) fn host_and_port(&self) -> Option<(&str, u16)> {
        match self.connection.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some((host, *port))
            }
            _ => None,
        }
    }

    /// What must not be in any error.
    pub(super) fn password(&self) -> Option<&str> {
        self.connection.redis_settings().password()
    }
}

/// Without the user: who forgets the colon has the password there.
impl fmt::Debug for Server {
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
