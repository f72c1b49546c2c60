//! The bucket behind the token bucket and both leaky buckets: a level that drains at a rate.
//!
//! A token bucket is usually described by the tokens left, a leaky bucket by the units spent. The level
//! here is always what is spent; the tokens left are the capacity minus the level.

mod level;

use core::num::NonZeroU64;

use super::{Algorithm, BesideHolds, Decide, FastPath, MAX_STEP_BACK_US, MAX_TIME_US};
use crate::decision::{
    ChargePlace, ChargeReceipt, CheckResult, Cost, LimitDecision, Retry, UnitRequest, Verdict,
};
use crate::muldiv::muldiv;
use crate::parameter::{LimitError, Rate, limit_units};
use crate::range::{MAX_FILL_US, MAX_UNITS, MAX_WINDOW_US};
pub use level::Level;

/// A capacity and the rate at which it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    capacity: u64,
    rate: Rate,
    time_to_full_us: u64,
    /// One more unit fits while the level is below this number of parts. A unit has as many parts as the rate's period
    /// has microseconds. 0 if no unit ever fits, or if the capacity is above 2^63 parts.
    one_fits_below: u64,
}

impl Bucket {
    pub(super) fn new(
        capacity: u64,
        rate: Rate,
        rate_parameter: &'static str,
    ) -> Result<Bucket, LimitError> {
        let capacity = limit_units("capacity", capacity)?;
        let time_to_full_us = Level::of(capacity).drain_time_us(rate);
        if time_to_full_us > MAX_FILL_US {
            return Err(LimitError::FillsTooSlowly { capacity, rate, rate_parameter });
        }
        let one_fits_below = one_fits_below(capacity, rate);
        Ok(Bucket { capacity, rate, time_to_full_us, one_fits_below })
    }

    /// A bucket with the capacity nearest to `capacity` that is at least 1 and refills within 100 years.
    pub(super) fn nearest(capacity: u64, rate: Rate) -> Bucket {
        // At least 1, because no rate has a period above 100 years.
        let (within_100_years, _) = muldiv(MAX_FILL_US, rate.units.get(), rate.per_us);
        let most = within_100_years.min(MAX_UNITS);
        Bucket::of(capacity.min(most).max(1), rate)
    }

    fn with_capacity(&self, capacity: u64) -> Bucket {
        Bucket::of(capacity, self.rate)
    }

    /// A bucket of any capacity, also one that [`new`](Self::new) refuses.
    fn of(capacity: u64, rate: Rate) -> Bucket {
        let time_to_full_us = Level::of(capacity).drain_time_us(rate);
        let one_fits_below = one_fits_below(capacity, rate);
        Bucket { capacity, rate, time_to_full_us, one_fits_below }
    }

    /// The most units that the bucket holds.
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The units that come back per time.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// How long a bucket that is all spent takes to come back, rounded up.
    pub const fn time_to_full_us(&self) -> u64 {
        self.time_to_full_us
    }

    /// Returns how long `units` take to come back, rounded down.
    pub(crate) fn time_for_us(&self, units: u64) -> u64 {
        muldiv(units, self.period_us().get(), self.rate.units).0
    }

    /// Returns how long a caller that accepts a delay of at most `max_wait_us` must wait until a request fits. At that
    /// moment `remaining` may rise from 0 to all the free capacity. 0 if the delay is short enough now.
    // Not inlined, because few requests have a longest wait: inlined, it cost all other requests 10 instructions.
    #[cold]
    #[inline(never)]
    fn wait_until_delay_fits_us(&self, level: Level, max_wait_us: u64, behind_us: u64) -> u64 {
        let excess_delay_us = level.drain_time_us(self.rate).saturating_sub(max_wait_us);
        if excess_delay_us == 0 {
            return 0;
        }
        // OK because a capacity is at least 1.
        let excess = level.saturating_minus(Level::of(self.capacity - 1), self.period_us());
        behind_us.saturating_add(excess_delay_us.max(excess.drain_time_us(self.rate)))
    }

    fn period_us(&self) -> NonZeroU64 {
        self.rate.per_us
    }

    /// The fill at `now_us`; unchanged if `now_us` is before the last charge.
    #[inline]
    fn fill_at(&self, fill: Fill, now_us: u64) -> Fill {
        let as_of_us = now_us.max(fill.as_of_us);
        Fill { level: self.drained(fill.level, as_of_us - fill.as_of_us), as_of_us, ..fill }
    }

    /// Converts a fill that a key reached in the `old` bucket to this one.
    ///
    /// The level drains at the old rate until now, when it must fit.
    pub(crate) fn carry_over(&self, old: &Bucket, fill: Fill, now_us: u64) -> Fill {
        let fill = old.fill_at(fill, now_us);
        let level = fill.level.at_period(old.period_us(), self.period_us());
        Fill { level: level.min(Level::of(self.capacity)), ..fill }
    }

    /// Returns what is left of `level` after `elapsed_us`. The level must be at most the capacity.
    #[inline]
    fn drained(&self, level: Level, elapsed_us: u64) -> Level {
        // The two common cases: a busy key, for which no time has passed, and a key that is rarely checked, whose
        // level has drained.
        if elapsed_us == 0 {
            return level;
        }
        if elapsed_us >= level.drain_time_us(self.rate) {
            return Level::default();
        }
        let (units, fraction) = muldiv(elapsed_us, self.rate.units.get(), self.period_us());
        level.saturating_minus(Level { units, fraction }, self.period_us())
    }
}

fn one_fits_below(capacity: u64, rate: Rate) -> u64 {
    let parts = capacity.checked_mul(rate.per_us.get()).filter(|parts| *parts <= 1 << 63);
    let most = parts.and_then(|parts| parts.checked_sub(rate.per_us.get()));
    most.map_or(0, |most| most + 1)
}

/// A bucket's state: its level when it was last charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fill {
    /// The level at that time.
    pub level: Level,
    /// When it was last charged.
    pub as_of_us: u64,
    /// The units charged so far, modulo 2^53. From this count a refund computes what was charged after its own
    /// charge, if that is less than 2^53 units.
    pub charged: u64,
}

impl Fill {
    #[inline]
    fn plus(self, cost: Cost) -> Fill {
        // OK because a request that fits leaves the level at or below the capacity, here and below.
        let level = Level { units: self.level.units.wrapping_add(cost.units()), ..self.level };
        Fill { level, charged: self.charged.wrapping_add(cost.units()) & MAX_UNITS, ..self }
    }

    /// The units charged since the count was `charged`.
    fn charged_since(self, charged: u64) -> u64 {
        self.charged.wrapping_sub(charged) & MAX_UNITS
    }
}

/// A [`Fill`] at an instant of its key's time, with the caller's time for waits.
#[derive(Clone, Copy, Debug)]
pub struct FillStanding {
    fill: Fill,
    /// The level's units, rounded up.
    whole: u64,
    now_us: u64,
}

/// The differences between the three buckets. They share everything else, below.
pub trait BucketKind: core::fmt::Debug {
    /// The capacity and the rate.
    fn bucket(&self) -> &Bucket;

    /// Whether admitted requests are delayed, so that each leaves after the requests before it.
    fn is_shaping(&self) -> bool;

    /// The same kind with another bucket.
    fn with_bucket(&self, bucket: Bucket) -> Self;

    /// How long a request admitted at this level waits: until everything before it has left.
    #[inline]
    fn delay_us(&self, level: Level) -> u64 {
        if self.is_shaping() { level.drain_time_us(self.bucket().rate) } else { 0 }
    }
}

impl<K: BucketKind> Decide for K {
    type State = Fill;
    type Standing = FillStanding;

    #[inline]
    fn floor_us(&self, fill: &Fill) -> u64 {
        fill.as_of_us
    }

    #[inline]
    fn restart(&self, fill: &mut Fill, now_us: u64) {
        fill.as_of_us = now_us;
    }

    #[inline]
    fn standing(&self, fill: &Fill, now_us: u64) -> FillStanding {
        let fill = self.bucket().fill_at(*fill, now_us);
        FillStanding { fill, whole: fill.level.ceil(), now_us }
    }

    #[inline]
    fn verdict(&self, _: &Fill, standing: &FillStanding, request: UnitRequest) -> Verdict {
        let bucket = self.bucket();
        let level = standing.fill.level;
        let delay_us = self.delay_us(level);
        let excess_delay_us =
            request.max_wait_us.map_or(0, |max_wait_us| delay_us.saturating_sub(max_wait_us));
        let fitting = bucket.capacity.saturating_sub(request.cost.units());
        if standing.whole <= fitting && excess_delay_us == 0 {
            return Verdict::Allowed { delay_us };
        }
        let excess = level.saturating_minus(Level::of(fitting), bucket.period_us());
        let drain_us = excess.drain_time_us(bucket.rate).max(excess_delay_us);
        Verdict::Denied { retry: Retry::AfterUs(standing.caller_waits_us(drain_us)) }
    }

    #[inline]
    fn charge(&self, fill: &mut Fill, standing: FillStanding, cost: Cost) -> FillStanding {
        *fill = standing.fill.plus(cost);
        FillStanding { fill: *fill, whole: standing.whole.wrapping_add(cost.units()), ..standing }
    }

    #[inline]
    fn place(&self, standing: &FillStanding, over_us: u64) -> ChargePlace {
        ChargePlace::Bucket { charged: standing.fill.charged, over_us }
    }

    #[inline]
    fn spent(&self, standing: &FillStanding) -> u64 {
        standing.whole
    }

    #[inline]
    fn remaining(&self, standing: &FillStanding, request: UnitRequest) -> u64 {
        let level = standing.fill.level;
        if request.max_wait_us.is_some_and(|max_wait_us| self.delay_us(level) > max_wait_us) {
            return 0;
        }
        self.bucket().capacity.saturating_sub(standing.whole)
    }

    fn fitting(&self, standing: &FillStanding, request: UnitRequest) -> u64 {
        let cost = request.cost.units();
        let by_capacity = self.remaining(standing, request) / cost;
        match request.max_wait_us {
            Some(max_wait_us) if self.is_shaping() && by_capacity > 0 => {
                // Each request but the last must leave a level that drains within `max_wait_us`.
                let bucket = self.bucket();
                let (units, fraction) =
                    muldiv(max_wait_us, bucket.rate.units.get(), bucket.period_us());
                let max_level = Level { units, fraction };
                let free = max_level.saturating_minus(standing.fill.level, bucket.period_us());
                by_capacity.min((free.units / cost).saturating_add(1))
            }
            _ => by_capacity,
        }
    }

    #[inline]
    fn reset_after_us(&self, standing: &FillStanding) -> u64 {
        let level = standing.fill.level;
        if level == Level::default() {
            return 0;
        }
        standing.caller_waits_us(level.drain_time_us(self.bucket().rate))
    }

    #[inline]
    fn first_back_us(&self, _: &Fill, standing: &FillStanding, request: UnitRequest) -> u64 {
        match request.max_wait_us {
            Some(max_wait_us) if self.is_shaping() => {
                let behind_us = standing.caller_waits_us(0);
                let level = standing.fill.level;
                self.bucket().wait_until_delay_fits_us(level, max_wait_us, behind_us)
            }
            _ => 0,
        }
    }

    /// Units drain in the order they were charged. So the part of the level that exceeds all later
    /// charges belongs to this charge, and is given back. A shaping bucket gives a charge back only if
    /// all of it is still in the bucket and no later charge is.
    fn give_back(&self, fill: &mut Fill, now_us: u64, receipt: ChargeReceipt) {
        let ChargePlace::Bucket { charged, over_us } = receipt.place else { return };
        // From `over_us` on, the charge has drained. The count of charged units does not show that by itself: it starts
        // again at 0 when a key's state was evicted and made anew.
        if now_us >= over_us {
            return;
        }
        let bucket = self.bucket();
        let cost = Level::of(receipt.cost.units());
        let since = fill.charged_since(charged);
        let level = bucket.fill_at(*fill, now_us).level;
        let left = level.saturating_minus(Level::of(since), bucket.period_us()).min(cost);
        let is_whole_and_last = left == cost && since == 0;
        if self.is_shaping() && !is_whole_and_last {
            return;
        }
        if is_whole_and_last {
            // The count becomes what it was before this charge, so the previous charge is the last one again.
            fill.charged = fill.charged.wrapping_sub(receipt.cost.units()) & MAX_UNITS;
        }
        fill.level = fill.level.saturating_minus(left, bucket.period_us());
    }
}

impl<K: BucketKind> FastPath for K {
    type FastState = Fill;

    /// Computes in 64 bits, on a clock that has not stepped back. The level is one number then, in parts of a unit;
    /// `rate.units` of these parts drain in a microsecond.
    #[inline(always)]
    fn check_one(&self, fill: &mut Fill, now_us: u64) -> Option<CheckResult> {
        let Bucket { capacity, rate, one_fits_below, .. } = *self.bucket();
        let Fill { level: Level { units, fraction }, as_of_us, charged } = *fill;
        if now_us > MAX_TIME_US {
            return None;
        }
        let elapsed_us = now_us.checked_sub(as_of_us)?;
        let before = units.checked_mul(rate.per_us.get())?.checked_add(fraction)?;
        let before = before.saturating_sub(elapsed_us.saturating_mul(rate.units.get()));
        if before >= one_fits_below {
            return None;
        }
        // OK because the sum is at most the capacity, here and below.
        let after = before + rate.per_us.get();
        let level = Level { units: after / rate.per_us, fraction: after % rate.per_us };
        let charged = charged.wrapping_add(1) & MAX_UNITS;
        *fill = Fill { level, as_of_us: now_us, charged };
        let drain_time_us = |parts: u64| match rate.units.get() {
            1 => parts,
            units => parts.div_ceil(units),
        };
        let delay_us = if self.is_shaping() { drain_time_us(before) } else { 0 };
        let reset_after_us = drain_time_us(after);
        let decision = LimitDecision {
            verdict: Verdict::Allowed { delay_us },
            limit: capacity,
            remaining: capacity - level.units - u64::from(level.fraction > 0),
            reset_after_us,
            first_back_us: 0,
        };
        let place = ChargePlace::Bucket { charged, over_us: now_us + reset_after_us };
        Some(CheckResult { decision, receipt: Some(ChargeReceipt { cost: Cost::ONE, place }) })
    }
}

impl<K: BucketKind> Algorithm for K {
    #[inline]
    fn size(&self) -> u64 {
        self.bucket().capacity
    }

    #[inline]
    fn interval_us(&self) -> u64 {
        self.bucket().time_to_full_us
    }

    /// The whole capacity at once, and the units that come back during the interval.
    fn bound_units(&self, interval_us: u64) -> u64 {
        let bucket = self.bucket();
        let Some(rest_us) = interval_us.checked_sub(1) else { return 0 };
        let (back, _) = muldiv(rest_us, bucket.rate.units.get(), bucket.period_us());
        bucket.capacity.saturating_add(back)
    }

    fn bound_formula(&self) -> &'static str {
        "capacity + floor(rate * (t - 1))"
    }

    fn with_size(&self, size: u64) -> K {
        self.with_bucket(self.bucket().with_capacity(size))
    }

    fn after_spending(&self, units: u64, now_us: u64) -> Fill {
        // The count starts at the time, so that no earlier receipt matches a later charge.
        Fill { level: Level::of(units), as_of_us: now_us, charged: now_us & MAX_UNITS }
    }

    fn carry_over(&self, old: &K, fill: Fill, now_us: u64) -> Fill {
        self.bucket().carry_over(old.bucket(), fill, now_us)
    }
}

impl FillStanding {
    /// Converts a wait from the key's own time to one from the caller's time.
    #[inline]
    fn caller_waits_us(&self, wait_us: u64) -> u64 {
        (self.fill.as_of_us - self.now_us).saturating_add(wait_us)
    }
}

impl<K: BucketKind> BesideHolds for K {
    /// Returns the units of as many full buckets as drain in the longest exact wait. The longest exact wait is 2^53 us,
    /// less 366 days, because the wait may begin when the last hold expires, and less a step back of the clock. The
    /// result is at least two buckets, because each drains within 100 years, and 2^53 us are 285 years; it is cut to
    /// 2^53 - 1 units.
    fn most_taken(&self) -> u64 {
        const LONGEST_US: u64 = MAX_TIME_US - MAX_WINDOW_US - MAX_STEP_BACK_US;
        let Bucket { capacity, time_to_full_us, .. } = *self.bucket();
        capacity.saturating_mul(LONGEST_US / time_to_full_us.max(1)).min(MAX_UNITS)
    }

    fn store_standing(&self, fill: &mut Fill, now_us: u64) {
        *fill = self.standing(fill, now_us).fill;
    }
}
