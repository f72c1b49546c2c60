//! A connection's progress, as its socket, its requests and the accept loop see it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::bounds::Bounds;
use super::progress::Progress;
use super::reason::Reason;

/// The shortest nap of a connection's timer, however short the bounds are.
const SHORTEST_NAP: Duration = Duration::from_millis(5);

/// A connection's progress. One lock a connection, held for a few instructions: nobody waits for it.
#[derive(Debug)]
pub(super) struct Watch {
    progress: Mutex<Progress>,
    bounds: Bounds,
    /// The server closes, and the connection has yet to hear of it.
    is_called: AtomicBool,
    task: Mutex<Option<Waker>>,
    /// An answer is held back, and whoever closes the connection does not want it.
    is_held: AtomicBool,
    /// The bytes that were read of a request's head; [`NO_HEAD`] while its body or its answer is under way.
    head_bytes: AtomicUsize,
}

/// No head is being read.
const NO_HEAD: usize = usize::MAX;

/// Lets an answer be held back for no longer than its client stays: while it is, a client that closes its side is
/// gone, and so is its request. Otherwise it may do so, and wait.
#[derive(Clone)]
pub struct Hold {
    watch: Arc<Watch>,
}

/// While an answer is held back.
pub struct Holding<'h> {
    watch: &'h Watch,
}

impl Hold {
    pub(super) fn new(watch: &Arc<Watch>) -> Hold {
        Hold { watch: Arc::clone(watch) }
    }

    /// Begins to hold the answer back, until what is returned is dropped.
    pub fn begin(&self) -> Holding<'_> {
        // The connection looks at its socket when it has polled its request, which calls this.
        self.watch.is_held.store(true, Ordering::Relaxed);
        Holding { watch: &self.watch }
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.watch.is_held.store(false, Ordering::Relaxed);
    }
}

/// What a connection's timer finds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Its time is up; for no reason of its own if the server closes.
    Up(Option<Reason>),
    /// Nothing is to be done before then.
    AgainAt(Instant),
}

impl Watch {
    pub(super) fn new(bounds: Bounds, now: Instant) -> Watch {
        Watch {
            progress: Mutex::new(Progress::new(now)),
            bounds,
            is_called: AtomicBool::new(false),
            task: Mutex::new(None),
            is_held: AtomicBool::new(false),
            head_bytes: AtomicUsize::new(0),
        }
    }

    /// Counts bytes that were read, and returns how many a head has so far that is not parsed yet.
    pub(super) fn count_head(&self, bytes: usize) -> usize {
        // OK because one task reads the socket and runs its requests.
        match self.head_bytes.load(Ordering::Relaxed) {
            NO_HEAD => 0,
            before => {
                let head_bytes = before.saturating_add(bytes);
                self.head_bytes.store(head_bytes, Ordering::Relaxed);
                head_bytes
            }
        }
    }

    /// A head is parsed.
    pub(super) fn end_head(&self) {
        self.head_bytes.store(NO_HEAD, Ordering::Relaxed);
    }

    /// An answer is ready: the next bytes belong to the head of another request.
    pub(super) fn begin_head(&self) {
        self.head_bytes.store(0, Ordering::Relaxed);
    }

    /// Whom to wake for the last call.
    pub(super) fn runs_in(&self, task: &Waker) {
        let mut known = self.task.lock();
        if !known.as_ref().is_some_and(|known| known.will_wake(task)) {
            *known = Some(task.clone());
        }
    }

    /// Tells the connection that the server closes. How long it has left is counted from when it hears of it: before
    /// that it may not have had the time to read what its client had sent.
    pub(super) fn last_call(&self) {
        self.is_called.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether an answer is held back for as long as its client stays.
    pub(super) fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Relaxed)
    }

    /// Lets its task look again.
    pub(super) fn wake(&self) {
        if let Some(task) = &*self.task.lock() {
            task.wake_by_ref();
        }
    }

    /// Whether the last call came since it was asked.
    pub(super) fn hears_last_call(&self) -> bool {
        // Read first, which is cheap: every poll asks.
        let is_called =
            self.is_called.load(Ordering::Relaxed) && self.is_called.swap(false, Ordering::Acquire);
        if is_called {
            self.with(|progress| progress.last_call(Instant::now()));
        }
        is_called
    }

    /// Tells or asks how far it is.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut Progress) -> T) -> T {
        change(&mut self.progress.lock())
    }

    /// Whether its time is up, or when to look again.
    ///
    /// Nobody wakes the timer when another bound begins to count, so it wakes often enough by itself: whatever
    /// begins after this look lasts at least the shorter of the two bounds that can begin. With 10 s for a request
    /// and 75 s between them, an idle connection is looked at every 10 s, and closed at 75 s sharp.
    pub(super) fn look(&self, now: Instant) -> Look {
        let nap = self.bounds.request.min(self.bounds.idle).max(SHORTEST_NAP);
        match self.progress.lock().deadline(&self.bounds) {
            Some((at, reason)) if at <= now => Look::Up(reason),
            Some((at, _)) => Look::AgainAt(at.min(now + nap)),
            None => Look::AgainAt(now + nap),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        max_connections: 1,
        first_byte: Duration::from_secs(25),
        request: Duration::from_secs(10),
        idle: Duration::from_secs(75),
    };

    #[test]
    fn a_timer_that_naps_misses_no_bound() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let watch = Watch::new(BOUNDS, start);
        assert_eq!(watch.look(at(0)), Look::AgainAt(at(10)));
        assert_eq!(watch.look(at(20)), Look::AgainAt(at(25)));
        assert_eq!(watch.look(at(25)), Look::Up(Some(Reason::FirstByte)));
        // It began right after a look, and is up no earlier than the next.
        watch.with(|progress| progress.received(at(1)));
        assert_eq!(watch.look(at(10)), Look::AgainAt(at(11)));
        assert_eq!(watch.look(at(11)), Look::Up(Some(Reason::Request)));
        watch.with(|progress| progress.complete());
        assert_eq!(watch.look(at(100)), Look::AgainAt(at(110)));
    }

    #[test]
    fn a_timer_does_not_spin_even_if_the_bounds_are_nothing() {
        let start = Instant::now();
        let bounds = Bounds { request: Duration::ZERO, idle: Duration::ZERO, ..BOUNDS };
        let watch = Watch::new(bounds, start);
        watch.with(|progress| progress.complete());
        assert_eq!(watch.look(start), Look::AgainAt(start + SHORTEST_NAP));
    }
}
