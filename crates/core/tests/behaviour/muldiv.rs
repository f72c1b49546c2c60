//! `muldiv` against arbitrary-precision integers.

use std::num::NonZeroU64;

use num_bigint::BigUint;
use proptest::prelude::*;
use tollgate_core::store::muldiv;

fn agrees(a: u64, b: u64, divisor: u64) -> Result<(), TestCaseError> {
    let product = BigUint::from(a) * BigUint::from(b);
    let (quotient, remainder) = muldiv(a, b, NonZeroU64::new(divisor).unwrap());
    let exact = &product / divisor;
    prop_assert_eq!(BigUint::from(remainder), &product % divisor);
    prop_assert_eq!(BigUint::from(quotient), exact.min(BigUint::from(u64::MAX)));
    Ok(())
}

proptest! {
    #[test]
    fn agrees_with_wide_integers(a: u64, b: u64, divisor in 1_u64..) {
        agrees(a, b, divisor)?;
    }

    #[test]
    fn agrees_below_2_to_the_53(a in 0..1_u64 << 53, b in 0..1_u64 << 53, divisor in 1..1_u64 << 53) {
        agrees(a, b, divisor)?;
    }
}

#[test]
fn agrees_around_powers_of_two() {
    let mut edges = vec![1, 2, 3, 10, 999_983, 86_400_000_000];
    for power in [31, 32, 33, 52, 53, 54, 63] {
        edges.extend([(1 << power) - 1, 1 << power, (1 << power) + 1]);
    }
    edges.push(u64::MAX);
    for &a in &edges {
        for &b in &edges {
            for &divisor in &edges {
                agrees(a, b, divisor).unwrap();
            }
        }
    }
}
