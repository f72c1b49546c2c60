//! Open holds, counted by their expiry.
//!
//! Any server of a store may settle a hold that another one reserved. So each server counts what it does itself: the holds
//! that it reserved and the holds that it ended, in slots of time by the expiry of the hold. Added up over all servers, a
//! slot has the holds that are open. When the time of a slot has passed, what is left in it has expired without a
//! settlement.
//!
//! The slots are wider for holds that last longer, so that few slots suffice: 1 s for holds of up to 32 s, 4 s for holds of
//! up to 128 s, and so on. A hold is counted as expired when its slot has passed: at most 1 s, or an eighth of its time,
//! after its expiry. All operations on a hold must count in the same slot, so its token has the width of the slot.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

/// The number of widths. The slots of the last one are 12 days wide.
const WIDTHS: u8 = 11;

/// A hold may last for this many slots of its width.
const SLOTS_OF_A_HOLD: u64 = 32;

/// The number of slots of a width: enough for the longest hold, and 8 more because the clocks of the store and of this server
/// may differ.
const SLOTS: usize = SLOTS_OF_A_HOLD as usize + 8;

/// The width of the slots in which a hold is counted: 4 s for 1, 16 s for 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotWidth(u8);

/// The expiry of a hold, with the width of the slots in which it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CountedExpiry {
    /// By the store's clock, in microseconds since the Unix epoch.
    pub(crate) expires_us: u64,
    pub(crate) width: SlotWidth,
}

/// A number of holds, and of their units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HoldCount {
    pub(crate) holds: u64,
    pub(crate) units: u64,
}

/// Holds that this server reserved, and holds that it ended. Only the difference of the sums over all servers means
/// something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HoldFlow {
    /// Reserved, or extended to this expiry; and units that an extension added.
    pub(crate) reserved: HoldCount,
    /// Settled, or extended to another expiry; and units that a settlement in part has used.
    pub(crate) ended: HoldCount,
}

/// The flow of the holds of a limit or a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowByExpiry {
    /// The flow of holds whose expiry has not passed. Its difference is the open holds.
    pub(crate) open: HoldFlow,
    /// The flow of holds whose expiry has passed. Its difference is the holds that expired without a settlement.
    pub(crate) past: HoldFlow,
}

/// Counts holds by their expiry.
#[derive(Debug, Default)]
pub(crate) struct HoldExpiries {
    is_used: AtomicBool,
    counts: Mutex<SlotCounts>,
}

#[derive(Debug, Default)]
struct SlotCounts {
    /// By width. Allocated when a hold of the width is counted for the first time.
    by_width: [Option<Box<[ExpirySlot]>>; WIDTHS as usize],
    past: HoldFlow,
}

/// The holds whose expiry is in an interval.
#[derive(Clone, Copy, Debug, Default)]
struct ExpirySlot {
    /// The number of the interval since the Unix epoch.
    number: u64,
    flow: HoldFlow,
}

impl SlotWidth {
    /// Returns the width for holds that last this long.
    fn for_holds_of(time: Duration) -> SlotWidth {
        let is_long_enough =
            |width: &SlotWidth| u128::from(SLOTS_OF_A_HOLD * width.as_us()) >= time.as_micros();
        // OK because holds last 366 days at most.
        (0..WIDTHS).map(SlotWidth).find(is_long_enough).unwrap_or(SlotWidth(WIDTHS - 1))
    }

    /// Returns the number from which [`read`](Self::read) makes the width again.
    pub(crate) fn to_byte(self) -> u8 {
        self.0
    }

    /// Returns the width with this number; `None` if the number is too large.
    pub(crate) fn read(byte: u8) -> Option<SlotWidth> {
        (byte < WIDTHS).then_some(SlotWidth(byte))
    }

    fn as_us(self) -> u64 {
        // OK because 4^10 s is below 2^41 us.
        1_000_000 << (2 * self.0)
    }
}

impl CountedExpiry {
    /// Returns the expiry of a hold that was reserved or extended for this time.
    pub(crate) fn new(expires_us: u64, hold_for: Duration) -> CountedExpiry {
        CountedExpiry { expires_us, width: SlotWidth::for_holds_of(hold_for) }
    }

    fn slot(self) -> u64 {
        self.expires_us / self.width.as_us()
    }
}

impl HoldCount {
    /// A hold of these units.
    pub(crate) fn one(units: u64) -> HoldCount {
        HoldCount { holds: 1, units }
    }

    /// Units of a hold that stays open.
    pub(crate) fn of_units(units: u64) -> HoldCount {
        HoldCount { holds: 0, units }
    }

    fn add(&mut self, other: HoldCount) {
        self.holds = self.holds.saturating_add(other.holds);
        self.units = self.units.saturating_add(other.units);
    }
}

impl HoldFlow {
    fn reserved(count: HoldCount) -> HoldFlow {
        HoldFlow { reserved: count, ended: HoldCount::default() }
    }

    fn ended(count: HoldCount) -> HoldFlow {
        HoldFlow { reserved: HoldCount::default(), ended: count }
    }

    fn add(&mut self, other: HoldFlow) {
        self.reserved.add(other.reserved);
        self.ended.add(other.ended);
    }

    /// Returns how many more holds this server has reserved than ended. Negative if other servers reserved them.
    pub(crate) fn holds(&self) -> i128 {
        i128::from(self.reserved.holds) - i128::from(self.ended.holds)
    }

    /// Returns how many more units this server has reserved than ended.
    pub(crate) fn units(&self) -> i128 {
        i128::from(self.reserved.units) - i128::from(self.ended.units)
    }
}

impl HoldExpiries {
    /// Counts what was reserved until `expiry`.
    pub(crate) fn reserved(&self, expiry: CountedExpiry, count: HoldCount) {
        self.add(expiry, HoldFlow::reserved(count), now_us());
    }

    /// Counts what has ended of what was reserved until `expiry`.
    pub(crate) fn ended(&self, expiry: CountedExpiry, count: HoldCount) {
        self.add(expiry, HoldFlow::ended(count), now_us());
    }

    /// Returns the counts at this moment.
    pub(crate) fn flow(&self) -> FlowByExpiry {
        self.flow_at(now_us())
    }

    fn add(&self, expiry: CountedExpiry, flow: HoldFlow, now_us: u64) {
        self.is_used.store(true, Ordering::Relaxed);
        self.counts.lock().add(expiry, flow, now_us);
    }

    fn flow_at(&self, now_us: u64) -> FlowByExpiry {
        if self.is_used.load(Ordering::Relaxed) {
            self.counts.lock().flow(now_us)
        } else {
            FlowByExpiry::default()
        }
    }
}

impl SlotCounts {
    fn add(&mut self, expiry: CountedExpiry, flow: HoldFlow, now_us: u64) {
        let CountedExpiry { width, .. } = expiry;
        let (number, now) = (expiry.slot(), now_us / width.as_us());
        if number < now {
            return self.past.add(flow);
        }
        let slots = self.by_width[usize::from(width.0)]
            .get_or_insert_with(|| vec![ExpirySlot::default(); SLOTS].into());
        move_past(slots, now, &mut self.past);
        // OK because the remainder is below the number of slots.
        let slot = &mut slots[(number % SLOTS as u64) as usize];
        let is_empty = slot.flow == HoldFlow::default();
        // Another number only if the clocks of the servers differ by several slots. The counts are then added up all the
        // same, until the earlier of the two has passed.
        slot.number = if is_empty { number } else { slot.number.min(number) };
        slot.flow.add(flow);
    }

    fn flow(&mut self, now_us: u64) -> FlowByExpiry {
        let mut open = HoldFlow::default();
        for (width, slots) in (0..WIDTHS).map(SlotWidth).zip(&mut self.by_width) {
            let Some(slots) = slots else { continue };
            move_past(slots, now_us / width.as_us(), &mut self.past);
            slots.iter().for_each(|slot| open.add(slot.flow));
        }
        FlowByExpiry { open, past: self.past }
    }
}

/// Takes the counts out of the slots whose time has passed in slot `now`.
fn move_past(slots: &mut [ExpirySlot], now: u64, past: &mut HoldFlow) {
    for slot in slots.iter_mut().filter(|slot| slot.number < now) {
        past.add(std::mem::take(&mut slot.flow));
    }
}

/// Returns the time of this server, in microseconds since the Unix epoch.
fn now_us() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
