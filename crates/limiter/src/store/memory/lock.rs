//! The lock of a shard.
//!
//! A plain write to memory releases it. A lock that wakes waiting threads must release itself and look for waiting
//! threads in one atomic step. The processor waits for memory in that step, which takes a tenth or more of the time of a
//! check when the store has many keys. So this lock wakes no thread. A thread that finds a shard locked tries again, and
//! usually the shard is free within the time of one check. After a few microseconds it yields the CPU to other threads,
//! and later it sleeps between its tries. A lock holder that was interrupted can then continue, even if its priority is
//! lower.

use std::time::Duration;
use std::{hint, thread};

use parking_lot::lock_api::{Mutex, MutexGuard};
use spinning_top::RawSpinlock;
use spinning_top::relax::Relax;

pub(super) struct Lock<T>(Mutex<RawSpinlock<Backoff>, T>);

pub(super) type LockGuard<'a, T> = MutexGuard<'a, RawSpinlock<Backoff>, T>;

/// The number of tries without yielding. Each waits twice as long as the one before; together they take a few
/// microseconds.
const SPIN_TRIES: u32 = 7;

/// The number of tries with a yield before each.
const YIELD_TRIES: u32 = 16;

/// How long a thread sleeps between tries. Growing a shard of 32 KiB takes less.
const SLEEP: Duration = Duration::from_micros(50);

/// How often a waiting thread has tried.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    tries: u32,
}

impl<T> Lock<T> {
    pub(super) fn new(inside: T) -> Lock<T> {
        Lock(Mutex::new(inside))
    }

    #[inline(always)]
    pub(super) fn lock(&self) -> LockGuard<'_, T> {
        match self.0.try_lock() {
            Some(locked) => locked,
            None => self.wait(),
        }
    }

    // Separate, so that a caller that need not wait keeps the registers.
    #[cold]
    #[inline(never)]
    fn wait(&self) -> LockGuard<'_, T> {
        self.0.lock()
    }
}

impl Relax for Backoff {
    fn relax(&mut self) {
        match self.tries {
            tries @ ..SPIN_TRIES => (0..1 << tries).for_each(|_: u32| hint::spin_loop()),
            tries if tries < SPIN_TRIES + YIELD_TRIES => thread::yield_now(),
            // A thread that has slept tries as often as one that has just arrived.
            _ => {
                thread::sleep(SLEEP);
                self.tries = 0;
                return;
            }
        }
        self.tries += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn long_waiting_thread_sleeps_between_tries() {
        let mut backoff = Backoff::default();
        for _ in 0..3 {
            for _ in 0..SPIN_TRIES + YIELD_TRIES {
                backoff.relax();
            }
            let before = Instant::now();
            backoff.relax();
            assert!(before.elapsed() >= SLEEP);
        }
    }

    #[test]
    fn lock_is_held_by_one_thread_at_a_time() {
        let lock = Lock::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        let mut count = lock.lock();
                        let seen = *count;
                        // Other threads find the lock taken.
                        thread::yield_now();
                        *count = seen + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 4_000);
    }
}
