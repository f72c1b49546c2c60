//! Token bucket: a balance that comes back at a steady rate.

use super::bucket::{Bucket, BucketKind};
use crate::limit::{LimitError, Rate};

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
