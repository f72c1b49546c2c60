//! Durations, sorted into buckets as they are recorded.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bound of each bucket, in nanoseconds and as Prometheus writes it in seconds. They range from the time of a
/// decision in memory to 1 s, which is longer than any client should wait.
const BOUNDS: [(u64, &str); 16] = [
    (10_000, "0.00001"),
    (25_000, "0.000025"),
    (50_000, "0.00005"),
    (100_000, "0.0001"),
    (250_000, "0.00025"),
    (500_000, "0.0005"),
    (1_000_000, "0.001"),
    (2_500_000, "0.0025"),
    (5_000_000, "0.005"),
    (10_000_000, "0.01"),
    (25_000_000, "0.025"),
    (50_000_000, "0.05"),
    (100_000_000, "0.1"),
    (250_000_000, "0.25"),
    (500_000_000, "0.5"),
    (1_000_000_000, "1"),
];

/// A histogram of durations, with their sum.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    /// One bucket for each bound, and one for longer durations. Each duration is in one of them.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    pub(super) fn record(&self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|&(bound_ns, _)| bound_ns < took_ns);
        // OK because there is one bucket more than bounds.
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(took_ns, Ordering::Relaxed);
    }

    /// Returns each bound with the number of durations up to it. The last bound is `+Inf`, whose number counts all
    /// durations.
    pub(super) fn cumulative(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let bounds = BOUNDS.iter().map(|&(_, bound)| bound).chain(["+Inf"]);
        bounds.zip(&self.buckets).scan(0, |sum, (bound, bucket)| {
            *sum += bucket.load(Ordering::Relaxed);
            Some((bound, *sum))
        })
    }

    pub(super) fn sum_seconds(&self) -> f64 {
        Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_the_same_in_nanoseconds_and_in_seconds() {
        for (bound_ns, text) in BOUNDS {
            assert_eq!(Duration::from_nanos(bound_ns).as_secs_f64().to_string(), text);
        }
    }

    #[test]
    fn a_duration_counts_for_each_bound_that_it_does_not_exceed() {
        let histogram = Histogram::default();
        for took_ns in [0, 10_000, 10_001, 1_000_000_000, 1_000_000_001] {
            histogram.record(Duration::from_nanos(took_ns));
        }
        let counts: Vec<_> = histogram.cumulative().collect();
        assert_eq!(counts[..2], [("0.00001", 2), ("0.000025", 3)]);
        assert_eq!(counts[15..], [("1", 4), ("+Inf", 5)]);
        assert_eq!(histogram.sum_seconds(), 2.000_020_002);
    }
}
