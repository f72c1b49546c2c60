//! The share of a limit that one of several processes may admit on its own.

use std::time::Duration;

use tollgate_core::{Concurrency, FixedWindow, LeakyBucket, Limit, Rate, SlidingWindowCounter};
use tollgate_core::{LimitError, SlidingWindowLog, TokenBucket};

/// Returns the share of a limit that one of `processes` processes may admit on its own.
pub(crate) fn share_of(limit: &Limit, processes: u32) -> Limit {
    let processes = u64::from(processes.max(1));
    // A share of size 1 may need a rate that is slower than the slowest valid rate. The share then refills at the rate
    // of the whole limit.
    let share = divided(limit, processes, processes).or_else(|_| divided(limit, processes, 1));
    share.unwrap_or(*limit)
}

fn divided(limit: &Limit, size_by: u64, rate_by: u64) -> Result<Limit, LimitError> {
    let size = (limit.size() / size_by).max(1);
    let window = |window_us| Duration::from_micros(window_us);
    let rate = |rate: Rate| {
        let per_us = rate.per_us().saturating_mul(rate_by);
        Rate::new(rate.units(), Duration::from_micros(per_us))
    };
    Ok(match limit {
        Limit::FixedWindow(own) => FixedWindow::new(size, window(own.window_us()))?.into(),
        Limit::SlidingWindowLog(own) => {
            SlidingWindowLog::new(size, window(own.window_us()))?.into()
        }
        Limit::SlidingWindowCounter(own) => {
            SlidingWindowCounter::new(size, window(own.window_us()))?.into()
        }
        Limit::TokenBucket(own) => TokenBucket::new(size, rate(own.refill())?)?.into(),
        Limit::LeakyBucket(own) => LeakyBucket::new(size, rate(own.leak())?, own.mode())?.into(),
        Limit::Concurrency(own) => Concurrency::new(size, window(own.hold_for().as_us()))?.into(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn share_divides_the_size_and_the_rate() {
        for (limit, processes, share) in [
            ("fixed-window limit=100 window=1m", 4, "fixed-window limit=25 window=1m"),
            ("sliding-window-log limit=10 window=1m", 3, "sliding-window-log limit=3 window=1m"),
            (
                "sliding-window-counter limit=3 window=1m",
                9,
                "sliding-window-counter limit=1 window=1m",
            ),
            ("token-bucket capacity=60 refill=1/s", 4, "token-bucket capacity=15 refill=1/4s"),
            (
                "leaky-bucket capacity=7 leak=7/s mode=shaping",
                2,
                "leaky-bucket capacity=3 leak=7/2s mode=shaping",
            ),
            ("concurrency limit=9 for=30s", 2, "concurrency limit=4 for=30s"),
            ("fixed-window limit=5 window=1m", 0, "fixed-window limit=5 window=1m"),
            ("fixed-window limit=5 window=1m", u32::MAX, "fixed-window limit=1 window=1m"),
            // The slowest rate that a limit can have.
            (
                "token-bucket capacity=2 refill=2/36525d",
                4,
                "token-bucket capacity=1 refill=2/36525d",
            ),
        ] {
            let share = share.parse::<Limit>().unwrap();
            assert_eq!(share_of(&limit.parse().unwrap(), processes), share, "{limit}");
        }
    }
}
