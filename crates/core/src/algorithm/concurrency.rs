//! Concurrency: units that are only ever held.

use core::time::Duration;

use super::{Algorithm, BesideHolds, Decide, MAX_TIME_US};
use crate::decision::{
    ChargePlace, ChargeReceipt, Cost, LimitDecision, Retry, UnitRequest, Verdict,
};
use crate::holds::{HoldTime, Holds};
use crate::parameter::{LimitError, concurrent_units, hold_time};

/// At most `limit` units held at any instant: a limit on what runs at once.
///
/// Nothing is charged. A unit is free again when its hold is released, settled or has expired. So a concurrency limit
/// has no rate: a caller that releases each hold at once may reserve any number of units in a second.
///
/// With a limit of 10, ten jobs reserve a unit each and an eleventh is refused, until one of the ten ends. A job that
/// crashes keeps its unit until the hold expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    limit: u64,
    hold_for: HoldTime,
}

impl Concurrency {
    /// At most `limit` units held at a time, each for `hold_for` unless the reservation gives another time.
    pub fn new(limit: u64, hold_for: Duration) -> Result<Concurrency, LimitError> {
        Ok(Concurrency { limit: concurrent_units(limit)?, hold_for: hold_time(hold_for)? })
    }

    /// The limit nearest to `units` that is valid, for a minute.
    pub(crate) fn of_units(units: u32) -> Concurrency {
        const MINUTE: HoldTime = HoldTime::nearest_us(60_000_000);
        let limit = u64::from(units).clamp(1, crate::holds::MAX_HOLDS as u64);
        Concurrency { limit, hold_for: MINUTE }
    }

    /// Returns this limit with another hold time: how long a unit is held unless its hold is released or extended
    /// before. A time of 0 counts as 1 us, and one above 366 days as 366 days.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tollgate_core::Limit;
    ///
    /// let limit = Limit::concurrent(10).held_for(Duration::from_secs(5));
    /// assert_eq!(Limit::from(limit), "concurrency limit=10 for=5s".parse()?);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    #[must_use = "only the limit that is returned has the hold time"]
    pub fn held_for(self, time: Duration) -> Concurrency {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Concurrency { hold_for: HoldTime::nearest_us(us), ..self }
    }

    /// The units that can be held at a time.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// How long a unit is held by default.
    pub const fn hold_for(&self) -> HoldTime {
        self.hold_for
    }
}

/// The state of a key under a concurrency limit. It only matters beside holds: a key without holds has the default
/// state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyClock {
    /// The time of the last operation that changed the holds of the key; 0 without holds. If the caller's clock is more
    /// than 10 s behind it, the clock is a new one, and the expiries move with it.
    pub at_us: u64,
}

impl Decide for Concurrency {
    type State = KeyClock;
    type Standing = KeyClock;

    fn floor_us(&self, clock: &KeyClock) -> u64 {
        clock.at_us
    }

    fn restart(&self, clock: &mut KeyClock, now_us: u64) {
        clock.at_us = now_us;
    }

    fn standing(&self, clock: &KeyClock, now_us: u64) -> KeyClock {
        KeyClock { at_us: now_us.max(clock.at_us) }
    }

    /// A check never fits: nothing would ever give its units back.
    fn verdict(&self, _: &KeyClock, _: &KeyClock, _: UnitRequest) -> Verdict {
        Verdict::Denied { retry: Retry::Never }
    }

    fn charge(&self, clock: &mut KeyClock, standing: KeyClock, _: Cost) -> KeyClock {
        *clock = standing;
        standing
    }

    /// Not used: nothing is charged.
    fn place(&self, standing: &KeyClock, _: u64) -> ChargePlace {
        ChargePlace::Entry { at_us: standing.at_us }
    }

    fn give_back(&self, _: &mut KeyClock, _: u64, _: ChargeReceipt) {}

    fn spent(&self, _: &KeyClock) -> u64 {
        0
    }

    fn remaining(&self, _: &KeyClock, _: UnitRequest) -> u64 {
        self.limit
    }

    fn reset_after_us(&self, _: &KeyClock) -> u64 {
        0
    }
}

impl Algorithm for Concurrency {
    fn size(&self) -> u64 {
        self.limit
    }

    /// The default hold time.
    fn interval_us(&self) -> u64 {
        self.hold_for.as_us()
    }

    /// The most units that are held at any instant of the interval. Over time any number of units can be admitted.
    fn bound_units(&self, interval_us: u64) -> u64 {
        if interval_us == 0 { 0 } else { self.limit }
    }

    fn bound_formula(&self) -> &'static str {
        "limit, held at any instant"
    }

    fn with_size(&self, size: u64) -> Self {
        Concurrency { limit: size, ..*self }
    }

    /// Units that were spent under another limit do not count, because they are not held.
    fn after_spending(&self, _: u64, _: u64) -> KeyClock {
        KeyClock::default()
    }

    /// For a key without holds. [`Limit::carry_over_beside`](crate::Limit::carry_over_beside) sets the clock of a key with
    /// holds.
    fn carry_over(&self, _: &Concurrency, _: KeyClock, _: u64) -> KeyClock {
        KeyClock::default()
    }

    /// Decides a reservation for a key without holds.
    fn peek(&self, _: &KeyClock, _: u64, request: UnitRequest) -> LimitDecision {
        let verdict = match request.cost.units() <= self.limit {
            true => Verdict::Allowed { delay_us: 0 },
            false => Verdict::Denied { retry: Retry::Never },
        };
        LimitDecision {
            verdict,
            limit: self.limit,
            remaining: self.limit,
            reset_after_us: 0,
            first_back_us: 0,
        }
    }
}

impl BesideHolds for Concurrency {
    const ONLY_HOLDS: bool = true;

    fn store_standing(&self, clock: &mut KeyClock, now_us: u64) {
        *clock = self.standing(clock, now_us.min(MAX_TIME_US));
    }

    fn after_change(&self, clock: &mut KeyClock, holds: &Holds) {
        if holds.is_empty() {
            *clock = KeyClock::default();
        }
    }
}
