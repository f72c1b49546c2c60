//! How the keys of a limit are leased.

use std::time::Duration;

use tollgate_core::Limit;
use tollgate_lease::{LeaseTerms, TermsError};

/// How the keys of a limit are [leased](crate::Scope::leased).
///
/// ```
/// use std::time::Duration;
/// use tollgate::LeaseOptions;
///
/// let options = LeaseOptions { max_share_percent: 10, ..LeaseOptions::default() };
/// assert_eq!(options.lease_for, Duration::from_secs(1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseOptions {
    /// How long a lease lasts unless it is renewed: 100 ms to 1 h, and at least 10 paces. The default is 1 s. The units of
    /// a process that crashes are unused for so long.
    pub lease_for: Duration,
    /// The share of the limit that this process may hold unused, in percent: 1 to 100. The default is 25.
    pub max_share_percent: u32,
    /// The least time between two requests to the store about one key: at least 100 us. The default is 10 ms.
    pub pace: Duration,
}

impl Default for LeaseOptions {
    fn default() -> LeaseOptions {
        LeaseOptions {
            lease_for: Duration::from_micros(LeaseTerms::DEFAULT_LEASE_US),
            max_share_percent: LeaseTerms::DEFAULT_MAX_SHARE_PERCENT,
            pace: Duration::from_micros(LeaseTerms::DEFAULT_PACE_US),
        }
    }
}

impl LeaseOptions {
    /// Returns the most units that one process may hold unused under this limit, or an error if the limit cannot be
    /// leased in this way.
    pub fn max_unused(&self, limit: &Limit) -> Result<u64, TermsError> {
        Ok(self.terms(limit)?.max_unused())
    }

    /// Returns the terms for a limit, or an error if it cannot be leased in this way.
    pub(crate) fn terms(&self, limit: &Limit) -> Result<LeaseTerms, TermsError> {
        LeaseTerms::new(*limit)?
            .lease_for_us(in_us(self.lease_for))?
            .pace_us(in_us(self.pace))?
            .max_share(self.max_share_percent)
    }
}

fn in_us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
