//! Token bucket: a balance that comes back at a steady rate.

use core::num::{NonZeroU32, NonZeroU64};

use super::bucket::{Bucket, BucketKind};
use crate::parameter::{LimitError, Rate};

/// A bucket of `capacity` tokens that starts full and refills continuously.
///
/// With capacity 10 and 1/s, 8 requests at 0 s leave 2; at 3 s there are 5. A refusal keeps the
/// fraction that has come back so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    bucket: Bucket,
}

impl TokenBucket {
    /// A bucket of `capacity` tokens that come back at `refill`.
    pub fn new(capacity: u64, refill: Rate) -> Result<TokenBucket, LimitError> {
        Ok(TokenBucket { bucket: Bucket::new(capacity, refill, "refill")? })
    }

    pub(super) const fn of(bucket: Bucket) -> TokenBucket {
        TokenBucket { bucket }
    }

    /// A bucket of `units` tokens, which all come back within `per_us`. 0 units count as 1.
    pub(crate) fn of_units_per(units: u32, per_us: NonZeroU64) -> TokenBucket {
        let units: NonZeroU64 = NonZeroU32::new(units).unwrap_or(NonZeroU32::MIN).into();
        TokenBucket { bucket: Bucket::nearest(units.get(), Rate::in_lowest_terms(units, per_us)) }
    }

    /// Returns this bucket with another capacity: the most tokens that can be spent at once. The refill stays.
    ///
    /// ```
    /// use tollgate_core::Limit;
    ///
    /// let limit = Limit::per_second(10).burst(60);
    /// assert_eq!(Limit::from(limit), "token-bucket capacity=60 refill=10/s".parse()?);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    ///
    /// A capacity below the refill is valid: with 100 a second and a burst of 5, requests that are spaced evenly all
    /// pass, and of requests that arrive at once 5 pass.
    ///
    /// Every number makes a valid limit: 0 counts as 1, and a capacity that takes over 100 years to come back is
    /// lowered to what comes back in 100 years (36,525 at one a day). For a capacity above 32 bits, and for an error
    /// instead of the nearest limit, use [`TokenBucket::new`].
    #[must_use = "only the bucket that is returned has the capacity"]
    pub fn burst(self, capacity: u32) -> TokenBucket {
        TokenBucket { bucket: Bucket::nearest(capacity.into(), self.refill()) }
    }

    /// The most tokens it holds.
    pub const fn capacity(&self) -> u64 {
        self.bucket.capacity()
    }

    /// The tokens that come back per time.
    pub const fn refill(&self) -> Rate {
        self.bucket.rate()
    }
}

impl BucketKind for TokenBucket {
    #[inline]
    fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    fn with_bucket(&self, bucket: Bucket) -> TokenBucket {
        TokenBucket { bucket }
    }

    #[inline]
    fn is_shaping(&self) -> bool {
        false
    }
}
