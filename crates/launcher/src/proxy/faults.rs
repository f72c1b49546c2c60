//! The faults that a proxy injects, and the counts that it keeps.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A fault of one reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyFault {
    /// The reply is dropped, and everything after it on the connection.
    Swallow,
    /// The connection is closed before the reply.
    CutBefore,
    /// The connection is closed in the middle of the reply.
    CutWithin,
}

/// The faults of the next replies.
#[derive(Default)]
pub(super) struct Faults {
    fault: Option<ReplyFault>,
    /// The number of replies that still get the fault.
    left: u64,
    pub(super) delay: Option<Box<dyn FnMut() -> Duration + Send>>,
}

impl Faults {
    pub(super) fn set(&mut self, fault: ReplyFault, count: u64) {
        (self.fault, self.left) = (Some(fault), count);
    }

    pub(super) fn clear(&mut self) {
        *self = Faults::default();
    }

    /// Returns the fault of this reply, and counts the reply.
    pub(super) fn take(&mut self) -> Option<ReplyFault> {
        self.left = self.left.checked_sub(1)?;
        self.fault
    }

    pub(super) fn next_delay(&mut self) -> Duration {
        self.delay.as_mut().map_or(Duration::ZERO, |delay| delay())
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").field("fault", &self.fault).field("left", &self.left).finish()
    }
}

/// The state that all connections of a proxy share.
#[derive(Debug)]
pub(super) struct ProxyState {
    pub(super) server: SocketAddr,
    faults: Mutex<Faults>,
    pub(super) scripts_passed: AtomicU64,
    pub(super) replies_swallowed: AtomicU64,
    pub(super) connections_cut: AtomicU64,
    pub(super) connections: AtomicU64,
}

impl ProxyState {
    pub(super) fn new(server: SocketAddr) -> ProxyState {
        ProxyState {
            server,
            faults: Mutex::default(),
            scripts_passed: AtomicU64::new(0),
            replies_swallowed: AtomicU64::new(0),
            connections_cut: AtomicU64::new(0),
            connections: AtomicU64::new(0),
        }
    }

    pub(super) fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
