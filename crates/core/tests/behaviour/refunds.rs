//! A refund never admits more than if the request had not been made.

use std::time::Duration;

use proptest::prelude::*;
use tollgate_core::{ChargeReceipt, Cost, LeakyBucket, Limit, Rate, State, UnitRequest};

use tollgate_conformance::any;
use tollgate_conformance::trace::{self, Move, Walk};

#[derive(Clone, Debug)]
enum Event {
    LimitCheck(trace::Step),
    /// Moves the clock, then refunds one of the receipts held.
    Refund(Move, prop::sample::Index),
}

fn events(steps: impl Strategy<Value = Vec<trace::Step>>) -> impl Strategy<Value = Vec<Event>> {
    let refund = prop::option::of(any::<prop::sample::Index>());
    (steps, prop::collection::vec(refund, 40)).prop_map(|(steps, refunds)| {
        let event = |(step, refund): (trace::Step, Option<prop::sample::Index>)| match refund {
            Some(which) => Event::Refund(step.0, which),
            None => Event::LimitCheck(step),
        };
        steps.into_iter().zip(refunds).map(event).collect()
    })
}

/// Limits for which 40 charges stay below 2^53 units, because a bucket counts its charges modulo 2^53.
fn countable_limit() -> impl Strategy<Value = Limit> {
    any::limit().prop_filter("40 charges stay below 2^53", |limit| limit.size() <= 1 << 47)
}

/// An admitted charge, with its receipt until it is refunded.
struct Admitted {
    at_us: u64,
    cost: Cost,
    receipt: Option<ChargeReceipt>,
}

/// Plays the events. Returns the key after them, and the admitted charges.
fn play(limit: Limit, events: &[Event]) -> (Walk, Vec<Admitted>) {
    let mut walk = Walk::new(limit);
    let mut admitted: Vec<Admitted> = Vec::new();
    for event in events {
        match event {
            Event::LimitCheck(step) => {
                let Some(cost) = walk.aim(step) else { break };
                if let Some(receipt) = walk.check(cost).receipt {
                    admitted.push(Admitted { at_us: walk.now_us, cost, receipt: Some(receipt) });
                }
            }
            Event::Refund(step, which) => {
                let Some(_) = walk.aim(&(step.clone(), trace::Price::Units(1))) else { break };
                let mut held: Vec<_> =
                    admitted.iter_mut().filter(|charge| charge.receipt.is_some()).collect();
                if !held.is_empty() {
                    let which = which.index(held.len());
                    let receipt = held[which].receipt.take().unwrap();
                    limit.refund(&mut walk.state, walk.now_us, receipt);
                }
            }
        }
    }
    (walk, admitted)
}

/// The state that the key would have if the refunded requests had never been made.
fn without_refunded(limit: Limit, admitted: &[Admitted]) -> State {
    let mut state = limit.fresh();
    for charge in admitted.iter().filter(|charge| charge.receipt.is_some()) {
        let decision =
            limit.check(&mut state, charge.at_us, UnitRequest::new(charge.cost)).decision;
        assert!(decision.is_allowed(), "less was spent, so it fits");
    }
    state
}

proptest! {
    #[test]
    fn refund_never_over_admits(limit in countable_limit(), events in events(trace::forward())) {
        let (walk, admitted) = play(limit, &events);
        let never_made = without_refunded(limit, &admitted);
        let interval_us = limit.bound().interval_us;
        for wait_us in [0, 1, interval_us / 3, interval_us, 2 * interval_us] {
            let at_us = walk.now_us + wait_us;
            let refunded = limit.peek(&walk.state, at_us, Cost::ONE.into()).remaining;
            let best = limit.peek(&never_made, at_us, Cost::ONE.into()).remaining;
            prop_assert!(refunded <= best, "{refunded} after refunds, {best} without the requests");
        }
    }

    #[test]
    fn window_refund_undoes_the_request(
        limit in any::window_limit(),
        events in events(trace::forward()),
    ) {
        let (walk, admitted) = play(limit, &events);
        let never_made = without_refunded(limit, &admitted);
        let cost = UnitRequest::new(Cost::ONE);
        let refunded = limit.peek(&walk.state, walk.now_us, cost);
        prop_assert_eq!(refunded.remaining, limit.peek(&never_made, walk.now_us, cost).remaining);
    }

    #[test]
    fn immediate_refund_undoes_the_last_charge(limit in any::limit(), steps in trace::any()) {
        let mut walk = Walk::new(limit);
        for step in &steps {
            let Some(cost) = walk.aim(step) else { break };
            let before = walk.clone();
            let Some(receipt) = walk.check(cost).receipt else { continue };
            prop_assert_eq!(receipt.cost(), cost);
            let mut refunded = walk.state.clone();
            prop_assert_eq!(limit.refund(&mut refunded, walk.now_us, receipt), cost.units());
            let peek = |state: &State| limit.peek(state, walk.now_us, UnitRequest::new(cost));
            prop_assert_eq!(peek(&refunded), peek(&before.state));
        }
    }

    #[test]
    fn shaping_limit_refunds_only_the_last_charge(
        capacity in 10..1_000_u64,
        units in 1..20_u64,
        per_us in 1..50_u64,
        costs in prop::collection::vec(1..3_u64, 2..6),
        leaver in any::<prop::sample::Index>(),
    ) {
        let rate = Rate::new(units, Duration::from_micros(per_us)).unwrap();
        let limit: Limit = LeakyBucket::shaping(capacity, rate).unwrap().into();
        let mut walk = Walk::new(limit);
        let checks = costs.iter().map(|&cost| walk.check(Cost::new(cost).unwrap()));
        let mut receipts: Vec<_> = checks.filter_map(|checked| checked.receipt).collect();
        let leaver = leaver.index(receipts.len());
        let is_last = leaver == receipts.len() - 1;
        let receipt = receipts.swap_remove(leaver);
        let cost = receipt.cost().units();
        let given_back = limit.refund(&mut walk.state, walk.now_us, receipt);
        prop_assert_eq!(given_back, if is_last { cost } else { 0 });
    }
}

#[test]
fn receipt_whose_units_have_left_gives_nothing_back() {
    for (text, left_us) in [
        ("fixed-window limit=5 window=1s", 1_000_000),
        ("sliding-window-log limit=5 window=1s", 1_000_000),
        ("sliding-window-counter limit=5 window=1s", 2_000_000),
        ("token-bucket capacity=5 refill=5/s", 1_000_000),
        ("leaky-bucket capacity=5 leak=5/s mode=policing", 1_000_000),
        ("leaky-bucket capacity=5 leak=5/s mode=shaping", 1_000_000),
    ] {
        let limit: Limit = text.parse().unwrap();
        let mut state = limit.fresh();
        let all = UnitRequest::new(Cost::new(5).unwrap());
        let receipt = limit.check(&mut state, 0, all).receipt.unwrap();
        assert_eq!(limit.refund(&mut state, left_us, receipt), 0, "{text}");
        let mut state = limit.fresh();
        let receipt = limit.check(&mut state, 0, all).receipt.unwrap();
        assert!(limit.check(&mut state, left_us, all).decision.is_allowed(), "{text}");
        assert_eq!(limit.refund(&mut state, left_us, receipt), 0, "{text}");
        assert_eq!(limit.peek(&state, left_us, all).remaining, 0, "{text}");
    }
}

/// A caller reserves units and refunds them later. A busy bucket gives all of them back.
#[test]
fn bucket_refunds_the_units_that_have_not_drained() {
    let limit: Limit = "token-bucket capacity=100 refill=1/s".parse().unwrap();
    let mut state = limit.fresh();
    let cost = |units| UnitRequest::new(Cost::new(units).unwrap());
    limit.check(&mut state, 0, cost(50));
    let reserved = limit.check(&mut state, 0, cost(20)).receipt.unwrap();
    limit.check(&mut state, 10_000_000, cost(30));
    assert_eq!(limit.peek(&state, 10_000_000, cost(1)).remaining, 10);
    assert_eq!(limit.refund(&mut state, 10_000_000, reserved), 20);
    assert_eq!(limit.peek(&state, 10_000_000, cost(1)).remaining, 30);
}

/// The earlier charge was refunded, so the later one drained sooner than its receipt says.
#[test]
fn refund_of_an_earlier_charge_leaves_no_units_to_refund_twice() {
    let limit: Limit = "token-bucket capacity=10 refill=1/s".parse().unwrap();
    let mut state = limit.fresh();
    let five = UnitRequest::new(Cost::new(5).unwrap());
    let first = limit.check(&mut state, 0, five).receipt.unwrap();
    let second = limit.check(&mut state, 0, five).receipt.unwrap();
    assert_eq!(limit.refund(&mut state, 0, first), 5);
    limit.check(&mut state, 5_000_000, five);
    assert_eq!(limit.refund(&mut state, 5_000_000, second), 0);
    assert_eq!(limit.peek(&state, 5_000_000, five).remaining, 5);
}

fn cost(units: u64) -> UnitRequest {
    UnitRequest::new(Cost::new(units).unwrap())
}

/// Also halfway through a unit.
#[test]
fn refund_returns_how_much_more_remains() {
    let limit: Limit = "token-bucket capacity=10 refill=1/s".parse().unwrap();
    for (charged, before, given_back) in [(1, 9, 1), (4, 6, 4)] {
        let mut state = limit.fresh();
        let receipt = limit.check(&mut state, 0, cost(charged)).receipt.unwrap();
        assert_eq!(limit.peek(&state, 500_000, cost(1)).remaining, before);
        assert_eq!(limit.refund(&mut state, 500_000, receipt), given_back);
        assert_eq!(limit.peek(&state, 500_000, cost(1)).remaining, 10);
    }
    // Charged 4 and 3: after 5 s 2 units are left, all of the second charge.
    let mut state = limit.fresh();
    let first = limit.check(&mut state, 0, cost(4)).receipt.unwrap();
    let second = limit.check(&mut state, 0, cost(3)).receipt.unwrap();
    assert_eq!(limit.refund(&mut state, 5_000_000, first), 0);
    assert_eq!(limit.refund(&mut state, 5_000_000, second), 2);
    // Charged 4 and 3: after 2 s 5 units are left, 2 of them of the first charge.
    let mut state = limit.fresh();
    let first = limit.check(&mut state, 0, cost(4)).receipt.unwrap();
    limit.check(&mut state, 0, cost(3));
    assert_eq!(limit.refund(&mut state, 2_000_000, first), 2);
    assert_eq!(limit.peek(&state, 2_000_000, cost(1)).remaining, 7);
}

/// A unit in the previous window counts only in part.
#[test]
fn refund_in_the_previous_window_returns_how_much_more_remains() {
    let limit: Limit = "sliding-window-counter limit=10 window=1m".parse().unwrap();
    let mut state = limit.fresh();
    limit.check(&mut state, 0, cost(2));
    let receipt = limit.check(&mut state, 0, cost(5)).receipt.unwrap();
    assert_eq!(limit.peek(&state, 90_000_000, cost(1)).remaining, 7);
    assert_eq!(limit.refund(&mut state, 90_000_000, receipt), 2);
    assert_eq!(limit.peek(&state, 90_000_000, cost(1)).remaining, 9);
}

#[test]
fn shaping_limit_refunds_charges_from_the_last_backwards() {
    let limit: Limit = "leaky-bucket capacity=10 leak=1/s mode=shaping".parse().unwrap();
    let mut state = limit.fresh();
    let receipts = [2, 3, 4].map(|units| limit.check(&mut state, 0, cost(units)).receipt.unwrap());
    for (receipt, given_back) in receipts.into_iter().rev().zip([4, 3, 2]) {
        assert_eq!(limit.refund(&mut state, 0, receipt), given_back);
    }
    let leaving = limit.check(&mut state, 0, cost(4)).receipt.unwrap();
    assert_eq!(limit.refund(&mut state, 1, leaving), 0, "the charge has begun to leave");
}

/// A store drops the state of a key with nothing spent. Its count of charges then starts again at 0.
#[test]
fn forgotten_bucket_does_not_refund_an_old_receipt() {
    let limit: Limit = "token-bucket capacity=10 refill=1/s".parse().unwrap();
    let receipt = limit.check(&mut limit.fresh(), 0, cost(1)).receipt.unwrap();
    let mut state = limit.fresh();
    limit.check(&mut state, 1_000_000, cost(5));
    assert_eq!(limit.refund(&mut state, 1_000_000, receipt), 0);
}

#[test]
fn window_receipt_is_void_when_the_window_has_another_length() {
    for algorithm in ["fixed-window", "sliding-window-counter"] {
        let minute: Limit = format!("{algorithm} limit=10 window=1m").parse().unwrap();
        let hour: Limit = format!("{algorithm} limit=10 window=1h").parse().unwrap();
        let mut state = minute.fresh();
        let receipt = minute.check(&mut state, 0, cost(5)).receipt.unwrap();
        let (_, mut state) = hour.carry_over(&minute, state, 0, Cost::ONE).decides(&hour);
        assert_eq!(hour.refund(&mut state, 0, receipt), 0, "{algorithm}");
    }
}

/// The refunded charge was the last one, and the log's time does not go back before it.
#[test]
fn log_keeps_the_time_of_its_last_charge_after_a_refund() {
    let limit: Limit = "sliding-window-log limit=1 window=100us".parse().unwrap();
    let mut state = limit.fresh();
    limit.check(&mut state, 1_000, cost(1));
    let last = limit.check(&mut state, 1_100, cost(1)).receipt.unwrap();
    assert_eq!(limit.refund(&mut state, 1_100, last), 1);
    // If the key's time had gone back to 1,095, the first charge would still count. It stays at 1,100.
    let decision = limit.check(&mut state, 1_095, cost(1)).decision;
    assert_eq!(decision.reset_after_us, 105);
}

proptest! {
    /// Changing a limit's numbers drops units and rounds, but a refund never gives back more than was charged.
    #[test]
    fn refund_gives_back_at_most_the_charge(
        old in any::limit(),
        new in any::limit(),
        steps in trace::any(),
    ) {
        let mut walk = Walk::new(old);
        let mut receipts = Vec::new();
        for step in &steps {
            let Some(cost) = walk.aim(step) else { break };
            receipts.extend(walk.check(cost).receipt);
        }
        let (_, mut state) = new.carry_over(&old, walk.state, walk.now_us, Cost::ONE).decides(&new);
        let remaining = |state: &State| new.peek(state, walk.now_us, Cost::ONE.into()).remaining;
        for receipt in receipts {
            let (cost, before) = (receipt.cost().units(), remaining(&state));
            let given_back = new.refund(&mut state, walk.now_us, receipt);
            prop_assert!(given_back <= cost);
            prop_assert!(remaining(&state) - before <= cost);
        }
    }
}

/// The receipt gives back the units that have not drained, after changes of the clock or the rate.
#[test]
fn bucket_receipt_stays_exact_on_a_new_clock_and_at_a_new_rate() {
    const S: u64 = 1_000_000;
    let limit: Limit = "token-bucket capacity=10 refill=1/s".parse().unwrap();
    let five = UnitRequest::new(Cost::new(5).unwrap());
    let mut state = limit.fresh();
    let receipt = limit.check(&mut state, 1_000 * S, five).receipt.unwrap();
    // The clock steps an hour back and everything drains; then the new clock reaches the old time.
    limit.check(&mut state, 100 * S, UnitRequest::new(Cost::new(6).unwrap()));
    limit.check(&mut state, 1_000 * S, five);
    assert_eq!(limit.refund(&mut state, 1_001 * S, receipt), 0);
    assert_eq!(limit.peek(&state, 1_001 * S, five).remaining, 6);

    let mut state = limit.fresh();
    limit.check(&mut state, S, five);
    let receipt = limit
        .check(&mut state, S + S / 10, UnitRequest::new(Cost::new(2).unwrap()))
        .receipt
        .unwrap();
    let faster: Limit = "token-bucket capacity=10 refill=2/s".parse().unwrap();
    let (_, mut state) =
        faster.carry_over(&limit, state, 3 * S + 6 * S / 10, Cost::ONE).decides(&faster);
    assert_eq!(faster.refund(&mut state, 3 * S + 6 * S / 10, receipt), 2);
    assert_eq!(faster.peek(&state, 3 * S + 6 * S / 10, five).remaining, 7);

    // At a slower rate the receipt is valid for as long as it would have been at the old rate.
    let slower: Limit = "token-bucket capacity=20 refill=1/h".parse().unwrap();
    for (refunded_us, back) in [(5 * S - 1, 3), (5 * S, 0)] {
        let mut state = limit.fresh();
        let receipt = limit.check(&mut state, 0, five).receipt.unwrap();
        let (_, mut state) = slower.carry_over(&limit, state, 2 * S, Cost::ONE).decides(&slower);
        assert_eq!(slower.peek(&state, refunded_us, five).remaining, 17);
        assert_eq!(slower.refund(&mut state, refunded_us, receipt), back);
        assert_eq!(slower.peek(&state, refunded_us, five).remaining, 17 + back);
    }
}
