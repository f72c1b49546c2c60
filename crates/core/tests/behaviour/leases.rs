//! Leases: holds from which a process takes units without asking the store.

use proptest::prelude::*;
use tollgate_core::{
    CheckResult, Cost, EndedHold, HoldError, HoldGrowth, HoldId, HoldReference, HoldTime, HoldUse,
    Holds, LeaseAnswer, LeaseRequest, LeaseState, Limit, MAX_HOLDS, OpenHold, Reservation, State,
    UnitRequest,
};

/// A key on a store.
#[derive(Clone)]
struct Key {
    limit: Limit,
    state: State,
    holds: Holds,
}

impl Key {
    fn new(limit: &str) -> Key {
        let limit: Limit = limit.parse().unwrap();
        Key { limit, state: limit.fresh(), holds: Holds::default() }
    }

    fn lease(&mut self, now_us: u64, request: LeaseRequest) -> LeaseAnswer {
        self.limit.lease(&mut self.state, &mut self.holds, now_us, request).unwrap()
    }

    fn check(&mut self, now_us: u64, cost: Cost) -> CheckResult {
        let request = UnitRequest::new(cost);
        self.limit.check_beside(&mut self.state, &mut self.holds, now_us, request)
    }

    fn end(&mut self, now_us: u64, hold: HoldReference, used: u64) {
        let used = HoldUse { units: used, is_last: true };
        self.limit.settle_hold(&mut self.state, &mut self.holds, now_us, hold, used);
    }

    fn remaining(&self, now_us: u64) -> u64 {
        let one = UnitRequest::new(Cost::ONE);
        self.limit.peek_beside(&self.state, &self.holds, now_us, one).remaining
    }
}

/// A request to open lease `number` with `want` units for 10 us.
fn open(number: u64, want: u64) -> LeaseRequest {
    LeaseRequest {
        id: HoldId::of_lease(number),
        expires_us: None,
        used: 0,
        need: None,
        want,
        most: u64::MAX,
        lease_for: HoldTime::from_us(10).unwrap(),
    }
}

/// Returns the unused units and the expiry; zeros without a lease.
fn opened(answer: &LeaseAnswer) -> (u64, u64) {
    let LeaseState::Open { unused, expires_us, .. } = answer.lease else { return (0, 0) };
    (unused, expires_us)
}

#[test]
fn half_of_what_remains_is_divided_among_the_leases_of_a_key() {
    let mut key = Key::new("token-bucket capacity=1000 refill=1/h");
    assert_eq!(opened(&key.lease(0, open(1, 900))), (500, 10));
    assert_eq!(opened(&key.lease(0, open(2, 900))), (125, 10)); // 500 remain: half, and half of that
    let second = LeaseRequest { expires_us: Some(10), ..open(2, 900) };
    let answer = key.lease(1, second);
    assert_eq!(opened(&answer), (125 + 93, 11)); // 375 remain
    assert!(matches!(answer.lease, LeaseState::Open { holders: 2, lasts_us: 10, .. }));
    assert_eq!(answer.decision.remaining, 282);
    assert_eq!(opened(&key.lease(1, LeaseRequest { most: 5, ..open(3, 900) })), (5, 11));
}

#[test]
fn the_last_units_are_decided_one_by_one() {
    let mut key = Key::new("sliding-window-log limit=1 window=1h");
    let refused = key.lease(0, open(1, 100));
    assert_eq!(refused.lease, LeaseState::None);
    assert_eq!((refused.decision.remaining, key.holds.len()), (1, 0));
    let need = LeaseRequest { need: Some(Cost::ONE), ..open(1, 100) };
    let answer = key.lease(0, need);
    assert_eq!((answer.lease, answer.decision.remaining), (LeaseState::None, 0));
    assert!(answer.receipt.is_some());
    let answer = key.lease(0, need);
    assert_eq!(answer.decision.retry_after_us(), Some(3_600_000_000));
    assert_eq!((answer.lease, answer.receipt), (LeaseState::None, None));
}

#[test]
fn a_renewal_that_arrives_twice_charges_nothing_twice() {
    let mut key = Key::new("token-bucket capacity=1000 refill=1/h");
    key.lease(0, open(1, 100));
    let renewal = LeaseRequest { expires_us: Some(10), used: 60, ..open(1, 100) };
    assert_eq!(opened(&key.lease(5, renewal)), (100, 15));
    assert_eq!(key.remaining(5), 840);
    assert_eq!(opened(&key.lease(6, renewal)), (100, 16));
    assert_eq!(key.remaining(6), 840);
    // A request to open it that arrives late or again is a renewal too.
    assert_eq!(opened(&key.lease(7, open(1, 100))), (100, 17));
    assert_eq!(key.remaining(7), 840);
}

#[test]
fn a_lease_is_never_made_smaller_or_shorter() {
    let mut key = Key::new("token-bucket capacity=1000 refill=1/h");
    key.lease(0, open(1, 100));
    let short = LeaseRequest {
        expires_us: Some(10),
        lease_for: HoldTime::from_us(1).unwrap(),
        ..open(1, 3)
    };
    assert_eq!(opened(&key.lease(2, short)), (100, 10));
}

#[test]
fn a_lease_ends_with_its_window() {
    for algorithm in ["fixed-window", "sliding-window-counter"] {
        let mut key = Key::new(&format!("{algorithm} limit=100 window=25us"));
        assert_eq!(opened(&key.lease(20, open(1, 10))), (10, 24), "{algorithm}");
        let renewal = LeaseRequest { expires_us: Some(24), used: 4, ..open(1, 10) };
        assert_eq!(opened(&key.lease(23, renewal)), (10, 24), "{algorithm}");
        let ended = key.lease(24, LeaseRequest { used: 9, ..renewal });
        assert_eq!(ended.lease, LeaseState::Ended(EndedHold::Expired), "{algorithm}");
        // Nothing can be leased for the last microsecond of a window.
        assert_eq!(key.lease(24, open(2, 10)).lease, LeaseState::None, "{algorithm}");
        assert_eq!(opened(&key.lease(25, open(3, 10))).1, 35, "{algorithm}");
    }
}

#[test]
fn a_lease_that_has_ended_is_not_renewed_and_the_check_that_waits_is_decided() {
    let mut key = Key::new("token-bucket capacity=1000 refill=1/h");
    key.lease(0, open(1, 100));
    let late =
        LeaseRequest { expires_us: Some(10), used: 60, need: Some(Cost::ONE), ..open(1, 100) };
    let answer = key.lease(10, late);
    assert_eq!(answer.lease, LeaseState::Ended(EndedHold::Expired));
    assert_eq!((answer.decision.remaining, answer.decision.is_allowed()), (899, true));

    key.lease(20, open(2, 100));
    key.end(21, HoldReference { id: HoldId::of_lease(2), expires_us: 30 }, 0);
    let settled = LeaseRequest { expires_us: Some(30), ..open(2, 100) };
    let answer = key.lease(22, settled);
    assert_eq!(answer.lease, LeaseState::Ended(EndedHold::Unknown));
    assert!(!answer.decision.is_allowed());
    assert_eq!(key.remaining(22), 899);
}

#[test]
fn a_refused_check_leaves_the_units_of_the_lease_as_they_are() {
    let mut key = Key::new("token-bucket capacity=100 refill=1/h");
    key.lease(0, open(1, 10));
    let need =
        LeaseRequest { expires_us: Some(10), used: 4, need: Cost::new(95).ok(), ..open(1, 30) };
    let answer = key.lease(5, need);
    assert!(!answer.decision.is_allowed());
    assert_eq!(opened(&answer), (6, 15));
    assert_eq!(key.remaining(5), 90);
}

#[test]
fn a_key_with_no_place_for_one_more_hold_is_not_leased() {
    let mut key = Key::new("token-bucket capacity=100000 refill=1/h");
    for number in 0..MAX_HOLDS as u64 {
        key.lease(0, open(number, 1));
    }
    let one_more = LeaseRequest { need: Some(Cost::ONE), ..open(MAX_HOLDS as u64, 1) };
    let answer = key.lease(1, one_more);
    assert_eq!(answer.lease, LeaseState::None);
    assert!(answer.decision.is_allowed(), "the check needs no hold");
}

#[test]
fn concurrency_limits_and_shaping_buckets_cannot_be_leased() {
    for (text, error) in [
        ("concurrency limit=5 for=1s", HoldError::OnlyHolds),
        ("leaky-bucket capacity=5 leak=1/s mode=shaping", HoldError::Shaping),
    ] {
        let limit: Limit = text.parse().unwrap();
        let (mut state, mut holds) = (limit.fresh(), Holds::default());
        assert_eq!(limit.lease(&mut state, &mut holds, 0, open(1, 1)), Err(error));
        assert_eq!(limit.can_lease(), Err(error));
    }
}

/// An operation on a key that two processes lease.
#[derive(Clone, Debug)]
enum Operation {
    Wait(u64),
    Check(u64),
    Reserve(u64, u64),
    /// The lease, what was used of it in addition, the check that waits, what is wanted, the time.
    Lease(usize, u64, Option<u64>, u64, u64),
    End(usize, u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    let lease = (0..3_usize, 0..4_u64, prop::option::of(1..5_u64), 0..12_u64, 1..40_u64);
    prop_oneof![
        3 => (0..25_u64).prop_map(Operation::Wait),
        1 => (1..6_u64).prop_map(Operation::Check),
        1 => (1..6_u64, 1..40_u64).prop_map(|(cost, for_us)| Operation::Reserve(cost, for_us)),
        5 => lease.prop_map(|(lease, used, need, want, for_us)| {
            Operation::Lease(lease, used, need, want, for_us)
        }),
        1 => (0..3_usize, 0..4_u64).prop_map(|(lease, used)| Operation::End(lease, used)),
    ]
}

fn small_limit() -> impl Strategy<Value = Limit> {
    (1..30_u64, 1..60_u64, 0..5_usize).prop_map(|(size, us, algorithm)| {
        let text = match algorithm {
            0 => format!("fixed-window limit={size} window={us}us"),
            1 => format!("sliding-window-log limit={size} window={us}us"),
            2 => format!("sliding-window-counter limit={size} window={us}us"),
            3 => format!("token-bucket capacity={size} refill=3/{us}us"),
            _ => format!("leaky-bucket capacity={size} leak=2/{us}us"),
        };
        text.parse().unwrap()
    })
}

/// The lease as three operations that do not know of leases: a settlement in part, a check, an extension or reservation.
fn in_steps(key: &mut Key, now_us: u64, request: LeaseRequest) -> (bool, u64) {
    let Key { limit, state, holds } = key;
    let LeaseRequest { id, used, need, want, most, lease_for, .. } = request;
    let is_open =
        |holds: &Holds| holds.iter().any(|hold| hold.id == id && hold.expires_us > now_us);
    let reference = HoldReference { id, expires_us: request.expires_us.unwrap_or(u64::MAX) };
    let was_open = is_open(holds);
    let ends_us = now_us + lease_for.as_us();
    let ends_us = match limit {
        Limit::FixedWindow(_) | Limit::SlidingWindowCounter(_) => {
            let window_us = match limit {
                Limit::FixedWindow(limit) => limit.window_us(),
                Limit::SlidingWindowCounter(limit) => limit.window_us(),
                _ => unreachable!(),
            };
            ends_us.min(now_us / window_us * window_us + window_us - 1)
        }
        _ => ends_us,
    };
    if was_open {
        let used = HoldUse { units: used, is_last: false };
        limit.settle_hold(state, holds, now_us, reference, used);
        let moved = holds.iter().map(|hold| match hold.id == id {
            true => OpenHold { expires_us: hold.expires_us.max(ends_us), ..*hold },
            false => *hold,
        });
        *holds = Holds::of(moved.collect::<Vec<_>>());
    }
    let is_allowed = need.is_none_or(|cost| {
        limit.check_beside(state, holds, now_us, UnitRequest::new(cost)).decision.is_allowed()
    });
    let unused = |holds: &Holds| {
        holds
            .iter()
            .find(|hold| hold.id == id && hold.expires_us > now_us)
            .map_or(0, |hold| hold.units)
    };
    let has_ended = !was_open && request.expires_us.is_some();
    if !is_allowed || has_ended {
        return (is_allowed && need.is_some(), unused(holds));
    }
    let leases =
        holds.iter().filter(|hold| hold.id.is_lease() && hold.expires_us > now_us).count() as u64;
    let share = key.remaining(now_us) / (2 * (leases + u64::from(!was_open)));
    let more = want.min(most).saturating_sub(unused(&key.holds)).min(share);
    let Key { limit, state, holds } = key;
    match Cost::new(more) {
        Ok(more) if was_open => {
            let expires_us = holds.iter().find(|hold| hold.id == id).unwrap().expires_us;
            let hold_for = HoldTime::from_us(expires_us - now_us).unwrap();
            let growth = HoldGrowth { more: Some(more), hold_for };
            limit.extend_hold(state, holds, now_us, reference, growth);
        }
        Ok(cost) if ends_us > now_us => {
            let hold_for = HoldTime::from_us(ends_us - now_us).unwrap();
            limit.reserve(state, holds, now_us, Reservation { id, cost, hold_for }).unwrap();
        }
        _ => {}
    }
    (true, unused(holds))
}

proptest! {
    /// A lease is the composition of a settlement in part, a check and an extension; and the units that are spent and held
    /// grow by what is admitted and leased alone.
    #[test]
    fn a_lease_equals_a_settlement_a_check_and_an_extension(
        limit in small_limit(),
        operations in prop::collection::vec(operation(), 1..40),
    ) {
        let mut key = Key { limit, state: limit.fresh(), holds: Holds::default() };
        let mut now_us = 1_000_000;
        let mut known: [Option<(u64, u64)>; 3] = [None; 3]; // the expiry and what was used
        let mut numbers = [0, 1, 2]; // of the leases; none is used again
        let mut next = 100;
        for operation in operations {
            match operation {
                Operation::Wait(us) => now_us += us,
                Operation::Check(cost) => drop(key.check(now_us, Cost::new(cost).unwrap())),
                Operation::Reserve(cost, for_us) => {
                    next += 1;
                    let cost = Cost::new(cost).unwrap();
                    let hold_for = HoldTime::from_us(for_us).unwrap();
                    let reservation = Reservation { id: HoldId(next), cost, hold_for };
                    key.limit.reserve(&mut key.state, &mut key.holds, now_us, reservation).unwrap();
                }
                Operation::End(lease, more) => {
                    let Some((expires_us, used)) = known[lease].take() else { continue };
                    let hold = HoldReference { id: HoldId::of_lease(numbers[lease]), expires_us };
                    numbers[lease] += 3;
                    key.end(now_us, hold, used + more);
                }
                Operation::Lease(lease, more, need, want, for_us) => {
                    let used = known[lease].map_or(0, |(_, used)| used + more);
                    let request = LeaseRequest {
                        expires_us: known[lease].map(|(expires_us, _)| expires_us),
                        used,
                        need: need.map(|need| Cost::new(need).unwrap()),
                        most: 9,
                        lease_for: HoldTime::from_us(for_us).unwrap(),
                        ..open(numbers[lease], want)
                    };
                    let mut stepwise = key.clone();
                    let (is_allowed, unused) = in_steps(&mut stepwise, now_us, request);
                    let answer = key.lease(now_us, request);
                    prop_assert_eq!(answer.decision.is_allowed(), is_allowed);
                    prop_assert_eq!(answer.receipt.is_some(), is_allowed && need.is_some());
                    prop_assert_eq!(answer.decision.remaining, key.remaining(now_us));
                    prop_assert_eq!(key.remaining(now_us), stepwise.remaining(now_us));
                    prop_assert_eq!(&key.holds, &stepwise.holds);
                    let later_us = now_us + 7;
                    prop_assert_eq!(key.remaining(later_us), stepwise.remaining(later_us));
                    known[lease] = match answer.lease {
                        LeaseState::Open { unused: left, expires_us, .. } => {
                            prop_assert_eq!(left, unused);
                            Some((expires_us, used))
                        }
                        _ => {
                            numbers[lease] += 3;
                            None
                        }
                    };
                }
            }
        }
    }
}

/// A key and a process with a lease on it, while every way of using it is tried.
#[derive(Clone)]
struct Search {
    key: Key,
    /// The lease: its expiry, what is unused, and what was used.
    lease: Option<(u64, u64, u64)>,
    number: u64,
}

impl Search {
    fn ask(&self, now_us: u64, need: u64, want: u64) -> Option<Search> {
        let mut after = self.clone();
        let request = LeaseRequest {
            expires_us: self.lease.map(|(expires_us, ..)| expires_us),
            used: self.lease.map_or(0, |(_, _, used)| used),
            need: Cost::new(need).ok(),
            lease_for: HoldTime::from_us(2).unwrap(),
            ..open(self.number, want)
        };
        let answer = after.key.lease(now_us, request);
        after.lease = match answer.lease {
            LeaseState::Open { unused, expires_us, .. } => Some((expires_us, unused, request.used)),
            _ => None,
        };
        answer.decision.is_allowed().then_some(after)
    }
}

/// Returns the most units admitted in `[from_us, end_us)` by any sequence of operations that begins at `now_us`, at most
/// `steps` of them at one instant.
fn most(search: &Search, now_us: u64, (from_us, end_us): (u64, u64), steps: u64) -> u64 {
    let mut search = search.clone();
    if search.lease.is_some_and(|(expires_us, ..)| expires_us <= now_us) {
        search.lease = None;
        search.number += 1;
    }
    if now_us == end_us {
        return 0;
    }
    let counts = |units: u64| if now_us < from_us { 0 } else { units };
    let within = (from_us, end_us);
    let mut best = most(&search, now_us + 1, within, 2);
    if steps == 0 {
        return best;
    }
    if let Some((expires_us, unused, used)) = search.lease.filter(|(_, unused, _)| *unused > 0) {
        let mut hit = search.clone();
        hit.lease = Some((expires_us, 0, used + unused));
        best = best.max(counts(unused) + most(&hit, now_us, within, steps - 1));
    }
    if let Some((expires_us, _, used)) = search.lease {
        let mut ended = search.clone();
        ended.key.end(
            now_us,
            HoldReference { id: HoldId::of_lease(search.number), expires_us },
            used,
        );
        ended.lease = None;
        ended.number += 1;
        best = best.max(most(&ended, now_us, within, steps - 1));
    }
    let size = search.key.limit.size();
    for (need, want) in [(0, size), (size, 0), (1, size)] {
        if let Some(after) = search.ask(now_us, need, want) {
            best = best.max(counts(need) + most(&after, now_us, within, steps - 1));
        }
    }
    best
}

#[test]
fn no_use_of_leases_beats_the_bound_and_the_best_one_meets_it() {
    let limits = [
        ("fixed-window limit=4 window=2us", 2),
        ("fixed-window limit=2 window=3us", 3),
        ("sliding-window-log limit=4 window=3us", 1),
        ("sliding-window-counter limit=2 window=3us", 3),
        ("sliding-window-counter limit=4 window=3us", 3),
        ("token-bucket capacity=4 refill=2/3us", 1),
        ("leaky-bucket capacity=4 leak=1/2us", 1),
    ];
    for (text, phases) in limits {
        let limit: Limit = text.parse().unwrap();
        // The key and the lease may have been used for a while when the interval begins.
        for (interval_us, before_us) in [(1, 0), (2, 0), (3, 0), (1, 2), (2, 1)] {
            let best = (0..phases).map(|phase_us| {
                let search = Search { key: Key::new(text), lease: None, number: 0 };
                let from_us = 1_000 * phases + phase_us;
                most(&search, from_us - before_us, (from_us, from_us + interval_us), 2)
            });
            let (best, bound) = (best.max().unwrap(), limit.bound_over(interval_us).max_units);
            assert_eq!(best, bound, "{text} over {interval_us} us");
        }
    }
}
