//! The keys and the order of the checks. All are made before the clock starts.

use std::array;

use tollgate_bench::random::Random;

pub(crate) const KEYS: usize = 1_000_000;
pub(crate) const MAX_THREADS: usize = 2;

/// The number of checks that one thread makes in one pass.
const CHECKS: usize = 500_000;

/// The choice of keys in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// The same key every time.
    OneKey,
    /// One of 1,000,000 keys by Zipf's law with s = 1.0: the nth most popular key is checked 1/n times as often as the
    /// first.
    Zipf,
    /// One of 1,000,000 keys, each with the same probability.
    Uniform,
}

impl Workload {
    pub(crate) const ALL: [Workload; 3] = [Workload::OneKey, Workload::Zipf, Workload::Uniform];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Workload::OneKey => "one key",
            Workload::Zipf => "Zipf",
            Workload::Uniform => "uniform",
        }
    }
}

/// The checks of one thread: its keys one after the other, repeated `times` times.
///
/// The strings are in memory in the order of their use, like the strings of incoming requests. The measured time then
/// does not include cache misses for the caller's strings.
pub(crate) struct Sequence {
    pub(crate) keys: Vec<String>,
    pub(crate) times: usize,
}

impl Sequence {
    pub(crate) fn checks(&self) -> usize {
        self.keys.len() * self.times
    }
}

/// The sequences of every workload, one for each thread.
pub(crate) struct CheckSequences {
    one_key: [Sequence; MAX_THREADS],
    zipf: [Sequence; MAX_THREADS],
    uniform: [Sequence; MAX_THREADS],
}

impl CheckSequences {
    pub(crate) fn new() -> CheckSequences {
        let mut random = Random::new(0);
        let zipf = Zipf::new(KEYS);
        CheckSequences {
            one_key: array::from_fn(|_| Sequence { keys: vec![key(0); 64], times: CHECKS / 32 }),
            zipf: array::from_fn(|_| sequence(|| zipf.rank(random.unit()))),
            uniform: array::from_fn(|_| sequence(|| random.below(KEYS))),
        }
    }

    pub(crate) fn sequences(&self, workload: Workload) -> &[Sequence; MAX_THREADS] {
        match workload {
            Workload::OneKey => &self.one_key,
            Workload::Zipf => &self.zipf,
            Workload::Uniform => &self.uniform,
        }
    }
}

/// Returns the first `count` keys.
pub(crate) fn keys(count: usize) -> Vec<String> {
    (0..count).map(key).collect()
}

/// Returns the key of a rank, which has 13 bytes. Successive ranks have distant ids, so that popular keys are not next to
/// each other in any limiter's memory.
fn key(rank: usize) -> String {
    // 611,953 and 1,000,000 have no common factor, so every id belongs to one rank.
    format!("user:{:08}", rank * 611_953 % KEYS)
}

/// Returns a sequence of keys with these ranks.
fn sequence(mut rank: impl FnMut() -> usize) -> Sequence {
    Sequence { keys: (0..CHECKS).map(|_| key(rank())).collect(), times: 1 }
}

/// Zipf's law with s = 1.
struct Zipf {
    /// For each rank, the share of all checks that it and the ranks before it have.
    shares: Vec<f64>,
}

impl Zipf {
    fn new(count: usize) -> Zipf {
        let total: f64 = (1..=count).map(|rank| 1.0 / rank as f64).sum();
        let share = |sum: &mut f64, rank: usize| {
            *sum += 1.0 / rank as f64 / total;
            Some(*sum)
        };
        Zipf { shares: (1..=count).scan(0.0, share).collect() }
    }

    /// Returns the rank, from 0, for a number in 0..1.
    fn rank(&self, point: f64) -> usize {
        self.shares.partition_point(|&share| share <= point).min(self.shares.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_are_unique_and_have_13_bytes() {
        let keys: HashSet<String> = keys(KEYS).into_iter().collect();
        assert_eq!(keys.len(), KEYS);
        assert!(keys.iter().all(|key| key.len() == 13));
    }

    #[test]
    fn ranks_have_the_shares_of_zipfs_law() {
        // 1 + 1/2 + 1/3 + 1/4 = 25/12: the first rank has 12/25 of the checks, the first two have 18/25.
        let zipf = Zipf::new(4);
        let ranks = [0.0, 0.47, 0.49, 0.71, 0.73, 0.999_999, 1.0].map(|point| zipf.rank(point));
        assert_eq!(ranks, [0, 0, 1, 1, 2, 3, 3]);
    }
}
