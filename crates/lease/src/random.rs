//! Numbers for the ids of leases and for jitter.

/// A generator of pseudo-random numbers (SplitMix64). It returns each number once before it repeats any.
#[derive(Clone, Debug)]
pub(crate) struct RandomNumbers(u64);

impl RandomNumbers {
    pub(crate) const fn new(seed: u64) -> RandomNumbers {
        RandomNumbers(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`; 0 if `end` is 0.
    pub(crate) const fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next() % end }
    }
}
