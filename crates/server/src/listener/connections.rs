//! How many connections there are and were, and why they were closed.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

/// Evicts connections of a port, which then have a file descriptor less.
pub(super) trait Evict: Send + Sync {
    /// Evicts a connection that is stuck or never sent anything. Returns whether there was one.
    fn evict_silent(&self, now: Instant) -> bool;

    /// The same, or else evicts a connection between requests.
    fn evict_idle(&self, now: Instant) -> bool;
}

/// How many connections of a port there are and were.
pub(crate) struct Connections {
    port: Port,
    /// The connections themselves, once the port is served.
    room: OnceLock<Weak<dyn Evict>>,
    /// The counts of the server's other port.
    other: OnceLock<Weak<Connections>>,
    open: AtomicU64,
    accepted: AtomicU64,
    first_byte: AtomicU64,
    request: AtomicU64,
    idle: AtomicU64,
    evicted: AtomicU64,
}

/// What a port speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    Http,
    Grpc,
}

impl Port {
    /// As metrics name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Port::Http => "http",
            Port::Grpc => "grpc",
        }
    }
}

/// Why the server closed a connection that its client had not done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It said nothing.
    FirstByte,
    /// Its request did not end.
    Request,
    /// No further request came, or an answer was not read.
    Idle,
    /// It was stuck, silent or idle, and others had no room.
    Evicted,
}

impl Reason {
    const ALL: [Reason; 4] = [Reason::FirstByte, Reason::Request, Reason::Idle, Reason::Evicted];

    /// As metrics name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Reason::FirstByte => "first_byte",
            Reason::Request => "request",
            Reason::Idle => "idle",
            Reason::Evicted => "evicted",
        }
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Connections {
    pub(crate) fn new(port: Port) -> Connections {
        Connections {
            port,
            room: OnceLock::new(),
            other: OnceLock::new(),
            open: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            first_byte: AtomicU64::new(0),
            request: AtomicU64::new(0),
            idle: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Returns the counts of the HTTP port and of the gRPC port of one server: when file descriptors run out, each
    /// port evicts connections of the other one, too.
    pub(crate) fn of_both_ports() -> (Arc<Connections>, Arc<Connections>) {
        let http = Arc::new(Connections::new(Port::Http));
        let grpc = Arc::new(Connections::new(Port::Grpc));
        // OK because both are new: neither is set yet.
        let _ = http.other.set(Arc::downgrade(&grpc));
        let _ = grpc.other.set(Arc::downgrade(&http));
        (http, grpc)
    }

    /// Keeps the room of the port; the first one, as a port is served once.
    pub(super) fn set_room(&self, room: Weak<dyn Evict>) {
        let _ = self.room.set(room);
    }

    /// Returns the connections of this port, then the other port's.
    pub(super) fn rooms_of_both_ports(&self) -> Vec<Arc<dyn Evict>> {
        let other = self.other.get().and_then(Weak::upgrade);
        let rooms = [self.room.get(), other.as_ref().and_then(|other| other.room.get())];
        rooms.into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn port(&self) -> Port {
        self.port
    }

    /// How many are open now.
    pub(crate) fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// How many were accepted since the start.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// How many the server closed, by reason.
    pub(crate) fn closed(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.into_iter().map(|reason| (reason, self.of(reason).load(Ordering::Relaxed)))
    }

    pub(super) fn count_opened(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_gone(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn count_closed(&self, reason: Reason) {
        self.of(reason).fetch_add(1, Ordering::Relaxed);
    }

    fn of(&self, reason: Reason) -> &AtomicU64 {
        match reason {
            Reason::FirstByte => &self.first_byte,
            Reason::Request => &self.request,
            Reason::Idle => &self.idle,
            Reason::Evicted => &self.evicted,
        }
    }
}
