//! The source of time: the machine's clock, or a clock that a test sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The limiter's one source of time, in microseconds since the Unix epoch.
#[derive(Clone, Debug)]
pub struct Clock {
    source: TimeSource,
}

#[derive(Clone, Debug)]
#[repr(u8)] // a separate tag: reading one that is stored inside quanta's clock takes five more instructions
enum TimeSource {
    System(TimeCounter),
    Manual(Arc<AtomicU64>),
    /// A start time, and then tokio's clock.
    Tokio {
        started_us: u64,
        started: tokio::time::Instant,
    },
}

/// The wall clock at the start, and then a counter. Setting the wall clock does not change the counter. The counter may
/// go back when a virtual machine is restored.
#[derive(Clone, Debug)]
struct TimeCounter {
    /// The wall clock's time when the counter was 0, computed backwards from a later time.
    began_us: u64,
    /// Microseconds per count, multiplied by 2^64.
    scale: u64,
    counter: quanta::Clock,
    wall: Arc<WallOffset>,
}

/// How long the offset between the wall clock and the counter is used before it is measured again.
const WALL_READ_EVERY_US: u64 = 100_000;

/// How far the machine's wall clock is ahead of a counter's time. It is measured again every 100 ms, because the
/// wall clock may be set; reading the wall clock takes four times as long as reading the counter.
#[derive(Debug, Default)]
struct WallOffset {
    /// Wraps around if the wall clock is behind.
    ahead_us: AtomicU64,
    /// The counter's time at which the offset is measured again.
    due_us: AtomicU64,
}

impl WallOffset {
    #[inline]
    fn at(&self, now_us: u64) -> u64 {
        // A due time more than 100 ms ahead means that the counter was set back, as when a virtual machine is restored.
        let due_us = self.due_us.load(Ordering::Acquire);
        if !(1..=WALL_READ_EVERY_US).contains(&due_us.wrapping_sub(now_us)) {
            return self.read_again(now_us);
        }
        now_us.wrapping_add(self.ahead_us.load(Ordering::Relaxed))
    }

    #[cold]
    fn read_again(&self, now_us: u64) -> u64 {
        let wall_us = system_us();
        self.ahead_us.store(wall_us.wrapping_sub(now_us), Ordering::Relaxed);
        // OK because 64 bits of microseconds last until after the year 500,000.
        self.due_us.store(now_us + WALL_READ_EVERY_US, Ordering::Release);
        wall_us
    }
}

impl TimeCounter {
    fn start() -> TimeCounter {
        const COUNTS: u64 = 1 << 40;
        // The counter is made before the wall clock is read, because measuring its speed may take a while.
        let counter = quanta::Clock::new();
        let started_us = system_us();
        let started = counter.raw();
        let scale = (u128::from(counter.delta_as_nanos(0, COUNTS)) << 24) / 1_000;
        // OK because every existing counter counts faster than a million a second.
        let scale = u64::try_from(scale).unwrap_or(u64::MAX);
        TimeCounter {
            began_us: started_us.wrapping_sub(scaled(started, scale)),
            scale,
            counter,
            wall: Arc::default(),
        }
    }

    #[inline]
    fn now_us(&self) -> u64 {
        self.began_us.wrapping_add(scaled(self.counter.raw(), self.scale))
    }
}

/// Converts counts to microseconds.
#[inline]
fn scaled(counts: u64, scale: u64) -> u64 {
    // OK because the product of two 64-bit numbers, shifted back, fits one.
    ((u128::from(counts) * u128::from(scale)) >> 64) as u64
}

impl Clock {
    /// Returns the machine's clock. [`now_us`](Self::now_us) reads the wall clock once, at the start, and then follows a
    /// counter, which moves forward even if the wall clock is set. The counter may go back when a virtual machine is
    /// restored. [`wall_us`](Self::wall_us) reads the wall clock again every 100 ms.
    pub fn system() -> Clock {
        Clock { source: TimeSource::System(TimeCounter::start()) }
    }

    /// Returns tokio's clock, which shows `now_us` now. For tests of code that waits: `tokio::time::pause`
    /// and `advance` move timers and decisions together.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::Clock;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let clock = Clock::tokio(0);
    /// tokio::time::advance(Duration::from_secs(2)).await;
    /// assert_eq!(clock.now_us(), 2_000_000);
    /// # }
    /// ```
    pub fn tokio(now_us: u64) -> Clock {
        Clock {
            source: TimeSource::Tokio { started_us: now_us, started: tokio::time::Instant::now() },
        }
    }

    /// Returns the time.
    #[inline]
    pub fn now_us(&self) -> u64 {
        match &self.source {
            TimeSource::System(counter) => counter.now_us(),
            TimeSource::Manual(now_us) => now_us.load(Ordering::Relaxed),
            TimeSource::Tokio { started_us, started } => {
                let elapsed_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
                started_us.saturating_add(elapsed_us)
            }
        }
    }

    /// Returns the calendar time: the machine's wall clock. If the wall clock is set, the returned time follows
    /// within 100 ms. For a test's clock, the same as [`now_us`](Self::now_us).
    pub fn wall_us(&self) -> u64 {
        match &self.source {
            TimeSource::System(counter) => counter.wall.at(counter.now_us()),
            TimeSource::Manual(_) | TimeSource::Tokio { .. } => self.now_us(),
        }
    }
}

fn system_us() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::system()
    }
}

impl From<&ManualClock> for Clock {
    fn from(manual: &ManualClock) -> Clock {
        Clock { source: TimeSource::Manual(Arc::clone(&manual.now_us)) }
    }
}

/// A clock that does not move until a test moves it.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Clock, ManualClock};
///
/// let manual = ManualClock::at_us(0);
/// let clock = Clock::from(&manual);
/// manual.advance(Duration::from_millis(5));
/// assert_eq!(clock.now_us(), 5_000);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    now_us: Arc<AtomicU64>,
}

impl ManualClock {
    /// Returns a clock that shows `now_us`.
    pub fn at_us(now_us: u64) -> ManualClock {
        ManualClock { now_us: Arc::new(AtomicU64::new(now_us)) }
    }

    /// Sets the time, which may be earlier.
    pub fn set_us(&self, now_us: u64) {
        self.now_us.store(now_us, Ordering::Relaxed);
    }

    /// Moves the clock forward, by whole microseconds.
    pub fn advance(&self, by: Duration) {
        let by_us = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.now_us.fetch_add(by_us, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_clock_is_read_again_after_100_ms() {
        let wall = WallOffset::default();
        let seen_us = wall.at(5_000_000);
        assert!(seen_us.abs_diff(system_us()) < 60_000_000);
        assert_eq!(wall.at(5_099_999), seen_us + 99_999);
        // The next line has the effect of the wall clock being set back by an hour.
        wall.ahead_us.fetch_add(3_600_000_000, Ordering::Relaxed);
        assert!(wall.at(5_100_000).abs_diff(system_us()) < 60_000_000);
        wall.ahead_us.fetch_add(3_600_000_000, Ordering::Relaxed);
        assert!(wall.at(1_000_000).abs_diff(system_us()) < 60_000_000, "the counter went back");
    }

    /// Compares this scale with quanta's, over a second and over 10 years of counts.
    #[test]
    fn system_clock_runs_at_the_same_rate_as_quanta() {
        let counter = TimeCounter::start();
        for counts in [1_u64 << 31, 1 << 59] {
            let ours_us = scaled(counts, counter.scale);
            let theirs_us = counter.counter.delta_as_nanos(0, counts) / 1_000;
            let off = ours_us.abs_diff(theirs_us);
            assert!(off <= 1 + theirs_us / 1_000_000_000, "{ours_us} us for {theirs_us}");
        }
    }
}
