//! The clocks by which leases end.

use crate::clock::Clock;

/// The two clocks by which a lease ends for its process: as soon as one of them says so.
#[derive(Clone, Debug)]
pub(super) enum LeaseClock {
    /// The machine's clocks.
    Machine,
    /// The caller's clock, which is then also the store's.
    Callers(Clock),
}

impl LeaseClock {
    pub(super) fn new(callers: Option<&Clock>) -> LeaseClock {
        callers.map_or(LeaseClock::Machine, |clock| LeaseClock::Callers(clock.clone()))
    }

    /// Returns a time that only moves forward, also while the machine sleeps if the system has such a clock, in
    /// microseconds since some start.
    pub(super) fn steady_us(&self) -> u64 {
        match self {
            LeaseClock::Machine => machine::steady_us(),
            LeaseClock::Callers(clock) => clock.now_us(),
        }
    }

    /// Returns the calendar time in microseconds, up to a tick of the kernel's timer late: at most 10 ms.
    pub(super) fn wall_us(&self) -> u64 {
        match self {
            LeaseClock::Machine => machine::wall_us(),
            LeaseClock::Callers(clock) => clock.now_us(),
        }
    }
}

#[cfg(target_os = "linux")]
mod machine {
    use rustix::time::{ClockId, Timespec, clock_gettime};

    /// Counts on while the machine sleeps.
    pub(super) fn steady_us() -> u64 {
        in_us(clock_gettime(ClockId::Boottime))
    }

    /// The coarse clock takes a tenth of the time of the exact one. It only needs to show that the machine was stopped.
    pub(super) fn wall_us() -> u64 {
        in_us(clock_gettime(ClockId::RealtimeCoarse))
    }

    fn in_us(time: Timespec) -> u64 {
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        seconds.saturating_mul(1_000_000).saturating_add(time.tv_nsec.unsigned_abs() / 1_000)
    }
}

#[cfg(not(target_os = "linux"))]
mod machine {
    use std::sync::LazyLock;
    use std::time::{Instant, SystemTime, UNIX_EPOCH};

    /// May stop while the machine sleeps; the calendar time then shows that a lease has ended.
    pub(super) fn steady_us() -> u64 {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        u64::try_from(START.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub(super) fn wall_us() -> u64 {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
    }
}
