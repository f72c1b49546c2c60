//! The times that marks stay.

use proptest::prelude::*;

use super::*;

#[test]
fn length_is_the_shortest_that_is_long_enough() {
    let hour_us = 3_600_000_000;
    for (at_least_us, want_us) in [
        (0, 1 << 23),
        (1 << 23, 1 << 23),
        ((1 << 23) + 1, 9 << 20),
        (11_000_000, 11 << 20),
        ((2 << 23) - 1, 2 << 23),
        (24 * hour_us + 10_000_000, 11 << 33),
        (MAX_FILL_US, MAX_FILL_US),
        (u64::MAX, MAX_FILL_US),
    ] {
        assert_eq!(length(at_least_us).1, want_us, "{at_least_us}");
    }
    assert!(11 << 33 < 27 * hour_us);
}

proptest! {
    #[test]
    fn lengths_are_numbered_in_order_and_at_most_an_eighth_too_long(log2 in 23_u32..52, part in any::<u64>()) {
        let at_least_us = ((1 << log2) + part % (1 << log2)).min(MAX_FILL_US);
        let (number, lasts_us) = length(at_least_us);
        prop_assert!(number < LENGTHS);
        prop_assert!(at_least_us <= lasts_us && lasts_us - at_least_us <= at_least_us / 8);
        // A length maps to itself, and the next longer time to the next number.
        prop_assert_eq!(length(lasts_us), (number, lasts_us));
        if lasts_us < MAX_FILL_US {
            prop_assert_eq!(length(lasts_us + 1).0, number + 1);
        }
    }
}
