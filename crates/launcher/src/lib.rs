//! Starts real Redis and Valkey servers for tests, each in its own directory and on its own port.
//!
//! ```no_run
//! use tollgate_launcher::{Flavour, Launch};
//!
//! let server = Launch::new(Flavour::Redis).config("maxmemory", "10mb").start()?;
//! println!("{} and {}", server.url(), server.unix_url());
//! # Ok::<(), tollgate_launcher::LaunchError>(())
//! ```
//!
//! A server stops when it is dropped, also when a test panics. A server in a `static` is never dropped: put
//! it into a [`SharedServers`], which stops it when the process ends. `make servers` installs both servers.
//! `TOLLGATE_REDIS_SERVER` and `TOLLGATE_VALKEY_SERVER` name others.
//!
//! The main types:
//!
//! - [`Server`] can be frozen, killed, restarted, made a replica of another, and have its clock set.
//! - [`Cluster`] is a group of servers that share the slots; [`Sentinels`] watch a primary.
//! - [`Proxy`] forwards connections to a server and drops, cuts or delays its replies.
//! - [`freeze_process`] and [`thaw_process`] stop and continue any child process of a test.

mod ask;
mod certificate;
mod clock;
mod cluster;
mod error;
mod faketime;
mod find;
mod launch;
mod ports;
mod proxy;
mod sentinels;
mod server;
mod shared;
mod signals;
mod wait;

#[cfg(feature = "tls")]
pub use certificate::Authority;
pub use certificate::ServerCertificate;
pub use cluster::{Cluster, ClusterLaunch, ClusterNode, FailOver};
pub use error::{LaunchError, Scene};
pub use launch::Launch;
pub use ports::free_port;
pub use proxy::Proxy;
pub use sentinels::{SentinelLaunch, Sentinels};
pub use server::Server;
pub use shared::{ServerGroup, SharedServers};
pub use signals::{freeze_process, thaw_process};

use std::fmt;

/// The kind of server. Both kinds have the same protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// `redis-server`.
    Redis,
    /// `valkey-server`.
    Valkey,
}

impl Flavour {
    /// Every flavour.
    pub const ALL: [Flavour; 2] = [Flavour::Redis, Flavour::Valkey];
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Flavour::Redis => "redis",
            Flavour::Valkey => "valkey",
        })
    }
}
