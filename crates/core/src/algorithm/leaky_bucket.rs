//! Leaky bucket: a level that leaks at a steady rate, as a meter or as a queue.

use core::fmt;

use super::TokenBucket;
use super::bucket::{Bucket, BucketKind};
use crate::parameter::{LimitError, Rate};

/// A bucket that starts empty, holds `capacity` and leaks continuously.
///
/// Policing refuses what does not fit. It makes the same decisions as a token bucket, so a burst of the
/// whole capacity passes at once. Shaping admits the same requests and says how long to delay each, so
/// that they leave evenly: with capacity 3 and 1/s, three at once leave at 0, 1 and 2 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeakyBucket {
    /// The token bucket with the same capacity and rate, for [`as_token_bucket`](Self::as_token_bucket).
    mirror: TokenBucket,
    mode: Mode,
}

/// How a leaky bucket treats a burst that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Admits the burst at once.
    Policing,
    /// Spreads the burst out at the leak rate.
    Shaping,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Policing => "policing",
            Mode::Shaping => "shaping",
        })
    }
}

impl LeakyBucket {
    /// A bucket that holds `capacity`, leaks at `leak`, and lets bursts that fit through.
    pub fn policing(capacity: u64, leak: Rate) -> Result<LeakyBucket, LimitError> {
        LeakyBucket::new(capacity, leak, Mode::Policing)
    }

    /// A bucket that holds `capacity`, leaks at `leak`, and spreads bursts out.
    pub fn shaping(capacity: u64, leak: Rate) -> Result<LeakyBucket, LimitError> {
        LeakyBucket::new(capacity, leak, Mode::Shaping)
    }

    /// A bucket that holds `capacity` and leaks at `leak`, in either mode.
    pub fn new(capacity: u64, leak: Rate, mode: Mode) -> Result<LeakyBucket, LimitError> {
        Ok(LeakyBucket { mirror: TokenBucket::of(Bucket::new(capacity, leak, "leak")?), mode })
    }

    /// The most it holds.
    pub const fn capacity(&self) -> u64 {
        self.mirror.capacity()
    }

    /// The units that leak per time.
    pub const fn leak(&self) -> Rate {
        self.mirror.refill()
    }

    /// How it treats a burst that fits.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The token bucket that makes the same decisions on the same states; `None` in shaping mode.
    #[inline]
    pub const fn as_token_bucket(&self) -> Option<&TokenBucket> {
        match self.mode {
            Mode::Policing => Some(&self.mirror),
            Mode::Shaping => None,
        }
    }
}

impl BucketKind for LeakyBucket {
    #[inline]
    fn bucket(&self) -> &Bucket {
        self.mirror.bucket()
    }

    fn with_bucket(&self, bucket: Bucket) -> LeakyBucket {
        LeakyBucket { mirror: TokenBucket::of(bucket), ..*self }
    }

    #[inline]
    fn is_shaping(&self) -> bool {
        self.mode == Mode::Shaping
    }
}
