//! Common limits, without text and without errors.

use core::num::NonZeroU64;

use super::Limit;
use crate::algorithm::{Concurrency, TokenBucket};

const SECOND_US: NonZeroU64 = NonZeroU64::new(1_000_000).unwrap();
const MINUTE_US: NonZeroU64 = NonZeroU64::new(60_000_000).unwrap();
const HOUR_US: NonZeroU64 = NonZeroU64::new(3_600_000_000).unwrap();
const DAY_US: NonZeroU64 = NonZeroU64::new(86_400_000_000).unwrap();

/// Common limits. Those with a time in their name are token buckets of `units` that refill evenly, from empty to full in
/// that time, like `Quota::per_second` of the crate `governor`. [`TokenBucket::burst`] gives a bucket another capacity.
///
/// They return a [`TokenBucket`], because only a bucket has a burst, or a [`Concurrency`] limit. Both convert into a
/// [`Limit`], and every function that takes an `impl Into<Limit>` or `impl TryInto<Limit>` accepts them.
///
/// Every number makes a valid limit: a `u32` is never too large, and 0 counts as 1. For larger numbers, and where a 0
/// should be an error, use [`TokenBucket::new`].
impl Limit {
    /// Returns a limit of `units` a second, which can all be spent at once.
    ///
    /// ```
    /// use tollgate_core::{Cost, Limit, UnitRequest};
    ///
    /// let limit: Limit = Limit::per_second(10).into();
    /// assert_eq!(limit.to_string(), "token-bucket capacity=10 refill=10/s");
    ///
    /// let mut state = limit.fresh();
    /// let spent = limit.check(&mut state, 0, UnitRequest::new(Cost::new(10)?));
    /// assert!(spent.decision.is_allowed());
    /// let refused = limit.check(&mut state, 0, UnitRequest::new(Cost::ONE));
    /// assert_eq!(refused.decision.retry_after_us(), Some(100_000)); // one is back after 100 ms
    /// # Ok::<(), tollgate_core::CostError>(())
    /// ```
    pub fn per_second(units: u32) -> TokenBucket {
        TokenBucket::of_units_per(units, SECOND_US)
    }

    /// Returns a limit of `units` a minute, which can all be spent at once.
    ///
    /// ```
    /// # use tollgate_core::Limit;
    /// let limit: Limit = Limit::per_minute(90).into();
    /// assert_eq!(limit, "token-bucket capacity=90 refill=90/m".parse()?);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn per_minute(units: u32) -> TokenBucket {
        TokenBucket::of_units_per(units, MINUTE_US)
    }

    /// Returns a limit of `units` an hour, which can all be spent at once.
    ///
    /// ```
    /// # use tollgate_core::Limit;
    /// let limit: Limit = Limit::per_hour(1_000).burst(50).into();
    /// assert_eq!(limit, "token-bucket capacity=50 refill=1000/h".parse()?);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn per_hour(units: u32) -> TokenBucket {
        TokenBucket::of_units_per(units, HOUR_US)
    }

    /// Returns a limit of `units` a day of 24 hours, which can all be spent at once.
    ///
    /// ```
    /// # use tollgate_core::Limit;
    /// let limit: Limit = Limit::per_day(10_000_000).into();
    /// assert_eq!(limit, "token-bucket capacity=10000000 refill=10000000/d".parse()?);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn per_day(units: u32) -> TokenBucket {
        TokenBucket::of_units_per(units, DAY_US)
    }

    /// Returns a limit of `units` at a time, each held for 60 s unless it is released before.
    /// [`Concurrency::held_for`] gives it another hold time. At most 1,024 units can be held at a time, and a larger
    /// number counts as 1,024; [`Concurrency::new`] refuses it.
    ///
    /// ```
    /// # use tollgate_core::Limit;
    /// let limit: Limit = Limit::concurrent(10).into();
    /// assert_eq!(limit, "concurrency limit=10 for=60s".parse()?);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn concurrent(units: u32) -> Concurrency {
        Concurrency::of_units(units)
    }
}
