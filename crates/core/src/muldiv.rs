//! Exact `a * b / divisor`, the one multiplication that may pass 64 bits.

use core::num::NonZeroU64;

/// The whole part and the remainder of `a * b / divisor`, exact however large the product.
///
/// `muldiv(7, 3, 4)` is `(5, 1)`: 21 quarters are 5 and one quarter. A quotient that does not fit
/// 64 bits is returned as `u64::MAX`; that never happens within the ranges a
/// [`Limit`](crate::Limit) accepts.
#[inline]
pub fn muldiv(a: u64, b: u64, divisor: NonZeroU64) -> (u64, u64) {
    match a.checked_mul(b) {
        // The common case for a busy key. It saves a division, which takes 4 ns.
        Some(product) if product < divisor.get() => (0, product),
        Some(product) => (product / divisor, product % divisor),
        None => muldiv_wide(a, b, divisor),
    }
}

/// Kept out of line: few limits need it, and it is five times the code.
#[cold]
#[inline(never)]
fn muldiv_wide(a: u64, b: u64, divisor: NonZeroU64) -> (u64, u64) {
    let product = u128::from(a) * u128::from(b);
    let divisor = u128::from(divisor.get());
    let quotient = u64::try_from(product / divisor).unwrap_or(u64::MAX);
    // OK because a remainder is below the divisor, which came from a u64.
    (quotient, (product % divisor) as u64)
}
