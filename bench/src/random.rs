//! Pseudo-random numbers, the same in every run.

/// Marsaglia's generator xorshift64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns the nth sequence. Different numbers give different sequences.
    pub fn new(nth: u32) -> Random {
        // OK because the factor is odd: different numbers give different states, and no number gives 0.
        Random((u64::from(nth) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Returns a number in 0..1.
    pub fn unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a whole number in 0..end.
    pub fn below(&mut self, end: usize) -> usize {
        (self.unit() * end as f64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_fill_the_range_evenly() {
        let mut random = Random::new(0);
        let mut tenths = [0; 10];
        (0..100_000).for_each(|_| tenths[random.below(10)] += 1);
        assert!(tenths.iter().all(|count| (9_500..10_500).contains(count)), "{tenths:?}");
    }
}
