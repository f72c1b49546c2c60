//! The random numbers of a run.

/// A generator of pseudo-random numbers (SplitMix64): the same numbers for the same seed.
#[derive(Clone, Debug)]
pub(crate) struct RandomSource(u64);

impl RandomSource {
    pub(crate) const fn new(seed: u64) -> RandomSource {
        RandomSource(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from `first` to `last`, both included.
    pub(crate) const fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.next() % (last - first + 1)
    }

    /// Returns a number from `-most` to `most`.
    pub(crate) const fn around_zero(&mut self, most: i64) -> i64 {
        self.between(0, 2 * most.unsigned_abs()) as i64 - most
    }

    /// Returns true in `permille` of 1,000 cases.
    pub(crate) const fn happens(&mut self, permille: u32) -> bool {
        self.next() % 1_000 < permille as u64
    }

    pub(crate) const fn index(&mut self, len: usize) -> usize {
        (self.next() % len as u64) as usize
    }

    /// Returns one of the values.
    pub(crate) fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.index(values.len())]
    }

    /// Returns a time that passes until the next of random, independent events, `mean_us` on average.
    pub(crate) fn gap_us(&mut self, mean_us: u64) -> u64 {
        // The numbers decide no check, so a float is good enough: the same seed gives the same times on every machine
        // that computes the logarithm alike.
        let part = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        (-(1.0 - part).ln() * mean_us as f64) as u64 + 1
    }
}
