//! A request to a limit, and the limit's answer.

use core::fmt;
use core::time::Duration;

use crate::range::MAX_UNITS;

/// The units a request spends: at least 1, below 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u64);

impl Cost {
    /// The default cost of a request: one unit.
    pub const ONE: Cost = Cost(1);

    /// A cost of `units`, refused when it is 0 or at least 2^53.
    ///
    /// ```
    /// # use tollgate_core::Cost;
    /// assert_eq!(Cost::new(5).unwrap().units(), 5);
    /// assert_eq!(Cost::new(0).unwrap_err().to_string(), "cost is 0; use at least 1");
    /// ```
    pub const fn new(units: u64) -> Result<Cost, CostError> {
        match units {
            0 => Err(CostError::Zero),
            1..=MAX_UNITS => Ok(Cost(units)),
            _ => Err(CostError::TooLarge(units)),
        }
    }

    /// Makes a cost of units that were checked before: at least 1, below 2^53.
    pub(crate) const fn of(units: u64) -> Cost {
        Cost(units)
    }

    /// The cost as a number.
    pub const fn units(self) -> u64 {
        self.0
    }
}

/// Why a number is not a [`Cost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CostError {
    /// A request spends at least one unit; [`Limit::peek`](crate::Limit::peek) looks without spending.
    Zero,
    /// 2^53 units or more.
    TooLarge(u64),
}

impl fmt::Display for CostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CostError::Zero => write!(f, "cost is 0; use at least 1"),
            CostError::TooLarge(units) => {
                write!(f, "cost is {units}; use at most {MAX_UNITS} (2^53 - 1)")
            }
        }
    }
}

impl core::error::Error for CostError {}

/// A request for units of a limit: the cost, and the longest delay that the caller accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitRequest {
    /// The units that the request spends.
    pub cost: Cost,
    /// The longest delay that the caller accepts from a shaping limit. A limit that would delay the request longer
    /// refuses it and charges nothing. `None` accepts any delay.
    pub max_wait_us: Option<u64>,
}

impl UnitRequest {
    /// A request of `cost` that accepts any delay.
    pub const fn new(cost: Cost) -> UnitRequest {
        UnitRequest { cost, max_wait_us: None }
    }

    /// The same request by a caller that waits at most `max_wait_us`.
    pub const fn within_us(self, max_wait_us: u64) -> UnitRequest {
        UnitRequest { max_wait_us: Some(max_wait_us), ..self }
    }
}

impl From<Cost> for UnitRequest {
    fn from(cost: Cost) -> UnitRequest {
        UnitRequest::new(cost)
    }
}

/// Whether a request is allowed, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request is allowed.
    Allowed {
        /// How long the request should wait before it proceeds; 0 except from a shaping limit.
        delay_us: u64,
    },
    /// The request is refused, and was charged nothing.
    Denied {
        /// When the same request would be allowed.
        retry: Retry,
    },
}

impl Verdict {
    /// Whether the request is allowed.
    pub const fn is_allowed(self) -> bool {
        matches!(self, Verdict::Allowed { .. })
    }

    /// How long an allowed request should wait before it proceeds; 0 for a denied one.
    pub const fn delay_us(self) -> u64 {
        match self {
            Verdict::Allowed { delay_us } => delay_us,
            Verdict::Denied { .. } => 0,
        }
    }

    /// How long a denied request must wait; `None` when it was allowed, and when waiting cannot help.
    pub const fn retry_after_us(self) -> Option<u64> {
        match self {
            Verdict::Denied { retry: Retry::AfterUs(wait_us) } => Some(wait_us),
            _ => None,
        }
    }
}

/// When a denied request would be allowed. Ordered by the wait: `Never` is the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// After exactly this long, if nothing else is charged; one microsecond less is too early.
    AfterUs(u64),
    /// The cost is above the limit: waiting cannot help.
    Never,
}

impl Retry {
    /// Returns how long to wait, or `None` if waiting cannot help.
    pub const fn after(self) -> Option<Duration> {
        match self {
            Retry::AfterUs(wait_us) => Some(Duration::from_micros(wait_us)),
            Retry::Never => None,
        }
    }
}

/// A limit's answer to one request: the verdict, and what remains for the key after the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitDecision {
    /// Whether the request is allowed, and when.
    pub verdict: Verdict,
    /// The limit's size: its `limit` or `capacity`.
    pub limit: u64,
    /// The largest cost that would be allowed at this same instant, for a caller that accepts the same delay.
    pub remaining: u64,
    /// How long until `remaining == limit` again, if nothing else is charged; 0 if they are equal now.
    pub reset_after_us: u64,
    /// How long until more remains, if that cannot be computed from `reset_after_us`: under a sliding window log or
    /// counter that has spent something, and under a shaping limit whose delay is longer than the caller accepts.
    /// Otherwise 0. [`more_after_us`](Self::more_after_us) gives the time for every limit.
    pub first_back_us: u64,
}

impl LimitDecision {
    /// Whether the request is allowed.
    pub const fn is_allowed(&self) -> bool {
        self.verdict.is_allowed()
    }

    /// How long a denied request must wait; `None` when it was allowed, and when waiting cannot help.
    pub const fn retry_after_us(&self) -> Option<u64> {
        self.verdict.retry_after_us()
    }

    /// How long an allowed request should wait before it proceeds; 0 for a denied one.
    pub const fn delay_us(&self) -> u64 {
        self.verdict.delay_us()
    }
}

/// The result of a check: a [`LimitDecision`], and the receipt of what it charged.
#[derive(Debug, PartialEq, Eq)]
pub struct CheckResult {
    /// The limit's answer.
    pub decision: LimitDecision,
    /// The receipt with which the charge can be refunded; `None` when nothing was charged.
    pub receipt: Option<ChargeReceipt>,
}

/// The proof of a charge, with its cost and time. A refund needs it, and it is good for one refund.
///
/// Not `Clone`: a refund consumes the receipt. A window's receipt is good only while the window
/// keeps its length.
#[derive(Debug, PartialEq, Eq)]
pub struct ChargeReceipt {
    pub(crate) cost: Cost,
    pub(crate) place: ChargePlace,
}

impl ChargeReceipt {
    /// Makes the receipt of a charge that a store made by itself, or reads one back that was stored.
    ///
    /// A refund with an invented receipt gives back units that other requests were charged.
    pub const fn of(cost: Cost, place: ChargePlace) -> ChargeReceipt {
        ChargeReceipt { cost, place }
    }

    /// The units that were charged.
    pub const fn cost(&self) -> Cost {
        self.cost
    }

    /// Where they were charged.
    pub const fn place(&self) -> ChargePlace {
        self.place
    }
}

/// Where in its key's state a charge is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargePlace {
    /// In a window.
    Window {
        /// When the window starts.
        start_us: u64,
        /// How long the window is.
        window_us: u64,
    },
    /// In a log.
    Entry {
        /// When the entry was charged.
        at_us: u64,
    },
    /// In a bucket.
    Bucket {
        /// All units charged up to and including this charge, modulo 2^53.
        charged: u64,
        /// When the bucket would be empty again, computed when the charge was made.
        over_us: u64,
    },
    /// In the lease of a process, which has not told the store of it yet. Only that process can give it back, and only
    /// until it does.
    Lease {
        /// The number of the lease.
        lease: u64,
        /// How often the process had told the store of its charges when it made this one.
        settlement: u32,
        /// By when the process has told the store of this charge, or the lease is over.
        until_us: u64,
    },
}
