//! The time until more remains: exact, or for buckets at most a microsecond late.

use proptest::prelude::*;
use tollgate_core::{
    CarryOver, Cost, LeakyBucket, Limit, LimitCheck, LimitDecision, State, UnitRequest, check_all,
};

use tollgate_conformance::any;
use tollgate_conformance::trace::{self, Walk};

/// A key at an instant, and its decision.
struct DecidedKey<'a> {
    limit: &'a Limit,
    state: &'a State,
    now_us: u64,
    request: UnitRequest,
    decision: LimitDecision,
}

impl DecidedKey<'_> {
    fn remaining_after(&self, wait_us: u64) -> u64 {
        self.limit.peek(self.state, self.now_us + wait_us, self.request).remaining
    }

    /// Asserts that more remains after the wait and not before it; for a bucket, not two microseconds before it.
    fn is_exact(&self) -> Result<(), TestCaseError> {
        let LimitDecision { limit: size, remaining, .. } = self.decision;
        let Some(wait_us) = self.decision.more_after_us(self.limit) else {
            prop_assert_eq!(remaining, size);
            return Ok(());
        };
        prop_assert!(remaining < size);
        prop_assert!(wait_us > 0);
        prop_assert!(self.remaining_after(wait_us) > remaining, "{} us is early", wait_us);
        let is_bucket = matches!(self.limit, Limit::TokenBucket(_) | Limit::LeakyBucket(_));
        let late_us = if is_bucket && self.decision.first_back_us == 0 { 2 } else { 1 };
        let before = self.remaining_after(wait_us.saturating_sub(late_us));
        prop_assert_eq!(before, remaining, "{} us is late", wait_us);
        Ok(())
    }
}

proptest! {
    #[test]
    fn more_after_is_exact_after_every_decision(
        limit in any::limit(),
        steps in trace::any(),
        gives_back in prop::collection::vec(prop::bool::weighted(0.2), 40),
    ) {
        let mut walk = Walk::new(limit);
        let mut receipts = Vec::new();
        for (step, gives_back) in steps.iter().zip(gives_back) {
            let Some(cost) = walk.aim(step) else { break };
            if gives_back && let Some(receipt) = receipts.pop() {
                limit.refund(&mut walk.state, walk.now_us, receipt);
            }
            let checked = walk.check(cost);
            receipts.extend(checked.receipt);
            let Walk { state, now_us, .. } = &walk;
            let (decision, request) = (checked.decision, UnitRequest::new(cost));
            DecidedKey { limit: &limit, state, now_us: *now_us, request, decision }.is_exact()?;
            let peeked = limit.peek(state, *now_us, UnitRequest::new(Cost::ONE));
            prop_assert_eq!(peeked.more_after_us(&limit), decision.more_after_us(&limit));
        }
    }

    #[test]
    fn more_after_is_exact_with_a_max_wait(
        (capacity, rate) in any::capacity_and_rate(),
        steps in trace::any(),
        waits_us in prop::collection::vec(prop_oneof![0..100_u64, any::<u64>()], 40),
    ) {
        let limit: Limit = LeakyBucket::shaping(capacity, rate).unwrap().into();
        let mut walk = Walk::new(limit);
        for (step, max_wait_us) in steps.iter().zip(waits_us) {
            let Some(cost) = walk.aim(step) else { break };
            let (now_us, request) = (walk.now_us, UnitRequest::new(cost).within_us(max_wait_us));
            let decision = limit.check(&mut walk.state, now_us, request).decision;
            DecidedKey { limit: &limit, state: &walk.state, now_us, request, decision }.is_exact()?;
        }
    }

    /// Also while a key stays under its old limit, for a client that knows only the new limit.
    #[test]
    fn more_remains_no_later_than_reported_across_a_change(
        old in any::limit(),
        new in any::limit(),
        steps in trace::any(),
        cost in prop_oneof![2 => Just(1_u64), 1 => any::units()],
    ) {
        let mut walk = Walk::new(old);
        for step in &steps {
            let Some(cost) = walk.aim(step) else { break };
            walk.check(cost);
        }
        let (now_us, cost) = (walk.now_us, Cost::new(cost).unwrap());
        let request = UnitRequest::new(cost);
        let carried = new.carry_over(&old, walk.state.clone(), now_us, cost);
        let stays = matches!(carried, CarryOver::Stays { .. });
        let (limit, state) = carried.decides(&new);
        let decision = limit.peek(&state, now_us, request);
        DecidedKey { limit: &limit, state: &state, now_us, request, decision }.is_exact()?;
        let reported = limit.in_place_of(&new, decision);
        prop_assert_eq!(reported.more_after_us(&new), decision.more_after_us(&limit));
        prop_assert_eq!(LimitDecision { first_back_us: decision.first_back_us, ..reported }, decision);
        if let (true, Some(wait_us)) = (stays, reported.more_after_us(&new)) {
            let then_us = now_us + wait_us;
            let (limit, state) = new.carry_over(&old, state, then_us, cost).decides(&new);
            prop_assert!(limit.peek(&state, then_us, request).remaining > reported.remaining);
        }
    }
}

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

/// Charges a limit, each charge at a time in milliseconds. Returns the microseconds until more remains.
fn more_after(text: &str, charges: &[(u64, u64)]) -> Option<u64> {
    let limit = limit(text);
    let mut state = limit.fresh();
    let check = |&(at_ms, cost): &(u64, u64)| {
        limit.check(&mut state, at_ms * 1_000, UnitRequest::new(Cost::new(cost).unwrap())).decision
    };
    charges.iter().map(check).last()?.more_after_us(&limit)
}

#[test]
fn more_after_is_when_the_first_spent_unit_comes_back() {
    for (limit, charges, more_after_us) in [
        ("fixed-window limit=5 window=1s", &[(200, 2), (300, 1)][..], 700_000),
        ("sliding-window-log limit=5 window=1s", &[(200, 2), (300, 1)], 900_000),
        // The oldest charge leaves at 1.2 s.
        ("sliding-window-log limit=5 window=1s", &[(200, 2), (300, 1), (1_250, 1)], 50_000),
        // The request is refused, and more remains before it fits.
        ("sliding-window-log limit=5 window=1s", &[(200, 1), (300, 4), (400, 3)], 800_000),
        ("sliding-window-log limit=5 window=1s", &[(200, 1), (300, 6)], 900_000),
        // Units of the current window come back only after the next window has begun.
        ("sliding-window-counter limit=9 window=1s", &[(200, 4)], 800_001),
        // 2 of the previous window's 4 units are in view until 500 ms into this window.
        ("sliding-window-counter limit=9 window=1s", &[(200, 4), (1_500, 1)], 1),
        ("sliding-window-counter limit=9 window=1s", &[(200, 4), (1_501, 1)], 249_001),
        ("token-bucket capacity=5 refill=10/s", &[(200, 3)], 100_000),
        ("token-bucket capacity=5 refill=10/s", &[(200, 3), (230, 1)], 70_000),
        ("leaky-bucket capacity=5 leak=10/s mode=shaping", &[(200, 3), (230, 1)], 70_000),
    ] {
        assert_eq!(more_after(limit, charges), Some(more_after_us), "{limit} {charges:?}");
    }
}

#[test]
fn more_after_is_none_when_nothing_is_spent() {
    for limit in [
        "fixed-window limit=5 window=1s",
        "sliding-window-log limit=5 window=1s",
        "sliding-window-counter limit=5 window=1s",
        "token-bucket capacity=5 refill=10/s",
    ] {
        assert_eq!(more_after(limit, &[(200, 6)]), None, "{limit}");
    }
}

#[test]
fn bucket_that_decides_for_another_reports_by_its_own_rate() {
    let (large, small) = (
        limit("token-bucket capacity=600 refill=10/s"),
        limit("token-bucket capacity=60 refill=1/s"),
    );
    let mut state = large.fresh();
    large.check(&mut state, 0, UnitRequest::new(Cost::new(600).unwrap()));
    let (decides, state) = small.carry_over(&large, state, 0, Cost::ONE).decides(&small);
    let decision = decides.peek(&state, 0, UnitRequest::new(Cost::ONE));
    // At the small bucket's rate the last 59 units take 59 s of the 60 s.
    assert_eq!(decision.more_after_us(&small), Some(1_000_000));
    assert_eq!(decides.in_place_of(&small, decision).more_after_us(&small), Some(54_100_000));
    assert_eq!(decides.in_place_of(&decides, decision), decision);
}

#[test]
fn each_of_several_limits_reports_its_own_time() {
    let limits =
        ["sliding-window-log limit=5 window=1s", "sliding-window-counter limit=1 window=1s"]
            .map(limit);
    let mut states = limits.map(|limit| limit.fresh());
    let [log, counter] = &mut states;
    let mut more_after_us = |now_us| {
        let mut charges = [
            LimitCheck::enforced(&limits[0], log, Cost::ONE),
            LimitCheck::enforced(&limits[1], counter, Cost::ONE),
        ];
        check_all(&mut charges, now_us);
        let decided = [0, 1].map(|index: usize| *charges[index].decision().unwrap());
        [0, 1].map(|index: usize| decided[index].more_after_us(&limits[index]))
    };
    assert_eq!(more_after_us(200_000), [Some(1_000_000), Some(800_001)]);
    // The counter refuses, and nothing is charged.
    assert_eq!(more_after_us(300_000), [Some(900_000), Some(700_001)]);
}
