//! The open connections of a proxy, kept so that they can be closed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::connection::ProxiedConnection;

/// A connection and the threads that serve it.
#[derive(Debug)]
struct ServedConnection {
    connection: Arc<ProxiedConnection>,
    threads: Vec<JoinHandle<()>>,
}

/// The open connections of a proxy.
#[derive(Debug, Default)]
pub(super) struct OpenConnections(Mutex<Vec<ServedConnection>>);

impl OpenConnections {
    /// Adds a connection, and removes connections that have ended.
    pub(super) fn add(&self, connection: Arc<ProxiedConnection>, threads: Vec<JoinHandle<()>>) {
        let mut connections = self.lock();
        connections.retain(|served| !served.threads.iter().all(JoinHandle::is_finished));
        connections.push(ServedConnection { connection, threads });
    }

    /// Closes every connection.
    pub(super) fn close(&self) {
        self.lock().iter().for_each(|served| served.connection.close());
    }

    /// Waits until the threads of all connections have ended, which they do once the connections are closed.
    pub(super) fn join(&self) {
        let connections = std::mem::take(&mut *self.lock());
        for thread in connections.into_iter().flat_map(|served| served.threads) {
            let _ = thread.join();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ServedConnection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
