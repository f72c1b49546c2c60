//! A limiter under test: a loop around its one call, compiled for that call alone.

use std::time::Instant;

use tollgate::Limiter;

use crate::traffic::Sequence;

pub(crate) trait Subject: Send + Sync {
    /// Checks the keys of a sequence, and returns how many were allowed.
    fn pass(&self, sequence: &Sequence) -> usize;

    /// Checks each key once, and notes how long every call took.
    fn timed_calls(&self, keys: &[String], calls_ns: &mut [u32]);

    /// Returns how many checks found no room for a state of their own. If any did, the benchmark is void.
    fn overflowed(&self) -> u64;
}

/// A subject that calls `check`, which tells whether a key's request is allowed.
pub(crate) fn subject(check: impl Fn(&String) -> bool + Send + Sync + 'static) -> Box<dyn Subject> {
    Box::new(By { check, ours: None })
}

/// The same for one of ours.
pub(crate) fn our_subject(
    ours: Limiter,
    check: impl Fn(&String) -> bool + Send + Sync + 'static,
) -> Box<dyn Subject> {
    Box::new(By { check, ours: Some(ours) })
}

struct By<F> {
    check: F,
    ours: Option<Limiter>,
}

impl<F: Fn(&String) -> bool + Send + Sync> Subject for By<F> {
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
