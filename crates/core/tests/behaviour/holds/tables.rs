//! Holds by example.

use tollgate_core::{
    Cost, EndedHold, Extension, GrantedExtension, HoldError, HoldGrowth, HoldId, HoldReference,
    HoldTime, HoldUse, Holds, Limit, MAX_HOLDS, Reservation, Settlement, State, UnitRequest,
};

const SECOND_US: u64 = 1_000_000;
const NOW_US: u64 = 1_000_000 * SECOND_US;

struct Key {
    limit: Limit,
    state: State,
    holds: Holds,
    next: u64,
}

impl Key {
    fn new(limit: &str) -> Key {
        let limit: Limit = limit.parse().unwrap();
        Key { limit, state: limit.fresh(), holds: Holds::default(), next: 0 }
    }

    fn reserve(&mut self, now_us: u64, units: u64, for_us: u64) -> Option<HoldReference> {
        self.next += 1;
        let reservation = Reservation {
            id: HoldId(self.next),
            cost: Cost::new(units).unwrap(),
            hold_for: HoldTime::from_us(for_us).unwrap(),
        };
        let (state, holds) = (&mut self.state, &mut self.holds);
        self.limit.reserve(state, holds, now_us, reservation).unwrap().hold
    }

    fn settle(&mut self, now_us: u64, hold: HoldReference, units: u64) -> Settlement {
        let used = HoldUse { units, is_last: true };
        let (state, holds) = (&mut self.state, &mut self.holds);
        self.limit.settle_hold(state, holds, now_us, hold, used).settlement
    }

    fn remaining(&self, now_us: u64) -> u64 {
        self.limit.peek_beside(&self.state, &self.holds, now_us, Cost::ONE.into()).remaining
    }

    fn retry_after_us(&self, now_us: u64, units: u64) -> Option<u64> {
        let request = UnitRequest::new(Cost::new(units).unwrap());
        self.limit.peek_beside(&self.state, &self.holds, now_us, request).retry_after_us()
    }
}

#[test]
fn held_units_neither_drain_nor_leave_a_window() {
    for limit in [
        "fixed-window limit=10 window=1s",
        "sliding-window-log limit=10 window=1s",
        "sliding-window-counter limit=10 window=1s",
        "token-bucket capacity=10 refill=10/s",
    ] {
        let mut key = Key::new(limit);
        key.reserve(NOW_US, 4, 60 * SECOND_US).unwrap();
        assert_eq!(key.remaining(NOW_US + 59 * SECOND_US), 6, "{limit}");
        // At its expiry the hold is a charge, which then leaves as any other.
        assert_eq!(key.remaining(NOW_US + 60 * SECOND_US), 6, "{limit}");
        assert_eq!(key.remaining(NOW_US + 62 * SECOND_US), 10, "{limit}");
    }
}

#[test]
fn settlement_charges_what_was_used_and_frees_the_rest() {
    let mut key = Key::new("token-bucket capacity=100 refill=1/s");
    let hold = key.reserve(NOW_US, 60, 30 * SECOND_US).unwrap();
    let settlement = key.settle(NOW_US + SECOND_US, hold, 25);
    assert!(matches!(settlement, Settlement::Done { charged_units: 25, excess_units: 0, .. }));
    assert_eq!(key.remaining(NOW_US + SECOND_US), 75);
    assert_eq!(key.remaining(NOW_US + 26 * SECOND_US), 100);
}

#[test]
fn settlement_of_nothing_releases_the_hold() {
    let mut key = Key::new("fixed-window limit=5 window=1h");
    let hold = key.reserve(NOW_US, 5, SECOND_US).unwrap();
    assert!(matches!(key.settle(NOW_US, hold, 0), Settlement::Done { receipt: None, .. }));
    assert_eq!(key.remaining(NOW_US), 5);
}

#[test]
fn units_used_beyond_the_hold_are_a_debt_that_drains() {
    let mut key = Key::new("token-bucket capacity=10 refill=1/s");
    let hold = key.reserve(NOW_US, 8, 30 * SECOND_US).unwrap();
    let settlement = key.settle(NOW_US, hold, 15);
    assert!(matches!(settlement, Settlement::Done { charged_units: 15, excess_units: 7, .. }));
    assert_eq!(key.remaining(NOW_US), 0);
    // 15 are spent; one fits when 9 are.
    assert_eq!(key.retry_after_us(NOW_US, 1), Some(6 * SECOND_US));
}

#[test]
fn debt_is_cut_at_one_whole_limit() {
    let mut key = Key::new("token-bucket capacity=10 refill=1/s");
    let hold = key.reserve(NOW_US, 8, 30 * SECOND_US).unwrap();
    let settlement = key.settle(NOW_US, hold, 1_000_000);
    let Settlement::Done { charged_units, excess_units, cut_units, .. } = settlement else {
        panic!("{settlement:?}")
    };
    assert_eq!((charged_units, excess_units, cut_units), (18, 10, 1_000_000 - 18));
    assert_eq!(key.retry_after_us(NOW_US, 10), Some(18 * SECOND_US));
}

#[test]
fn fixed_window_forgives_a_debt_at_its_end() {
    let mut key = Key::new("fixed-window limit=10 window=1m");
    let hold = key.reserve(0, 5, SECOND_US).unwrap();
    key.settle(0, hold, 15);
    assert_eq!(key.remaining(59 * SECOND_US), 0);
    assert_eq!(key.remaining(60 * SECOND_US), 10);
}

#[test]
fn settling_twice_or_late_is_answered_and_has_no_effect() {
    let mut key = Key::new("sliding-window-log limit=10 window=1m");
    let (first, second) = (key.reserve(NOW_US, 4, SECOND_US), key.reserve(NOW_US, 4, SECOND_US));
    let (first, second) = (first.unwrap(), second.unwrap());
    key.settle(NOW_US, first, 1);
    assert_eq!(key.settle(NOW_US, first, 1), Settlement::Ended(EndedHold::Unknown));
    let late_us = NOW_US + SECOND_US;
    assert_eq!(key.settle(late_us - 1, first, 1), Settlement::Ended(EndedHold::Unknown));
    assert_eq!(key.settle(late_us, first, 1), Settlement::Ended(EndedHold::Expired));
    assert_eq!(key.settle(late_us, second, 1), Settlement::Ended(EndedHold::Expired));
    assert_eq!(key.remaining(late_us), 10 - 1 - 4);
}

#[test]
fn settlement_in_part_repeated_or_out_of_order_charges_nothing_twice() {
    let mut key = Key::new("token-bucket capacity=100 refill=1/h");
    let hold = key.reserve(NOW_US, 50, 60 * SECOND_US).unwrap();
    let mut charged = Vec::new();
    for (units, is_last) in [(10, false), (30, false), (30, false), (20, false), (40, true)] {
        let used = HoldUse { units, is_last };
        let (state, holds) = (&mut key.state, &mut key.holds);
        let answer = key.limit.settle_hold(state, holds, NOW_US, hold, used);
        let Settlement::Done { charged_units, .. } = answer.settlement else { panic!() };
        charged.push((charged_units, answer.decision.remaining));
    }
    assert_eq!(charged, [(10, 50), (20, 50), (0, 50), (0, 50), (10, 60)]);
}

#[test]
fn extension_in_debt_moves_the_expiry_and_adds_nothing() {
    let mut key = Key::new("token-bucket capacity=10 refill=1/s");
    let (kept, other) = (key.reserve(NOW_US, 5, SECOND_US), key.reserve(NOW_US, 5, SECOND_US));
    key.settle(NOW_US, other.unwrap(), 15);
    let mut extend = |more| {
        let growth = HoldGrowth { more, hold_for: HoldTime::from_us(9 * SECOND_US).unwrap() };
        let (state, holds) = (&mut key.state, &mut key.holds);
        key.limit.extend_hold(state, holds, NOW_US, kept.unwrap(), growth).extension
    };
    assert_eq!(extend(Some(Cost::ONE)), Extension::Refused);
    let expires_us = NOW_US + 9 * SECOND_US;
    assert_eq!(extend(None), Extension::Granted { expires_us, held_units: 5 });
}

#[test]
fn extension_that_is_taken_back_keeps_a_later_expiry() {
    let mut key = Key::new("token-bucket capacity=10 refill=1/h");
    let hold = key.reserve(NOW_US, 4, 60 * SECOND_US).unwrap();
    let grow = |key: &mut Key, units: u64, seconds: u64| {
        let hold_for = HoldTime::from_us(seconds * SECOND_US).unwrap();
        let growth = HoldGrowth { more: Cost::new(units).ok(), hold_for };
        let (state, holds) = (&mut key.state, &mut key.holds);
        key.limit.extend_hold(state, holds, NOW_US, hold, growth).extension
    };
    let take_back = |key: &mut Key, now_us: u64, units: u64, seconds: u64| {
        let more = Cost::new(units).ok();
        let expires_us = NOW_US + seconds * SECOND_US;
        let extended = GrantedExtension { hold, more, expires_us };
        let (state, holds) = (&mut key.state, &mut key.holds);
        key.limit.take_back_extension(state, holds, now_us, extended).extension
    };
    let granted = |held_units: u64, seconds: u64| Extension::Granted {
        expires_us: NOW_US + seconds * SECOND_US,
        held_units,
    };
    assert_eq!(grow(&mut key, 3, 120), granted(7, 120));
    assert_eq!(take_back(&mut key, NOW_US, 3, 120), granted(4, 60));
    assert_eq!(key.remaining(NOW_US), 6);
    assert_eq!(grow(&mut key, 3, 120), granted(7, 120));
    assert_eq!(grow(&mut key, 0, 300), granted(7, 300));
    assert_eq!(take_back(&mut key, NOW_US, 3, 120), granted(4, 300));
    assert_eq!(key.remaining(NOW_US), 6);
    // The expiry from before has passed meanwhile.
    assert_eq!(grow(&mut key, 3, 120), granted(7, 120));
    assert_eq!(take_back(&mut key, NOW_US + 60 * SECOND_US, 3, 120), granted(4, 120));
    let ended = take_back(&mut key, NOW_US + 120 * SECOND_US, 3, 120);
    assert_eq!(ended, Extension::Ended(EndedHold::Expired));
}

#[test]
fn wait_passes_over_several_expiries_to_the_exact_microsecond() {
    let mut key = Key::new("token-bucket capacity=10 refill=1/s");
    key.reserve(NOW_US, 5, 4 * SECOND_US).unwrap();
    key.reserve(NOW_US, 5, 10 * SECOND_US).unwrap();
    // The first 5 are a charge at 4 s and have drained to 2 at 7 s; the other 5 are still held.
    assert_eq!(key.retry_after_us(NOW_US, 3), Some(7 * SECOND_US));
    assert_eq!(key.retry_after_us(NOW_US + 7 * SECOND_US - 1, 3), Some(1));
    assert_eq!(key.retry_after_us(NOW_US + 7 * SECOND_US, 3), None);
    // All ten: the second hold is charged at 10 s.
    assert_eq!(key.retry_after_us(NOW_US, 10), Some(15 * SECOND_US));
}

#[test]
fn new_clock_takes_expiries_with_it() {
    let mut key = Key::new("token-bucket capacity=10 refill=1/s");
    key.reserve(NOW_US, 5, 4 * SECOND_US).unwrap();
    let back_us = NOW_US - 3_600 * SECOND_US;
    assert_eq!(key.remaining(back_us), 5);
    assert!(key.reserve(back_us, 1, SECOND_US).is_some());
    // The hold of 5 is charged 4 s later, and drains from then on.
    assert_eq!(key.remaining(back_us + 4 * SECOND_US), 5 - 1 + 1);
    assert_eq!(key.remaining(back_us + 9 * SECOND_US), 10);
}

#[test]
fn small_step_back_leaves_holds_as_they_are() {
    let mut key = Key::new("token-bucket capacity=10 refill=1/s");
    let hold = key.reserve(NOW_US, 5, 4 * SECOND_US).unwrap();
    let earlier_us = NOW_US - 9 * SECOND_US;
    assert_eq!(key.remaining(earlier_us), 5);
    assert_eq!(key.retry_after_us(earlier_us, 6), Some((9 + 4 + 1) * SECOND_US));
    assert!(matches!(key.settle(earlier_us, hold, 0), Settlement::Done { .. }));
}

#[test]
fn refund_beside_a_hold_gives_back_the_charge_alone() {
    let mut key = Key::new("sliding-window-log limit=10 window=1m");
    let request = UnitRequest::new(Cost::new(3).unwrap());
    let receipt = key.limit.check(&mut key.state, NOW_US, request).receipt.unwrap();
    key.reserve(NOW_US, 4, SECOND_US).unwrap();
    let (state, holds) = (&mut key.state, &mut key.holds);
    assert_eq!(key.limit.refund_beside(state, holds, NOW_US, receipt), 3);
    assert_eq!(key.remaining(NOW_US), 6);
}

#[test]
fn settlement_has_a_receipt_for_what_it_charged() {
    let mut key = Key::new("token-bucket capacity=10 refill=1/s");
    let hold = key.reserve(NOW_US, 8, SECOND_US).unwrap();
    let Settlement::Done { receipt: Some(receipt), .. } = key.settle(NOW_US, hold, 6) else {
        panic!("no receipt")
    };
    let (state, holds) = (&mut key.state, &mut key.holds);
    assert_eq!(key.limit.refund_beside(state, holds, NOW_US, receipt), 6);
    assert_eq!(key.remaining(NOW_US), 10);
}

#[test]
fn key_has_a_bounded_number_of_holds() {
    let mut key = Key::new("token-bucket capacity=1000000 refill=1/s");
    for count in 0..MAX_HOLDS as u64 {
        assert!(key.reserve(NOW_US, 1, (60 + count) * SECOND_US).is_some());
    }
    let (cost, for_us) = (Cost::ONE, SECOND_US);
    let more = Reservation { id: HoldId(0), cost, hold_for: HoldTime::from_us(for_us).unwrap() };
    let (state, holds) = (&mut key.state, &mut key.holds);
    let answer = key.limit.reserve(state, holds, NOW_US, more).unwrap();
    assert_eq!(answer.hold, None);
    assert_eq!(answer.decision.retry_after_us(), Some(60 * SECOND_US));
    assert_eq!(answer.decision.remaining, 1_000_000 - MAX_HOLDS as u64);
}

#[test]
fn shaping_bucket_cannot_be_reserved() {
    let limit: Limit = "leaky-bucket capacity=5 leak=1/s mode=shaping".parse().unwrap();
    let (mut state, mut holds) = (limit.fresh(), Holds::default());
    let reservation = Reservation {
        id: HoldId(1),
        cost: Cost::ONE,
        hold_for: HoldTime::from_us(SECOND_US).unwrap(),
    };
    let answer = limit.reserve(&mut state, &mut holds, NOW_US, reservation);
    assert_eq!(answer, Err(HoldError::Shaping));
}
