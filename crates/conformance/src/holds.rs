//! Holds: units that are set aside, settled, extended, and charged at their expiry.
//!
//! For stores that have holds: [`hold_suite!`](crate::hold_suite) runs these.

use std::time::Duration;

use proptest::prelude::*;
use tollgate_core::{
    ChargePlace, ChargeReceipt, Cost, EndedHold, ExtendAnswer, Extension, HoldError, HoldGrowth,
    HoldId, HoldReference, HoldTime, HoldUse, Holds, Limit, LimitCheck, LimitDecision, MAX_HOLDS,
    Reservation, Settlement, State, UnitRequest, Verdict, check_all,
};
use tollgate_limiter::{
    Error, Hold, HoldDecision, HoldSettlement, JointHold, Limiter, ManualClock, Receipt, Scope,
};

use crate::store::{Make, S, START_US, block_on, cases, named, open, scope};
use crate::{any, trace};

/// The algorithms that can have holds, each with room for 10.
pub(crate) const LIMITS: [&str; 5] = [
    "fixed-window limit=10 window=1m",
    "sliding-window-log limit=10 window=1m",
    "sliding-window-counter limit=10 window=1m",
    "token-bucket capacity=10 refill=1/s",
    "leaky-bucket capacity=10 leak=1/s mode=policing",
];

const SECOND: Duration = Duration::from_secs(1);

async fn reserve(scope: &Scope, units: u64, hold_for: Duration) -> HoldDecision {
    scope.reserve("a").cost(units).hold_for(hold_for).await.unwrap()
}

async fn hold(scope: &Scope, units: u64, hold_for: Duration) -> Hold {
    reserve(scope, units, hold_for).await.into_hold().unwrap()
}

async fn remaining(scope: &Scope) -> u64 {
    scope.peek("a").await.unwrap().remaining()
}

pub async fn held_units_count_as_spent_and_unused_ones_are_free_at_once(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        scope.check("a").cost(2).await.unwrap();
        let reserved = reserve(&scope, 6, SECOND).await;
        assert_eq!(reserved.decision().remaining(), 2, "{text}");
        assert!(!scope.check("a").cost(3).await.unwrap().is_allowed(), "{text}");
        let settled = reserved.into_hold().unwrap().settle(4).await.unwrap();
        assert_eq!((settled.charged_units(), settled.excess_units()), (4, 0), "{text}");
        assert_eq!(remaining(&scope).await, 4, "{text}");
        let receipt = settled.into_receipt().unwrap();
        assert_eq!(scope.refund("a", receipt).await, Ok(4), "{text}");
        assert_eq!(remaining(&scope).await, 8, "{text}");
    }
}

pub async fn released_hold_charges_nothing(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        let settled = hold(&scope, 6, SECOND).await.release().await.unwrap();
        assert_eq!((settled.charged_units(), settled.receipt()), (0, None), "{text}");
        assert_eq!(remaining(&scope).await, 10, "{text}");
    }
}

pub async fn use_beyond_a_hold_is_charged_up_to_one_whole_limit(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        let settled = hold(&scope, 6, SECOND).await.settle(26).await.unwrap();
        assert_eq!((settled.excess_units(), settled.cut_units()), (10, 10), "{text}");
        assert_eq!(remaining(&scope).await, 0, "{text}");
    }
}

pub async fn settlement_in_part_sent_twice_charges_once(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        let hold = hold(&scope, 6, SECOND).await;
        for (used, charged) in [(2, 2), (2, 0), (1, 0), (5, 3)] {
            let settled = hold.settle_part(used).await.unwrap();
            assert_eq!(settled.charged_units(), charged, "{text}: {used}");
            assert_eq!(remaining(&scope).await, 4, "{text}: the rest stays held");
        }
        assert_eq!(hold.settle(5).await.unwrap().charged_units(), 0, "{text}");
        assert_eq!(remaining(&scope).await, 5, "{text}");
    }
}

pub async fn hold_is_charged_in_full_at_its_expiry(make: Make) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let scope = scope(&limiter, text);
        let hold = hold(&scope, 6, SECOND).await;
        assert_eq!(hold.expires_at_us(), START_US + S, "{text}");
        clock.set_us(START_US + S - 1);
        assert_eq!(scope.state("a").await.unwrap().holds.len(), 1, "{text}");
        // It does not drain while it is held: 6 units come back 6 s after the expiry, or with the window.
        let reset_after = scope.peek("a").await.unwrap().reset_after();
        assert!(reset_after >= Duration::from_micros(6 * S + 1), "{text}: {reset_after:?}");
        clock.set_us(START_US + S);
        assert_eq!(remaining(&scope).await, 4, "{text}");
        let late = hold.settle(0).await.unwrap();
        assert_eq!(late.ended(), Some(EndedHold::Expired), "{text}");
        assert_eq!(remaining(&scope).await, 4, "{text}");
    }
}

pub async fn dropped_hold_stays_until_it_expires(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        drop(hold(&scope, 6, SECOND).await);
        assert_eq!(remaining(&scope).await, 4, "{text}");
    }
}

pub async fn reset_forgets_the_holds_of_its_key(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        let hold = hold(&scope, 6, SECOND).await;
        scope.reset("a").await.unwrap();
        assert_eq!(remaining(&scope).await, 10, "{text}");
        let extended = hold.extend(1, SECOND).await.unwrap();
        assert_eq!(extended.ended(), Some(EndedHold::Unknown), "{text}");
        assert_eq!(hold.settle(6).await.unwrap().ended(), Some(EndedHold::Unknown), "{text}");
        assert_eq!(remaining(&scope).await, 10, "{text}");
    }
}

pub async fn extension_adds_units_that_fit_and_moves_the_expiry(make: Make) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let scope = scope(&limiter, text);
        let hold = hold(&scope, 6, SECOND).await;
        clock.set_us(START_US + S / 2);
        assert!(hold.extend(3, SECOND).await.unwrap().is_granted(), "{text}");
        assert_eq!(hold.expires_at_us(), START_US + 3 * S / 2, "{text}");
        let refused = hold.extend(2, 9 * SECOND).await.unwrap();
        assert_eq!((refused.is_granted(), refused.ended()), (false, None), "{text}");
        assert!(refused.retry_after().is_some(), "{text}");
        assert!(hold.extend(0, 2 * SECOND).await.unwrap().is_granted(), "{text}");
        assert_eq!(hold.expires_at_us(), START_US + 5 * S / 2, "{text}");
        assert_eq!(remaining(&scope).await, 1, "{text}");
        assert_eq!(hold.settle(9).await.unwrap().charged_units(), 9, "{text}");
    }
}

pub async fn key_has_a_bounded_number_of_holds(make: Make) {
    let (_, limiter) = open(make);
    let scope = scope(&limiter, "fixed-window limit=9000 window=1m");
    let mut holds = Vec::new();
    for nth in 1..=MAX_HOLDS as u64 {
        holds.push(hold(&scope, 1, Duration::from_micros(1_000_000 + nth)).await);
    }
    let refused = reserve(&scope, 1, SECOND).await;
    assert_eq!(refused.retry_after(), Some(Duration::from_micros(1_000_001)));
    assert!(scope.check("a").await.unwrap().is_allowed());
    holds.pop().unwrap().release().await.unwrap();
    assert!(reserve(&scope, 1, SECOND).await.is_allowed());
}

pub async fn units_that_cannot_be_held_are_an_error(make: Make) {
    let (_, limiter) = open(make);
    let shaping = scope(&limiter, "leaky-bucket capacity=10 leak=1/s mode=shaping");
    let error = shaping.reserve("a").await.unwrap_err();
    assert_eq!(error, Error::Hold(HoldError::Shaping));
    let scope = scope(&limiter, LIMITS[0]);
    let no_time = scope.reserve("a").hold_for(Duration::ZERO).await.unwrap_err();
    assert_eq!(no_time, Error::Hold(HoldError::NoTime));
    assert!(matches!(scope.reserve("a").cost(0).await, Err(Error::Cost(_))));
    let long = vec![0; tollgate_limiter::MAX_KEY_BYTES + 1];
    assert!(matches!(scope.reserve(&long).await, Err(Error::KeyTooLong { .. })));
    assert_eq!(remaining(&scope).await, 10);
}

pub async fn open_holds_stay_valid_when_the_limit_changes(make: Make) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let before = named(&limiter, "changing", text);
        before.check("a").cost(2).await.unwrap();
        let first = hold(&before, 3, 5 * SECOND).await;
        let second = hold(&before, 1, 5 * SECOND).await;
        let after = named(&limiter, "changing", &text.replace("=10 ", "=20 "));
        assert!(after.check("a").await.unwrap().is_allowed(), "{text}");
        assert_eq!(remaining(&after).await, 13, "{text}");
        assert_eq!(first.settle(1).await.unwrap().charged_units(), 1, "{text}");
        assert_eq!(remaining(&after).await, 15, "{text}");
        clock.set_us(START_US + 5 * S);
        assert_eq!(second.settle(0).await.unwrap().ended(), Some(EndedHold::Expired), "{text}");
    }
}

pub async fn checks_of_several_limits_beside_holds_are_all_or_none(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let (held, free) = (scope(&limiter, text), named(&limiter, "free", text));
        let hold = hold(&held, 6, SECOND).await;
        let both = |units| [held.check("a").cost(units), free.check("a").cost(units)];
        let refused = limiter.check_all(&both(5)).await.unwrap();
        assert_eq!((refused.is_allowed(), refused.refused_by()), (false, Some(0)), "{text}");
        assert_eq!((remaining(&held).await, remaining(&free).await), (4, 10), "{text}");
        let looked = limiter.check_all(&[held.peek("a").cost(5), free.check("a")]).await.unwrap();
        assert_eq!((looked.is_allowed(), remaining(&free).await), (false, 10), "{text}");
        let allowed = limiter.check_all(&both(4)).await.unwrap();
        assert_eq!((allowed.is_allowed(), allowed.remaining()), (true, Some(0)), "{text}");
        assert_eq!((remaining(&held).await, remaining(&free).await), (0, 6), "{text}");
        hold.release().await.unwrap();
        assert_eq!(remaining(&held).await, 6, "{text}");
    }
}

pub async fn holds_keep_their_expiry_on_a_clock_that_steps_back_and_move_with_a_new_one(
    make: Make,
) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let scope = scope(&limiter, text);
        scope.check("a").await.unwrap();
        let stays = hold(&scope, 3, 2 * SECOND).await;
        clock.set_us(START_US - 5 * S);
        assert_eq!(remaining(&scope).await, 6, "{text}");
        clock.set_us(START_US + 2 * S - 1);
        assert_eq!(stays.settle(0).await.unwrap().ended(), None, "{text}");
        let moves = hold(&scope, 3, 2 * SECOND).await;
        let back_us = 86_400 * S;
        clock.set_us(START_US + 2 * S - 1 - back_us);
        assert!(scope.check("a").await.unwrap().is_allowed(), "{text}");
        clock.set_us(START_US + 4 * S - 2 - back_us);
        assert_eq!(moves.settle_part(1).await.unwrap().charged_units(), 1, "{text}");
        // A fixed window's time is that of its start, up to 2 s before: the hold lasts that much longer.
        clock.set_us(START_US + 6 * S - back_us);
        let after = scope.check("a").await.unwrap();
        assert!(after.is_allowed(), "{text}");
        assert_eq!(scope.state("a").await.unwrap().holds.len(), 0, "{text}: it has expired");
    }
}

/// One key of one name, as the algorithms have it.
struct KeyModel {
    limit: Limit,
    state: State,
    holds: Holds,
}

impl KeyModel {
    fn new(limit: Limit) -> KeyModel {
        KeyModel { limit, state: limit.fresh(), holds: Holds::default() }
    }

    /// Carries the key over to a limit; returns the limit that decides.
    fn reach(&mut self, limit: &Limit, now_us: u64, cost: Cost) -> Limit {
        self.forget_limit(limit);
        if self.limit == *limit {
            return *limit;
        }
        let state = std::mem::replace(&mut self.state, limit.fresh());
        let carried = limit.carry_over_beside(&self.limit, state, &mut self.holds, now_us, cost);
        if let tollgate_core::CarryOver::Done(_) = carried {
            self.limit = *limit;
        }
        let (decides, state) = carried.decides(limit);
        self.state = state;
        decides
    }

    /// Puts a key with nothing spent or held under this limit: a store need not keep such a key.
    fn forget_limit(&mut self, limit: &Limit) {
        if self.is_idle() {
            *self = KeyModel::new(*limit);
        }
    }

    fn is_idle(&self) -> bool {
        self.state == self.limit.fresh() && self.holds.is_empty()
    }

    /// The decisions on an operation on a hold that has ended, by a store that keeps a key with nothing spent or held, which
    /// it need not keep: the key may be under any of these limits. None for any other key.
    fn decisions_if_kept(
        &self,
        limits: &[Limit],
        now_us: u64,
        hold: HoldReference,
    ) -> Vec<LimitDecision> {
        let limits = limits.iter().filter(|_| self.is_idle());
        let none = HoldUse { units: 0, is_last: false };
        let decision = |limit: &Limit| {
            let KeyModel { limit, mut state, mut holds } = KeyModel::new(*limit);
            limit.settle_hold(&mut state, &mut holds, now_us, hold, none).decision
        };
        limits.map(decision).collect()
    }

    fn extend(
        &mut self,
        limit: &Limit,
        now_us: u64,
        hold: HoldReference,
        growth: HoldGrowth,
    ) -> ExtendAnswer {
        self.forget_limit(limit);
        let decides = match growth.more {
            Some(more) if self.holds.contains(hold.id) => self.reach(limit, now_us, more),
            _ => self.limit,
        };
        decides.extend_hold(&mut self.state, &mut self.holds, now_us, hold, growth)
    }

    fn copy(&self) -> KeyModel {
        let KeyModel { limit, state, holds } = self;
        KeyModel { limit: *limit, state: state.clone(), holds: holds.clone() }
    }
}

/// An operation of a random trace.
#[derive(Clone, Debug)]
enum Act {
    Check,
    Peek,
    Together,
    Reserve(u64),
    /// Reserves units of two names. The flag says whether the units of the second are held, or charged at once.
    ReserveTogether(u64, bool),
    SettleTogether(u64),
    ExtendTogether(u64, u64),
    Settle(u64),
    SettlePart(u64),
    Extend(u64, u64),
    Refund,
    Reset,
}

fn act() -> impl Strategy<Value = Act> {
    let time = || prop_oneof![1..50_u64, 1_000..100_000_u64, S..100 * S];
    prop_oneof![
        4 => Just(Act::Check),
        1 => Just(Act::Peek),
        2 => Just(Act::Together),
        6 => time().prop_map(Act::Reserve),
        4 => (time(), any::<bool>()).prop_map(|(time, holds)| Act::ReserveTogether(time, holds)),
        2 => (0..1_500_u64).prop_map(Act::SettleTogether),
        2 => ((0..2_u64), time()).prop_map(|(more, time)| Act::ExtendTogether(more, time)),
        3 => (0..1_500_u64).prop_map(Act::Settle),
        2 => (0..1_500_u64).prop_map(Act::SettlePart),
        2 => ((0..2_u64), time()).prop_map(|(more, time)| Act::Extend(more, time)),
        1 => Just(Act::Refund),
        1 => Just(Act::Reset),
    ]
}

/// How the clock moves before an operation.
#[derive(Clone, Debug)]
enum Tick {
    Stay,
    ByUs(u64),
    Expiry(i64),
    Retry(i64),
    Reset(i64),
}

fn tick() -> impl Strategy<Value = Tick> {
    prop_oneof![
        4 => Just(Tick::Stay),
        2 => (0..100_000_u64).prop_map(Tick::ByUs),
        2 => (-1..=1_i64).prop_map(Tick::Expiry),
        2 => (-1..=1_i64).prop_map(Tick::Retry),
        1 => (-1..=1_i64).prop_map(Tick::Reset),
    ]
}

/// A hold of a random trace, and what the model knows of it.
struct TracedHold {
    key: usize,
    /// Whether it is a hold of the other name.
    is_other: bool,
    limit: Limit,
    real: Hold,
    expected: HoldReference,
}

/// Asserts that a decision on a hold is the expected one, or that of a store that still keeps an idle key.
fn agree_on_hold(
    given: &LimitDecision,
    expected: &LimitDecision,
    kept: &[LimitDecision],
) -> Result<(), TestCaseError> {
    if !kept.contains(given) {
        prop_assert_eq!(given, expected);
    }
    Ok(())
}

/// A limiter and its model. Requests alternate between two limits of one name; another name has the same keys.
struct HoldTrace {
    clock: ManualClock,
    limiter: Limiter,
    scopes: [Scope; 2],
    other: Scope,
    models: Vec<KeyModel>,
    others: Vec<KeyModel>,
    open: Vec<TracedHold>,
    receipts: Vec<(usize, Receipt, ChargeReceipt)>,
    now_us: u64,
    last: Option<LimitDecision>,
    ids: u64,
}

const KEYS: [&str; 3] = ["a", "b", "a key that is longer than most"];

impl HoldTrace {
    fn new(make: Make, limits: [Limit; 2], other: Limit) -> HoldTrace {
        let (clock, limiter) = open(make);
        let scope = |name: &str, limit: Limit| limiter.scope(name, limit).unwrap();
        let scopes = limits.map(|limit| scope("changing", limit));
        let other = scope("other", other);
        HoldTrace {
            models: KEYS.map(|_| KeyModel::new(limits[0])).into(),
            others: KEYS.map(|_| KeyModel::new(*other.limit())).into(),
            clock,
            limiter,
            scopes,
            other,
            open: Vec::new(),
            receipts: Vec::new(),
            now_us: trace::START_US,
            last: None,
            ids: 0,
        }
    }

    /// Moves the clock, never back; `false` past the end of time.
    fn tick(&mut self, tick: &Tick) -> bool {
        let wait_us = |wait_us: Option<u64>| wait_us.unwrap_or(0);
        let next_us = match *tick {
            Tick::Stay => self.now_us,
            Tick::ByUs(us) => self.now_us + us,
            Tick::Expiry(off) => {
                let first = self.open.iter().map(|hold| hold.expected.expires_us).min();
                first.unwrap_or(self.now_us).max(self.now_us).saturating_add_signed(off)
            }
            Tick::Retry(off) => {
                let retry_us = self.last.and_then(|decision| decision.retry_after_us());
                (self.now_us.saturating_add(wait_us(retry_us))).saturating_add_signed(off)
            }
            Tick::Reset(off) => {
                let reset_us = self.last.map(|decision| decision.reset_after_us);
                (self.now_us.saturating_add(wait_us(reset_us))).saturating_add_signed(off)
            }
        };
        if next_us > 3_000_000_000_000_000 {
            return false;
        }
        self.now_us = next_us.max(self.now_us);
        self.clock.set_us(self.now_us);
        true
    }

    async fn act(
        &mut self,
        (key, turn, units): (usize, usize, u64),
        act: &Act,
    ) -> Result<(), TestCaseError> {
        let now_us = self.now_us;
        let (scope, text) = (self.scopes[turn].clone(), KEYS[key]);
        let limit = *scope.limit();
        let limits = [*self.scopes[0].limit(), *self.scopes[1].limit(), *self.other.limit()];
        let cost = Cost::new(units).unwrap();
        let request = UnitRequest::new(cost);
        let model = &mut self.models[key];
        match *act {
            Act::Check => {
                let decision = scope.check(text).cost(units).await;
                if limit.only_holds() {
                    prop_assert!(must_reserve(&decision), "{:?}", decision);
                    return Ok(());
                }
                let decision = decision.unwrap();
                let decides = model.reach(&limit, now_us, cost);
                let (state, holds) = (&mut model.state, &mut model.holds);
                let expected = decides.check_beside(state, holds, now_us, request);
                let expected_decision = decides.in_place_of(&limit, expected.decision);
                prop_assert_eq!(decision.decided(), &expected_decision);
                self.last = Some(expected_decision);
                self.keep(key, decision.into_receipt(), expected.receipt)?;
            }
            Act::Peek => {
                let decision = scope.peek(text).cost(units).at_us(now_us).await.unwrap();
                let mut model = model.copy();
                let decides = model.reach(&limit, now_us, cost);
                let expected = decides.peek_beside(&model.state, &model.holds, now_us, request);
                prop_assert_eq!(decision.decided(), &decides.in_place_of(&limit, expected));
            }
            Act::Together => {
                let checks =
                    [scope.check(text).cost(units), self.other.check(text).cost(units.min(3))];
                let joint = self.limiter.check_all(&checks).await;
                if limit.only_holds() || self.other.only_holds() {
                    prop_assert!(must_reserve(&joint), "{:?}", joint);
                    return Ok(());
                }
                let joint = joint.unwrap();
                let (other, own) = (&mut self.others[key], *self.other.limit());
                let decides = model.reach(&limit, now_us, cost);
                let second = Cost::new(units.min(3)).unwrap();
                let mut parts = [
                    LimitCheck::enforced(&decides, &mut model.state, cost).beside(&mut model.holds),
                    LimitCheck::enforced(&own, &mut other.state, second).beside(&mut other.holds),
                ];
                let expected = check_all(&mut parts, now_us);
                let each = [
                    decides.in_place_of(&limit, *parts[0].decision().unwrap()),
                    *parts[1].decision().unwrap(),
                ];
                let given: Vec<_> = joint.each().iter().map(|each| *each.decided()).collect();
                prop_assert_eq!(given, each);
                prop_assert_eq!(joint.decided(), &expected);
            }
            Act::Reserve(hold_for_us) => {
                let hold_for = Duration::from_micros(hold_for_us);
                let given = scope.reserve(text).cost(units).hold_for(hold_for).at_us(now_us);
                let given = given.await.unwrap();
                self.ids += 1;
                let hold_for = HoldTime::from_us(hold_for_us).unwrap();
                let reservation = Reservation { id: HoldId(self.ids), cost, hold_for };
                let decides = model.reach(&limit, now_us, cost);
                let (state, holds) = (&mut model.state, &mut model.holds);
                let expected = decides.reserve(state, holds, now_us, reservation).unwrap();
                let expected_decision = decides.in_place_of(&limit, expected.decision);
                prop_assert_eq!(given.decision().decided(), &expected_decision);
                self.last = Some(expected_decision);
                let given = given.into_hold();
                prop_assert_eq!(
                    given.as_ref().map(Hold::expires_at_us),
                    expected.hold.map(|hold| hold.expires_us)
                );
                let both = given.zip(expected.hold);
                self.open.extend(both.map(|(real, expected)| TracedHold {
                    key,
                    is_other: false,
                    limit,
                    real,
                    expected,
                }));
            }
            Act::ReserveTogether(hold_for_us, is_held) => {
                let hold_for = Duration::from_micros(hold_for_us);
                let (other, own) = (&mut self.others[key], *self.other.limit());
                let second = units.min(3);
                let is_held = is_held || own.only_holds();
                let parts = [
                    scope.reserve(text).cost(units).hold_for(hold_for).into(),
                    match is_held {
                        true => self.other.reserve(text).cost(second).hold_for(2 * hold_for).into(),
                        false => self.other.check(text).cost(second).into(),
                    },
                ];
                let given = self.limiter.reserve_all(&parts).await.unwrap();
                let decides = model.reach(&limit, now_us, cost);
                let second = Cost::new(second).unwrap();
                let time = |us| HoldTime::from_us(us).unwrap();
                self.ids += 2;
                let (first_id, second_id) = (HoldId(self.ids), HoldId(self.ids + 1));
                let first = LimitCheck::enforced(&decides, &mut model.state, cost)
                    .beside(&mut model.holds)
                    .held_as(first_id, time(hold_for_us));
                let other =
                    LimitCheck::enforced(&own, &mut other.state, second).beside(&mut other.holds);
                let other = match is_held {
                    true => other.held_as(second_id, time(2 * hold_for_us)),
                    false => other,
                };
                let mut expected_parts = [first, other];
                let expected = check_all(&mut expected_parts, now_us);
                let (joint, held) = given.into_parts();
                let each = [
                    decides.in_place_of(&limit, *expected_parts[0].decision().unwrap()),
                    *expected_parts[1].decision().unwrap(),
                ];
                let decisions: Vec<_> = joint.each().iter().map(|each| *each.decided()).collect();
                prop_assert_eq!(decisions, each);
                prop_assert_eq!(joint.decided(), &expected);
                let expected_holds: Vec<(bool, HoldReference)> = [false, true]
                    .into_iter()
                    .zip(&expected_parts)
                    .filter_map(|(is_other, part)| Some((is_other, part.hold()?)))
                    .collect();
                let held = held.map(JointHold::into_holds).unwrap_or_default();
                let expiry = |hold: &HoldReference| hold.expires_us;
                prop_assert_eq!(
                    held.iter().map(Hold::expires_at_us).collect::<Vec<_>>(),
                    expected_holds.iter().map(|(_, hold)| expiry(hold)).collect::<Vec<_>>()
                );
                for (real, (is_other, expected)) in held.into_iter().zip(expected_holds) {
                    let limit = if is_other { own } else { limit };
                    self.open.push(TracedHold { key, is_other, limit, real, expected });
                }
            }
            Act::SettleTogether(part) => {
                let Some(both) = self.take_pair(units as usize) else { return Ok(()) };
                let used = |nth: u64| units * part / 1_000 + nth;
                let mut expected = Vec::new();
                for (nth, hold) in (0..).zip(&both) {
                    let used = HoldUse { units: used(nth), is_last: true };
                    let model = self.model(hold.key, hold.is_other);
                    let kept = model.decisions_if_kept(&limits, now_us, hold.expected);
                    model.forget_limit(&hold.limit);
                    let (limit, state, holds) = (model.limit, &mut model.state, &mut model.holds);
                    let settled = limit.settle_hold(state, holds, now_us, hold.expected, used);
                    expected.push((settled, kept));
                }
                let joint = JointHold::of(both.map(|hold| hold.real).into()).unwrap();
                let mut uses = (0..).map(used);
                let given = joint.settle(|_| uses.next().unwrap()).await.unwrap();
                for (given, (expected, kept)) in given.into_iter().zip(expected) {
                    agree_on_hold(given.decided(), &expected.decision, &kept)?;
                    prop_assert_eq!(settlement(&given), settlement_fields(&expected.settlement));
                }
            }
            Act::ExtendTogether(more, time_us) => {
                let Some(both) = self.take_pair(units as usize) else { return Ok(()) };
                let more = more * units;
                let growth = HoldGrowth {
                    more: Cost::new(more).ok(),
                    hold_for: HoldTime::from_us(time_us).unwrap(),
                };
                let expected = self.extend_both(&both, growth);
                let (mut traced, mut real) = (Vec::new(), Vec::new());
                for TracedHold { key, is_other, limit, real: own, expected } in both {
                    traced.push((key, is_other, limit, expected));
                    real.push(own);
                }
                let joint = JointHold::of(real).unwrap();
                let time = Duration::from_micros(time_us);
                let given = joint.extend(|_| (more, time)).await.unwrap();
                let holds = joint.into_holds();
                let answers = given.each().iter().zip(expected);
                for (((given, expected), traced), real) in answers.zip(traced).zip(holds) {
                    prop_assert_eq!(given.decided(), &expected.decision);
                    prop_assert_eq!(given.extension(), expected.extension);
                    let (key, is_other, limit, mut reference) = traced;
                    if let Extension::Granted { expires_us, .. } = expected.extension {
                        reference.expires_us = expires_us;
                    }
                    let expected = reference;
                    self.open.push(TracedHold { key, is_other, limit, real, expected });
                }
            }
            Act::Settle(part) | Act::SettlePart(part) => {
                if self.open.is_empty() {
                    return Ok(());
                }
                let at = (units as usize + part as usize) % self.open.len();
                let (key, is_other) = (self.open[at].key, self.open[at].is_other);
                let (reference, limit) = (self.open[at].expected, self.open[at].limit);
                let model = self.model(key, is_other);
                let kept = model.decisions_if_kept(&limits, now_us, reference);
                model.forget_limit(&limit);
                let held = model.holds.iter().find(|hold| hold.id == reference.id);
                let whole = held.map_or(units, |hold| hold.units + hold.used);
                let used = (u128::from(whole) * u128::from(part) / 1_000) as u64;
                let is_last = matches!(act, Act::Settle(_));
                let given = match is_last {
                    true => self.open.swap_remove(at).real.settle(used).await.unwrap(),
                    false => self.open[at].real.settle_part(used).await.unwrap(),
                };
                let model = self.model(key, is_other);
                let limit = model.limit;
                let (state, holds) = (&mut model.state, &mut model.holds);
                let used = HoldUse { units: used, is_last };
                let expected = limit.settle_hold(state, holds, now_us, reference, used);
                agree_on_hold(given.decided(), &expected.decision, &kept)?;
                prop_assert_eq!(settlement(&given), settlement_fields(&expected.settlement));
                let expected = match expected.settlement {
                    Settlement::Done { receipt, .. } => receipt,
                    Settlement::Ended(_) => None,
                };
                if !is_other {
                    self.keep(key, given.into_receipt(), expected)?;
                }
            }
            Act::Extend(more, time_us) => {
                if self.open.is_empty() {
                    return Ok(());
                }
                let at = (units as usize + time_us as usize) % self.open.len();
                let hold = &mut self.open[at];
                let more = more * units;
                let given = hold.real.extend(more, Duration::from_micros(time_us)).await.unwrap();
                let more = Cost::new(more).ok();
                let growth = HoldGrowth { more, hold_for: HoldTime::from_us(time_us).unwrap() };
                let models = if hold.is_other { &mut self.others } else { &mut self.models };
                let model = &mut models[hold.key];
                let kept = model.decisions_if_kept(&limits, now_us, hold.expected);
                let expected = model.extend(&hold.limit, now_us, hold.expected, growth);
                agree_on_hold(given.decided(), &expected.decision, &kept)?;
                prop_assert_eq!(given.extension(), expected.extension);
                if let Extension::Granted { expires_us, .. } = expected.extension {
                    hold.expected.expires_us = expires_us;
                }
            }
            Act::Refund => {
                let Some((key, real, expected)) = self.receipts.pop() else { return Ok(()) };
                let back = scope.refund(KEYS[key], real).await.unwrap();
                let model = &mut self.models[key];
                let (limit, state, holds) = (model.limit, &mut model.state, &mut model.holds);
                prop_assert_eq!(back, limit.refund_beside(state, holds, now_us, expected));
            }
            Act::Reset => {
                scope.reset(text).await.unwrap();
                *model = KeyModel::new(limit);
            }
        }
        Ok(())
    }

    fn model(&mut self, key: usize, is_other: bool) -> &mut KeyModel {
        if is_other { &mut self.others[key] } else { &mut self.models[key] }
    }

    /// Takes two open holds of one key under the two names, if there are such holds.
    fn take_pair(&mut self, from: usize) -> Option<[TracedHold; 2]> {
        let count = self.open.len();
        let mut at = (0..count).map(|nth| (from + nth) % count);
        let (first, second) = at.find_map(|first| {
            let of = &self.open[first];
            let fits = |other: &TracedHold| other.key == of.key && other.is_other != of.is_other;
            Some((first, self.open.iter().position(fits)?))
        })?;
        let later = self.open.swap_remove(first.max(second));
        let earlier = self.open.swap_remove(first.min(second));
        Some(if first < second { [earlier, later] } else { [later, earlier] })
    }

    /// Extends two holds of the models, or none.
    fn extend_both(&mut self, both: &[TracedHold; 2], growth: HoldGrowth) -> Vec<ExtendAnswer> {
        let now_us = self.now_us;
        let mut answers = Vec::new();
        let before = both.each_ref().map(|hold| self.model(hold.key, hold.is_other).copy());
        for hold in both {
            let model = self.model(hold.key, hold.is_other);
            answers.push(model.extend(&hold.limit, now_us, hold.expected, growth));
        }
        let is_granted =
            |answer: &ExtendAnswer| matches!(answer.extension, Extension::Granted { .. });
        if answers.iter().all(is_granted) {
            return answers;
        }
        let all = both.iter().zip(before).zip(&mut answers);
        for ((hold, before), answer) in all.filter(|(_, answer)| is_granted(answer)) {
            let cost = growth.more.unwrap_or(Cost::ONE);
            let mut looked = before.copy();
            let decides = looked.reach(&hold.limit, now_us, cost);
            let request = UnitRequest::new(cost);
            let peeked = decides.peek_beside(&looked.state, &looked.holds, now_us, request);
            let verdict = Verdict::Allowed { delay_us: 0 };
            answer.decision = decides.in_place_of(&hold.limit, LimitDecision { verdict, ..peeked });
            answer.extension = Extension::Refused;
            *self.model(hold.key, hold.is_other) = before;
        }
        answers
    }

    fn keep(
        &mut self,
        key: usize,
        given: Option<Receipt>,
        expected: Option<ChargeReceipt>,
    ) -> Result<(), TestCaseError> {
        let place = given.as_ref().map(|receipt| (receipt.cost(), uncounted(receipt.place())));
        let expected_place =
            expected.as_ref().map(|receipt| (receipt.cost(), uncounted(receipt.place())));
        prop_assert_eq!(place, expected_place);
        let both = given.zip(expected);
        self.receipts.extend(both.map(|(given, expected)| (key, given, expected)));
        Ok(())
    }
}

/// Returns the place without the count of a bucket's charges, which starts anew when a store forgets the key.
fn uncounted(place: ChargePlace) -> ChargePlace {
    match place {
        ChargePlace::Bucket { over_us, .. } => ChargePlace::Bucket { charged: 0, over_us },
        place => place,
    }
}

fn must_reserve<T>(answer: &Result<T, Error>) -> bool {
    matches!(answer, Err(Error::MustReserve { .. }))
}

/// The units of a settlement that were charged, were beyond the hold, were cut, and are not held any more; and why nothing
/// was settled.
type SettlementFields = ([u64; 4], Option<EndedHold>);

fn settlement(given: &HoldSettlement) -> SettlementFields {
    let units =
        [given.charged_units(), given.excess_units(), given.cut_units(), given.freed_units()];
    (units, given.ended())
}

fn settlement_fields(expected: &Settlement) -> SettlementFields {
    match expected {
        &Settlement::Done { charged_units, excess_units, cut_units, freed_units, .. } => {
            ([charged_units, excess_units, cut_units, freed_units], None)
        }
        Settlement::Ended(ended) => ([0; 4], Some(*ended)),
    }
}

/// On a clock that only moves forward, so that a forgotten key cannot be told from a whole one.
pub fn every_operation_on_holds_is_the_algorithms_own(make: Make) {
    let limits = (any::holding_limit(), any::holding_limit(), any::holding_limit());
    let index = any::<prop::sample::Index>;
    let changes = prop_oneof![4 => Just(0_usize), 1 => Just(1_usize)];
    let units = prop_oneof![4 => 1..4_u64, 3 => 1..1_000_u64];
    let step = (tick(), act(), index(), changes, units, any::<bool>());
    let steps = prop::collection::vec(step, 1..60);
    proptest!(cases(128), |((one, two, other) in limits, steps in steps)| {
        let mut world = HoldTrace::new(make, [one, two], other);
        for (tick, act, key, turn, units, is_part) in steps {
            if !world.tick(&tick) {
                break;
            }
            let size = world.scopes[turn].limit().size();
            let part = (u128::from(size) * u128::from(units) / 1_000).max(1) as u64;
            let units = if is_part { part } else { units };
            block_on(world.act((key.index(KEYS.len()), turn, units), &act))?;
        }
    });
}
