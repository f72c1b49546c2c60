//! Errors of `accept`, and what to do when the process or the system has no more file descriptors.
//!
//! Each port's cap leaves descriptors for the store and the log, but the limit may be lowered while the server runs, or
//! the whole system may run out. Waiting alone would not help then: silent connections keep their descriptors until
//! their deadline, and new clients could not connect. So one connection is evicted for each failed `accept`.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tokio::time::sleep;

use super::connection_table::ConnectionTable;

/// How long to wait when `accept` fails and there is no connection to evict.
const NO_RESOURCES: Duration = Duration::from_millis(50);

/// The time in which an evicted connection's task ends and closes its socket.
const UNTIL_CLOSED: Duration = Duration::from_millis(1);

impl ConnectionTable {
    /// Makes the next `accept` likely to succeed: returns at once after the error of one connection, evicts a
    /// connection of either port if there are no file descriptors, and otherwise waits.
    pub async fn after_accept_error(&mut self, error: &io::Error) {
        if is_of_one_connection(error.kind()) {
            tracing::debug!(%error, "a connection was closed before it was accepted");
            return;
        }
        if self.is_failure_due(Instant::now()) {
            tracing::warn!(
                %error,
                "connections cannot be accepted; stuck, silent or idle connections are closed for new ones; if \
                 there are too few files, raise `ulimit -n`"
            );
        }
        let is_freed = is_out_of_files(error) && self.evict_of_both_ports(Instant::now());
        sleep(if is_freed { UNTIL_CLOSED } else { NO_RESOURCES }).await;
    }
}

fn is_out_of_files(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| [Errno::MFILE, Errno::NFILE].contains(&errno))
}

/// Returns whether an error is about the connection that was to be accepted: Linux returns such errors from `accept`.
pub(super) fn is_of_one_connection(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::Interrupted
    )
}
