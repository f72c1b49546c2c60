//! How the keys of one limit are leased.

use core::fmt;

use tollgate_core::{HoldError, HoldTime, Limit};

/// How the keys of one limit are leased. Made once for a limit, and passed with each check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    limit: Limit,
    lease_for: HoldTime,
    pace_us: u64,
    max_share_percent: u32,
}

impl LeaseTerms {
    /// How long a lease lasts unless it is renewed: 1 s, if nothing else is set.
    pub const DEFAULT_LEASE_US: u64 = 1_000_000;

    /// The least time between two requests for a key, if nothing else is set: 10 ms.
    pub const DEFAULT_PACE_US: u64 = 10_000;

    /// The share of the limit that one process may hold unused, if nothing else is set, in percent.
    pub const DEFAULT_MAX_SHARE_PERCENT: u32 = 25;

    /// The shortest lease, in paces.
    pub const MIN_LEASE_PACES: u64 = 10;

    const MIN_LEASE_US: u64 = 100_000;
    const MAX_LEASE_US: u64 = 3_600_000_000;
    const MIN_PACE_US: u64 = 100;

    /// Makes the terms for a limit: leases of 1 s, a pace of 10 ms, at most 25% of the limit. Refused for limits that
    /// cannot be leased.
    ///
    /// ```
    /// # use tollgate_lease::LeaseTerms;
    /// let terms = LeaseTerms::new("fixed-window limit=1000 window=10s".parse()?)?;
    /// assert_eq!(terms.max_unused(), 250);
    /// assert_eq!(terms.max_share(10)?.max_unused(), 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(limit: Limit) -> Result<LeaseTerms, TermsError> {
        limit.can_lease().map_err(TermsError::Limit)?;
        let lease_for = HoldTime::from_us(LeaseTerms::DEFAULT_LEASE_US)
            .map_err(|_| TermsError::LeaseTime(LeaseTerms::DEFAULT_LEASE_US))?;
        Ok(LeaseTerms {
            limit,
            lease_for,
            pace_us: LeaseTerms::DEFAULT_PACE_US,
            max_share_percent: LeaseTerms::DEFAULT_MAX_SHARE_PERCENT,
        })
    }

    /// Sets how long a lease lasts unless it is renewed: 100 ms to 1 h, and at least 10 paces.
    pub fn lease_for_us(self, us: u64) -> Result<LeaseTerms, TermsError> {
        let lease_for = HoldTime::from_us(us).map_err(|_| TermsError::LeaseTime(us))?;
        LeaseTerms { lease_for, ..self }.validated()
    }

    /// Sets the least time between two requests for a key: at least 100 us, and at most a tenth of the lease time.
    pub fn pace_us(self, us: u64) -> Result<LeaseTerms, TermsError> {
        LeaseTerms { pace_us: us, ..self }.validated()
    }

    /// Sets the share of the limit that one process may hold unused, in percent: 1 to 100.
    pub fn max_share(self, percent: u32) -> Result<LeaseTerms, TermsError> {
        LeaseTerms { max_share_percent: percent, ..self }.validated()
    }

    fn validated(self) -> Result<LeaseTerms, TermsError> {
        let lease_us = self.lease_for.as_us();
        if !(LeaseTerms::MIN_LEASE_US..=LeaseTerms::MAX_LEASE_US).contains(&lease_us) {
            return Err(TermsError::LeaseTime(lease_us));
        }
        if self.pace_us < LeaseTerms::MIN_PACE_US {
            return Err(TermsError::ShortPace(self.pace_us));
        }
        // OK because the pace is compared with at most 1 h: a product that saturates is refused.
        if self.pace_us.saturating_mul(LeaseTerms::MIN_LEASE_PACES) > lease_us {
            return Err(TermsError::LongPace { pace_us: self.pace_us, lease_us });
        }
        match self.max_share_percent {
            1..=100 => Ok(self),
            percent => Err(TermsError::Share(percent)),
        }
    }

    /// The limit.
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// How long a lease lasts unless it is renewed.
    pub const fn lease_for(&self) -> HoldTime {
        self.lease_for
    }

    /// Returns the least time between two requests for a key.
    pub const fn pace(&self) -> u64 {
        self.pace_us
    }

    /// Returns the most units that one process may hold unused. It is 0 for 25% of a limit of 3 units: the store then decides
    /// every check.
    pub fn max_unused(&self) -> u64 {
        let units = u128::from(self.limit.size()) * u128::from(self.max_share_percent) / 100;
        // OK because the share is at most 100%.
        units as u64
    }
}

/// Why a limit cannot be leased on these terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TermsError {
    /// The limit cannot be leased.
    Limit(HoldError),
    /// The lease time is not between 100 ms and 1 h.
    LeaseTime(u64),
    /// The pace is below 100 us.
    ShortPace(u64),
    /// The pace is more than a tenth of the lease time.
    LongPace {
        /// The pace.
        pace_us: u64,
        /// The lease time.
        lease_us: u64,
    },
    /// The share is not between 1 and 100 percent.
    Share(u32),
}

impl fmt::Display for TermsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TermsError::Limit(error) => error.fmt(f),
            TermsError::LeaseTime(us) => {
                write!(f, "the lease time is {us} us; use 100ms to 1h")
            }
            TermsError::ShortPace(us) => write!(f, "the pace is {us} us; use at least 100us"),
            TermsError::LongPace { pace_us, lease_us } => write!(
                f,
                "the pace of {pace_us} us is more than a tenth of the lease time of {lease_us} us; use a shorter pace or a longer lease",
            ),
            TermsError::Share(percent) => {
                write!(f, "the share is {percent}%; use 1% to 100%")
            }
        }
    }
}

impl core::error::Error for TermsError {}
