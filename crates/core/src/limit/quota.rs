//! The same algorithm with other numbers.

use core::time::Duration;

use super::Limit;
use crate::algorithm::{
    Concurrency, FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket,
};
use crate::parameter::{LimitError, Rate};

impl Limit {
    /// Returns the same algorithm, in the same mode, for `units` in every `per`: a window of that length, or
    /// a bucket of `units` that refills in that time. A concurrency limit is of `units` that are each held for that time.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use tollgate_core::Limit;
    /// let free: Limit = "token-bucket capacity=60 refill=10/s".parse()?;
    /// let quota = free.limited_to(120, Duration::from_secs(60))?;
    /// assert_eq!(quota, "token-bucket capacity=120 refill=2/s".parse()?);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn limited_to(&self, units: u64, per: Duration) -> Result<Limit, LimitError> {
        Ok(match self {
            Limit::FixedWindow(_) => FixedWindow::new(units, per)?.into(),
            Limit::SlidingWindowLog(_) => SlidingWindowLog::new(units, per)?.into(),
            Limit::SlidingWindowCounter(_) => SlidingWindowCounter::new(units, per)?.into(),
            Limit::TokenBucket(_) => TokenBucket::new(units, Rate::new(units, per)?)?.into(),
            Limit::LeakyBucket(own) => {
                LeakyBucket::new(units, Rate::new(units, per)?, own.mode())?.into()
            }
            Limit::Concurrency(_) => Concurrency::new(units, per)?.into(),
        })
    }
}
