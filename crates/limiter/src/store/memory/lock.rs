//! A shard's lock.
//!
//! It is let go by a plain store. One that wakes those that wait for it has to ask whether there are any, in one step with
//! letting go, and the processor then waits for memory that it could do without: a tenth of a check over many keys, and more.
//! So nobody is woken here. Who finds a shard locked looks again, and as a rule it is free within a check's time; who still
//! waits after a few microseconds lets other threads have the CPU, and then sleeps between looks. So a fingerprint that was
//! interrupted goes on, also one of lower priority.

use std::time::Duration;
use std::{hint, thread};

use parking_lot::lock_api::{Mutex, MutexGuard};
use spinning_top::RawSpinlock;
use spinning_top::relax::Relax;

pub(super) struct Lock<T>(Mutex<RawSpinlock<Patience>, T>);

pub(super) type Locked<'a, T> = MutexGuard<'a, RawSpinlock<Patience>, T>;

/// Each twice as far from the next as from the one before: together some microseconds.
const LOOKS_AT_ONCE: u32 = 7;

/// With others on the CPU in between.
const LOOKS_IN_TURN: u32 = 16;

/// What grows a shard of 32 KiB is done by then.
const NAP: Duration = Duration::from_micros(50);

/// How often a waiting thread has looked.
#[derive(Debug, Default)]
pub(super) struct Patience {
    looks: u32,
}

impl<T> Lock<T> {
    pub(super) fn new(inside: T) -> Lock<T> {
        Lock(Mutex::new(inside))
    }

    #[inline(always)]
    pub(super) fn lock(&self) -> Locked<'_, T> {
        match self.0.try_lock() {
            Some(locked) => locked,
            None => self.wait(),
        }
    }

    // Apart, so that who need not wait has the registers.
    #[cold]
    #[inline(never)]
    fn wait(&self) -> Locked<'_, T> {
        self.0.lock()
    }
}

impl Relax for Patience {
    fn relax(&mut self) {
        match self.looks {
            looks @ ..LOOKS_AT_ONCE => (0..1 << looks).for_each(|_: u32| hint::spin_loop()),
            looks if looks < LOOKS_AT_ONCE + LOOKS_IN_TURN => thread::yield_now(),
            // Who has slept looks as often as those who come then.
            _ => {
                thread::sleep(NAP);
                self.looks = 0;
                return;
            }
        }
        self.looks += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn who_waits_for_long_sleeps_between_looks() {
        let mut patience = Patience::default();
        for _ in 0..3 {
            for _ in 0..LOOKS_AT_ONCE + LOOKS_IN_TURN {
                patience.relax();
            }
            let before = Instant::now();
            patience.relax();
            assert!(before.elapsed() >= NAP);
        }
    }

    #[test]
    fn one_at_a_time_goes_on() {
        let lock = Lock::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        let mut count = lock.lock();
                        let seen = *count;
                        // Others find it locked.
                        thread::yield_now();
                        *count = seen + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 4_000);
    }
}
