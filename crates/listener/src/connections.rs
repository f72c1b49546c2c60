//! Counts of open and accepted connections, and why connections were closed.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use super::once_per_minute::OncePerMinute;
use super::reason::CloseReason;
use crate::budget::{Budget, MemoryAccount};

/// Evicts connections of a port, which frees their file descriptors.
pub(super) trait Evict: Send + Sync {
    /// Evicts a connection that is stuck or never sent anything. Returns whether there was one.
    fn evict_silent(&self, now: Instant) -> bool;

    /// Does what [`evict_silent`](Self::evict_silent) does, or else evicts a connection between requests.
    fn evict_idle(&self, now: Instant) -> bool;
}

/// The counts of a port's connections, and the memory that they share.
pub struct Connections {
    port: Port,
    /// The open connections, once the port is served.
    table: OnceLock<Weak<dyn Evict>>,
    /// The counts of the server's other port.
    other: OnceLock<Weak<Connections>>,
    budget: Budget,
    open: AtomicU64,
    accepted: AtomicU64,
    first_byte: AtomicU64,
    request: AtomicU64,
    idle: AtomicU64,
    evicted: AtomicU64,
    resets: AtomicU64,
    memory: AtomicU64,
    /// When a hostile client was last logged.
    warned: Mutex<OncePerMinute>,
}

/// The protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// HTTP/1, which this crate serves.
    Http,
    /// gRPC, which the caller of this crate serves.
    Grpc,
}

impl Port {
    /// Returns the name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Port::Http => "http",
            Port::Grpc => "grpc",
        }
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Connections {
    /// Returns the counts of a port whose connections take their memory from `budget`.
    pub(crate) fn new(port: Port, budget: Budget) -> Connections {
        Connections {
            port,
            table: OnceLock::new(),
            other: OnceLock::new(),
            budget,
            open: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            first_byte: AtomicU64::new(0),
            request: AtomicU64::new(0),
            idle: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            resets: AtomicU64::new(0),
            memory: AtomicU64::new(0),
            warned: Mutex::default(),
        }
    }

    /// Returns the counts of the HTTP port and of the gRPC port of one server: when file descriptors run out, each
    /// port evicts connections of the other one, too.
    pub fn of_both_ports(budget: &Budget) -> (Arc<Connections>, Arc<Connections>) {
        let http = Arc::new(Connections::new(Port::Http, budget.clone()));
        let grpc = Arc::new(Connections::new(Port::Grpc, budget.clone()));
        // OK because both are new: neither is set yet.
        let _ = http.other.set(Arc::downgrade(&grpc));
        let _ = grpc.other.set(Arc::downgrade(&http));
        (http, grpc)
    }

    /// Registers the connections of the port. Only the first call counts, because a port is served once.
    pub(super) fn set_table(&self, table: Weak<dyn Evict>) {
        let _ = self.table.set(table);
    }

    /// Returns the connections of this port, then the other port's.
    pub(super) fn tables_of_both_ports(&self) -> Vec<Arc<dyn Evict>> {
        let other = self.other.get().and_then(Weak::upgrade);
        let tables = [self.table.get(), other.as_ref().and_then(|other| other.table.get())];
        tables.into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    /// Opens the account of a new connection.
    pub(super) fn account(&self) -> MemoryAccount {
        self.budget.account()
    }

    /// Returns the port.
    pub fn port(&self) -> Port {
        self.port
    }

    /// Returns how many connections are open.
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// Returns how many connections were accepted since the start.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Returns how many connections the server closed, by reason.
    pub fn closed(&self) -> impl Iterator<Item = (CloseReason, u64)> {
        CloseReason::ALL.into_iter().map(|reason| (reason, self.of(reason).load(Ordering::Relaxed)))
    }

    pub(super) fn count_opened(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_gone(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn count_closed(&self, reason: CloseReason) {
        self.of(reason).fetch_add(1, Ordering::Relaxed);
        let cause = match reason {
            CloseReason::Resets => "its client resets too many calls",
            CloseReason::Memory => "it holds most of the memory that requests share",
            _ => return,
        };
        if self.warned.lock().is_due(Instant::now()) {
            let (port, reason) = (self.port.name(), reason.name());
            tracing::warn!(
                port,
                reason,
                "a connection is closed because {cause}; logged once a minute"
            );
        }
    }

    fn of(&self, reason: CloseReason) -> &AtomicU64 {
        match reason {
            CloseReason::FirstByte => &self.first_byte,
            CloseReason::Request => &self.request,
            CloseReason::Idle => &self.idle,
            CloseReason::Evicted => &self.evicted,
            CloseReason::Resets => &self.resets,
            CloseReason::Memory => &self.memory,
        }
    }
}
