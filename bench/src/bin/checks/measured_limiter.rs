//! A limiter that is measured: loops around its check, each compiled for this limiter's check only.

use std::time::Instant;

use tollgate::Limiter;

use crate::traffic::Sequence;

/// A limiter that is measured.
pub(crate) trait MeasuredLimiter: Send + Sync {
    /// Checks the keys of a sequence, and returns how many were allowed.
    fn pass(&self, sequence: &Sequence) -> usize;

    /// Checks each key once, and writes the duration of each call to `calls_ns`.
    fn timed_calls(&self, keys: &[String], calls_ns: &mut [u32]);

    /// Returns how many checks used the overflow state, because the memory bound was reached. If there are any, the
    /// measurement is invalid.
    fn overflowed(&self) -> u64;
}

/// Returns a limiter that calls `check`, which returns whether a request of the key is allowed.
pub(crate) fn limiter_by(
    check: impl Fn(&String) -> bool + Send + Sync + 'static,
) -> Box<dyn MeasuredLimiter> {
    Box::new(LimiterByFunction { check, ours: None })
}

/// Returns a limiter that calls `check` on `ours`, whose memory use can be read.
pub(crate) fn our_limiter_by(
    ours: Limiter,
    check: impl Fn(&String) -> bool + Send + Sync + 'static,
) -> Box<dyn MeasuredLimiter> {
    Box::new(LimiterByFunction { check, ours: Some(ours) })
}

struct LimiterByFunction<F> {
    check: F,
    ours: Option<Limiter>,
}

impl<F: Fn(&String) -> bool + Send + Sync> MeasuredLimiter for LimiterByFunction<F> {
    fn pass(&self, sequence: &Sequence) -> usize {
        let pass = || sequence.keys.iter().filter(|key| (self.check)(key)).count();
        (0..sequence.times).map(|_| pass()).sum()
    }

    fn timed_calls(&self, keys: &[String], calls_ns: &mut [u32]) {
        let mut before = Instant::now();
        for (key, call_ns) in keys.iter().zip(calls_ns) {
            (self.check)(key);
            let after = Instant::now();
            *call_ns = u32::try_from((after - before).as_nanos()).unwrap_or(u32::MAX);
            before = after;
        }
    }

    fn overflowed(&self) -> u64 {
        self.ours.as_ref().map_or(0, |limiter| limiter.usage().overflowed)
    }
}
