//! Holds: units of a key that are set aside until they are settled or expire.

use alloc::vec::Vec;

use core::time::Duration;

use crate::decision::{ChargeReceipt, Cost, LimitDecision, Verdict};
use crate::range::MAX_WINDOW_US;

/// The most holds that one key can have at a time.
pub const MAX_HOLDS: usize = 1_024;

/// The number that identifies a hold among the holds of its key. The caller chooses it, and must never use a number
/// twice for the same key: use a random number, or count from a random start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldId(pub u64);

impl HoldId {
    /// The bit that distinguishes the ids of leases from other ids.
    const LEASE_BIT: u64 = 1 << 63;

    /// Returns the id of a lease. The highest bit of `number` is not used.
    pub const fn of_lease(number: u64) -> HoldId {
        HoldId(number | HoldId::LEASE_BIT)
    }

    /// Returns the id of a hold that is no lease. The highest bit of `number` is not used.
    pub const fn of_hold(number: u64) -> HoldId {
        HoldId(number & !HoldId::LEASE_BIT)
    }

    /// Whether this is the id of a lease.
    pub const fn is_lease(self) -> bool {
        self.0 & HoldId::LEASE_BIT != 0
    }
}

/// How long units are held unless the hold is settled or extended before: 1 us to 366 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldTime(u64);

impl HoldTime {
    /// Makes a hold time, refused when it is 0 or above 366 days.
    ///
    /// ```
    /// # use tollgate_core::HoldTime;
    /// assert_eq!(HoldTime::from_us(30_000_000)?.as_us(), 30_000_000);
    /// assert!(HoldTime::from_us(0).is_err());
    /// # Ok::<(), tollgate_core::HoldError>(())
    /// ```
    pub const fn from_us(us: u64) -> Result<HoldTime, HoldError> {
        match us {
            0 => Err(HoldError::NoTime),
            1..=MAX_WINDOW_US => Ok(HoldTime(us)),
            _ => Err(HoldError::TooLong),
        }
    }

    /// The valid time that is nearest to `us`.
    pub(crate) const fn nearest_us(us: u64) -> HoldTime {
        match us {
            0 => HoldTime(1),
            1..=MAX_WINDOW_US => HoldTime(us),
            _ => HoldTime(MAX_WINDOW_US),
        }
    }

    /// The time in microseconds.
    pub const fn as_us(self) -> u64 {
        self.0
    }
}

impl TryFrom<Duration> for HoldTime {
    type Error = HoldError;

    fn try_from(time: Duration) -> Result<HoldTime, HoldError> {
        HoldTime::from_us(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
    }
}

/// A request to set units aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The id of the hold, if the reservation is admitted.
    pub id: HoldId,
    /// The units to set aside.
    pub cost: Cost,
    /// How long they are held.
    pub hold_for: HoldTime,
}

/// A hold as the caller that reserved it knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldReference {
    /// Its id.
    pub id: HoldId,
    /// The last expiry that was granted for it. It distinguishes a hold that has expired from one that never existed.
    pub expires_us: u64,
}

/// The part of a hold that was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldUse {
    /// The units used since the reservation, including the units of earlier settlements. Because each settlement has
    /// the sum, a settlement that arrives twice or out of order charges nothing twice, and the next settlement charges
    /// the units of a lost one.
    pub units: u64,
    /// Whether the hold ends. Otherwise its other units stay held until the same expiry.
    pub is_last: bool,
}

/// The units and the time by which a hold grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldGrowth {
    /// The units to set aside in addition. With `None` the extension is always admitted.
    pub more: Option<Cost>,
    /// How long the hold lasts from now on.
    pub hold_for: HoldTime,
}

/// An extension that was granted for one hold, and is to be taken back because another hold of the same request could not
/// be extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedExtension {
    /// The hold, with the expiry from before the extension.
    pub hold: HoldReference,
    /// The units that were added.
    pub more: Option<Cost>,
    /// The expiry that the extension set.
    pub expires_us: u64,
}

/// A hold that has been neither settled nor charged at its expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenHold {
    /// Its id.
    pub id: HoldId,
    /// The units that are set aside. 0 if all have been charged, and the hold waits for its last settlement.
    pub units: u64,
    /// When it expires: its units are charged at that instant.
    pub expires_us: u64,
    /// The units that settlements in part have charged so far.
    pub used: u64,
}

/// The open holds of one key, the earliest expiry first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    by_expiry: Vec<OpenHold>,
}

impl Holds {
    /// Makes the holds of a key from a list in any order, as a store has kept them.
    pub fn of(holds: impl IntoIterator<Item = OpenHold>) -> Holds {
        let mut by_expiry: Vec<OpenHold> = holds.into_iter().collect();
        by_expiry.sort_by_key(|hold| (hold.expires_us, hold.id));
        Holds { by_expiry }
    }

    /// The holds, the earliest expiry first. Some may have expired: an expiry is only stored by an operation that
    /// changes the state.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &OpenHold> {
        self.by_expiry.iter()
    }

    /// Whether there is no hold.
    pub fn is_empty(&self) -> bool {
        self.by_expiry.is_empty()
    }

    /// How many holds there are, expired ones that are not yet charged included.
    pub fn len(&self) -> usize {
        self.by_expiry.len()
    }

    /// Whether a hold is listed. It may have expired.
    pub fn contains(&self, id: HoldId) -> bool {
        self.get(id).is_some()
    }

    /// Returns the bytes that the list has allocated on the heap, used or not.
    pub fn heap_bytes(&self) -> usize {
        self.by_expiry.capacity() * size_of::<OpenHold>()
    }

    /// Splits the holds into expired ones and open ones at `at_us`.
    pub(crate) fn split_at_us(&self, at_us: u64) -> (&[OpenHold], &[OpenHold]) {
        self.by_expiry.split_at(self.expired_count(at_us))
    }

    /// Removes and returns the holds that have expired at `at_us`, the earliest first.
    pub(crate) fn take_expired(&mut self, at_us: u64) -> impl Iterator<Item = OpenHold> {
        let count = self.expired_count(at_us);
        self.by_expiry.drain(..count)
    }

    fn expired_count(&self, at_us: u64) -> usize {
        self.by_expiry.partition_point(|hold| hold.expires_us <= at_us)
    }

    pub(crate) fn insert(&mut self, hold: OpenHold) {
        let after = (hold.expires_us, hold.id);
        let index = self.by_expiry.partition_point(|other| (other.expires_us, other.id) < after);
        self.by_expiry.insert(index, hold);
    }

    pub(crate) fn remove(&mut self, id: HoldId) -> Option<OpenHold> {
        let index = self.by_expiry.iter().position(|hold| hold.id == id)?;
        Some(self.by_expiry.remove(index))
    }

    pub(crate) fn get(&self, id: HoldId) -> Option<&OpenHold> {
        self.by_expiry.iter().find(|hold| hold.id == id)
    }

    /// Makes every expiry earlier by `back_us`: the key is on a new clock.
    pub(crate) fn move_back(&mut self, back_us: u64) {
        for hold in &mut self.by_expiry {
            hold.expires_us = hold.expires_us.saturating_sub(back_us);
        }
    }
}

/// The units of all these holds together.
pub(crate) fn units_of(holds: &[OpenHold]) -> u64 {
    // OK because a key has at most 1,024 holds of less than 2^53 units each.
    holds.iter().map(|hold| hold.units).sum()
}

/// Why units cannot be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldError {
    /// The hold time is 0.
    NoTime,
    /// The hold time is above 366 days.
    TooLong,
    /// The limit is a shaping leaky bucket: it delays each request until the requests before it have left, and held
    /// units have no position in that order.
    Shaping,
    /// The limit is a concurrency limit, which cannot be leased: its units are reserved and released one by one.
    OnlyHolds,
}

impl core::fmt::Display for HoldError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            HoldError::NoTime => "the time of a hold is 0; use at least 1us",
            HoldError::TooLong => {
                "the time of a hold is above 366 days; use a shorter time and extend the hold"
            }
            HoldError::Shaping => {
                "a shaping leaky bucket cannot have holds; use `mode=policing` or a token bucket"
            }
            HoldError::OnlyHolds => {
                "a concurrency limit cannot be leased; reserve its units instead"
            }
        })
    }
}

impl core::error::Error for HoldError {}

/// The answer to a [`Reservation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveAnswer {
    /// Whether the reservation was admitted, and what remains after it.
    pub decision: LimitDecision,
    /// The hold, if the reservation was admitted.
    pub hold: Option<HoldReference>,
}

/// The answer to a settlement.
#[derive(Debug, PartialEq, Eq)]
pub struct SettleAnswer {
    /// The verdict "allowed" if the hold was open, and the units that remain after the settlement.
    pub decision: LimitDecision,
    /// The effect on the hold.
    pub settlement: Settlement,
}

/// The effect of a settlement.
#[derive(Debug, PartialEq, Eq)]
pub enum Settlement {
    /// The hold was open.
    Done {
        /// The units charged now.
        charged_units: u64,
        /// The charged units that were beyond the hold.
        excess_units: u64,
        /// The units that were used beyond the hold and not charged, because a settlement charges at most one whole limit beyond a
        /// hold.
        cut_units: u64,
        /// The units of the hold that are not held any more: all of them if the hold has ended, and otherwise the units
        /// that were used now.
        freed_units: u64,
        /// The receipt of the charge; `None` if nothing was charged.
        receipt: Option<ChargeReceipt>,
    },
    /// The hold had ended. Nothing changed.
    Ended(EndedHold),
}

/// The answer to an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtendAnswer {
    /// Whether the extension was admitted, and what remains after it.
    pub decision: LimitDecision,
    /// The effect on the hold.
    pub extension: Extension,
}

impl ExtendAnswer {
    /// Returns the answer for a hold that could be extended, but was not, because another hold of the same request could
    /// not. The decision says allowed.
    pub fn refused_for_another(decision: LimitDecision) -> ExtendAnswer {
        let decision = LimitDecision { verdict: Verdict::Allowed { delay_us: 0 }, ..decision };
        ExtendAnswer { decision, extension: Extension::Refused }
    }

    /// Whether the hold has grown.
    pub fn is_granted(&self) -> bool {
        matches!(self.extension, Extension::Granted { .. })
    }
}

/// The effect of an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// The hold has grown, and expires later.
    Granted {
        /// When it expires now.
        expires_us: u64,
        /// The units that it holds now.
        held_units: u64,
    },
    /// The units did not fit. The hold is as it was.
    Refused,
    /// The hold had ended. Nothing changed.
    Ended(EndedHold),
}

/// Why a hold is not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedHold {
    /// The last expiry granted for it has passed.
    Expired,
    /// It was settled before, or forgotten, or never reserved.
    Unknown,
}
