//! The progress of a connection, shared between its socket, its requests and the accept loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::bounds::Bounds;
use super::progress::ConnectionProgress;
use super::reason::CloseReason;

/// The shortest interval of a connection's timer, however short the bounds are.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The progress of a connection. Each connection has its own lock, held for a few instructions, so there is
/// no contention.
#[derive(Debug)]
pub(super) struct Watch {
    progress: Mutex<ConnectionProgress>,
    bounds: Bounds,
    /// Whether the server closes and the connection has not learned of it yet.
    is_close_announced: AtomicBool,
    task: Mutex<Option<Waker>>,
    /// Whether an answer is delayed. A client that then closes its side no longer wants the answer.
    is_delayed: AtomicBool,
    /// How many bytes of a request's head were read; [`NO_HEAD`] while its body or its answer is in progress.
    head_bytes: AtomicUsize,
}

/// The value while no head is being read.
const NO_HEAD: usize = usize::MAX;

/// Watches for the client to leave while an answer is delayed: a client that closes its side then counts as gone, and its
/// request ends. At other times a client may close its side and wait for the answer.
#[derive(Clone)]
pub struct ClientWatch {
    watch: Arc<Watch>,
}

/// Marks an answer as delayed until this is dropped.
pub struct DelayedAnswer<'w> {
    watch: &'w Watch,
}

impl ClientWatch {
    pub(super) fn new(watch: &Arc<Watch>) -> ClientWatch {
        ClientWatch { watch: Arc::clone(watch) }
    }

    /// Marks the answer as delayed until the returned value is dropped.
    pub fn begin(&self) -> DelayedAnswer<'_> {
        // The connection checks its socket after it has polled the request, which calls this.
        self.watch.is_delayed.store(true, Ordering::Relaxed);
        DelayedAnswer { watch: &self.watch }
    }
}

impl Drop for DelayedAnswer<'_> {
    fn drop(&mut self) {
        self.watch.is_delayed.store(false, Ordering::Relaxed);
    }
}

/// The result of checking a connection's deadline.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DeadlineCheck {
    /// The deadline has passed; there is no reason if the server closes.
    Passed(Option<CloseReason>),
    /// Check again at this time.
    AgainAt(Instant),
}

impl Watch {
    pub(super) fn new(bounds: Bounds, now: Instant) -> Watch {
        Watch {
            progress: Mutex::new(ConnectionProgress::new(now)),
            bounds,
            is_close_announced: AtomicBool::new(false),
            task: Mutex::new(None),
            is_delayed: AtomicBool::new(false),
            head_bytes: AtomicUsize::new(0),
        }
    }

    /// Counts bytes that were read; returns how many bytes of an unparsed head there are so far.
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

    /// Records that a head was parsed.
    pub(super) fn end_head(&self) {
        self.head_bytes.store(NO_HEAD, Ordering::Relaxed);
    }

    /// Records that an answer is ready: the next bytes belong to the head of another request.
    pub(super) fn begin_head(&self) {
        self.head_bytes.store(0, Ordering::Relaxed);
    }

    /// Registers the task to wake when the server closes.
    pub(super) fn runs_in(&self, task: &Waker) {
        let mut known = self.task.lock();
        if !known.as_ref().is_some_and(|known| known.will_wake(task)) {
            *known = Some(task.clone());
        }
    }

    /// Announces that the server closes. The connection's remaining time begins only when it has learned of this: before
    /// that, it may not have read what its client had sent.
    pub(super) fn announce_close(&self) {
        self.is_close_announced.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether an answer is delayed.
    pub(super) fn is_delayed(&self) -> bool {
        self.is_delayed.load(Ordering::Relaxed)
    }

    /// Wakes the task of the connection.
    pub(super) fn wake(&self) {
        if let Some(task) = &*self.task.lock() {
            task.wake_by_ref();
        }
    }

    /// Returns whether a close was announced since this was last called, and notes it in the progress.
    pub(super) fn learn_of_close(&self) -> bool {
        // Loaded first, which is cheap: every poll calls this.
        let is_close_announced = self.is_close_announced.load(Ordering::Relaxed)
            && self.is_close_announced.swap(false, Ordering::Acquire);
        if is_close_announced {
            self.with(|progress| progress.note_close(Instant::now()));
        }
        is_close_announced
    }

    /// Runs `change` on the progress.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut ConnectionProgress) -> T) -> T {
        change(&mut self.progress.lock())
    }

    /// Returns whether the deadline has passed, or when to check again.
    ///
    /// The timer is not woken when another bound begins to count, so it fires often enough by itself: a bound
    /// that begins after this call lasts at least as long as the shorter of the two bounds that can begin.
    /// With 10 s for a request and 75 s between requests, an idle connection is checked every 10 s, and
    /// closed at exactly 75 s.
    pub(super) fn check_deadline(&self, now: Instant) -> DeadlineCheck {
        let interval = self.bounds.request.min(self.bounds.idle).max(MIN_CHECK_INTERVAL);
        match self.progress.lock().deadline(&self.bounds) {
            Some((at, reason)) if at <= now => DeadlineCheck::Passed(reason),
            Some((at, _)) => DeadlineCheck::AgainAt(at.min(now + interval)),
            None => DeadlineCheck::AgainAt(now + interval),
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
    fn periodic_timer_misses_no_deadline() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let watch = Watch::new(BOUNDS, start);
        assert_eq!(watch.check_deadline(at(0)), DeadlineCheck::AgainAt(at(10)));
        assert_eq!(watch.check_deadline(at(20)), DeadlineCheck::AgainAt(at(25)));
        assert_eq!(
            watch.check_deadline(at(25)),
            DeadlineCheck::Passed(Some(CloseReason::FirstByte))
        );
        // The request began just after a check, and its deadline is not before the next check.
        watch.with(|progress| progress.received(at(1)));
        assert_eq!(watch.check_deadline(at(10)), DeadlineCheck::AgainAt(at(11)));
        assert_eq!(watch.check_deadline(at(11)), DeadlineCheck::Passed(Some(CloseReason::Request)));
        watch.with(|progress| progress.complete());
        assert_eq!(watch.check_deadline(at(100)), DeadlineCheck::AgainAt(at(110)));
    }

    #[test]
    fn timer_does_not_spin_when_the_bounds_are_zero() {
        let start = Instant::now();
        let bounds = Bounds { request: Duration::ZERO, idle: Duration::ZERO, ..BOUNDS };
        let watch = Watch::new(bounds, start);
        watch.with(|progress| progress.complete());
        assert_eq!(watch.check_deadline(start), DeadlineCheck::AgainAt(start + MIN_CHECK_INTERVAL));
    }
}
