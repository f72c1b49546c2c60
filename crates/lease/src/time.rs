//! The two clocks by which a lease ends.

/// The time on two clocks, both in microseconds.
///
/// A lease is over as soon as one of them says so. The monotonic clock is exact, but some systems stop it while the
/// machine is suspended; the wall clock continues, but can be set back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// A clock that never goes back. It includes the time for which the machine was suspended, where the system has
    /// such a clock.
    pub monotonic_us: u64,
    /// The time since the Unix epoch.
    pub wall_us: u64,
}

impl Now {
    /// Whether this time is before `end` on both clocks.
    pub(crate) const fn is_before(self, end: Now) -> bool {
        self.monotonic_us < end.monotonic_us && self.wall_us < end.wall_us
    }

    /// Returns the time `later_us` after this one, on both clocks.
    pub(crate) const fn plus_us(self, later_us: u64) -> Now {
        Now {
            monotonic_us: self.monotonic_us.saturating_add(later_us),
            wall_us: self.wall_us.saturating_add(later_us),
        }
    }
}

/// How much earlier a lease ends in the process than on the store, besides the time of the messages: 1% for clocks that
/// run at different speeds, and 2 ms.
///
/// A lease of 1 s ends 12 ms earlier.
pub(crate) const fn margin_us(lasts_us: u64) -> u64 {
    lasts_us.div_ceil(100).saturating_add(2_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: Now = Now { monotonic_us: 100, wall_us: 1_000 };

    #[test]
    fn a_time_is_before_the_end_only_if_both_clocks_are() {
        assert!(Now { monotonic_us: 99, wall_us: 999 }.is_before(END));
        assert!(!Now { monotonic_us: 100, wall_us: 999 }.is_before(END));
        assert!(!Now { monotonic_us: 99, wall_us: 1_000 }.is_before(END));
    }

    #[test]
    fn the_margin_is_one_percent_and_two_milliseconds() {
        assert_eq!(margin_us(1_000_000), 12_000);
        assert_eq!(margin_us(1), 2_001);
        assert_eq!(margin_us(0), 2_000);
    }
}
