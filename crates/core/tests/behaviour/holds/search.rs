//! P11 with holds: no way to check, reserve, settle and let expire admits more than the bound of the limit.

use tollgate_core::{
    Cost, Extension, HoldGrowth, HoldId, HoldReference, HoldTime, HoldUse, Holds, Limit,
    Reservation, State, UnitRequest,
};

/// A key while every way of using it is tried.
#[derive(Clone)]
struct Search {
    state: State,
    holds: Holds,
    open: Vec<(HoldReference, u64)>,
    next: u64,
}

/// Returns the most units charged in `[now_us, end_us)` by any sequence of operations. A hold lasts 1 to 3 us.
fn most(limit: &Limit, key: &Search, now_us: u64, end_us: u64) -> u64 {
    if now_us == end_us {
        return 0;
    }
    let mut best = 0;
    // Expired holds are charged at this instant, before any operation.
    let expired: u64 =
        key.open.iter().filter(|(hold, _)| hold.expires_us == now_us).map(|(_, units)| units).sum();
    let mut key = key.clone();
    key.open.retain(|(hold, _)| hold.expires_us > now_us);
    best = best.max(expired + most(limit, &key, now_us + 1, end_us));
    for units in 1..=limit.size() {
        let mut checked = key.clone();
        let request = UnitRequest::new(Cost::new(units).unwrap());
        let answer = limit.check_beside(&mut checked.state, &mut checked.holds, now_us, request);
        if !answer.decision.is_allowed() {
            break;
        }
        best = best.max(expired + units + most(limit, &checked, now_us + 1, end_us));
        for for_us in 1..=3 {
            let mut held = key.clone();
            let (id, cost) = (HoldId(held.next), Cost::new(units).unwrap());
            let reservation =
                Reservation { id, cost, hold_for: HoldTime::from_us(for_us).unwrap() };
            let answer =
                limit.reserve(&mut held.state, &mut held.holds, now_us, reservation).unwrap();
            held.open.push((answer.hold.unwrap(), units));
            held.next += 1;
            best = best.max(expired + most(limit, &held, now_us + 1, end_us));
        }
    }
    for index in 0..key.open.len() {
        let mut settled = key.clone();
        let (hold, units) = settled.open.swap_remove(index);
        let used = HoldUse { units, is_last: true };
        limit.settle_hold(&mut settled.state, &mut settled.holds, now_us, hold, used);
        best = best.max(expired + units + most(limit, &settled, now_us + 1, end_us));
    }
    best
}

#[test]
fn no_use_of_holds_beats_the_bound_and_the_best_one_meets_it() {
    let limits = [
        ("fixed-window limit=2 window=2us", 2),
        ("fixed-window limit=1 window=3us", 3),
        ("sliding-window-log limit=2 window=3us", 1),
        ("sliding-window-counter limit=1 window=3us", 3),
        ("sliding-window-counter limit=2 window=3us", 3),
        ("token-bucket capacity=2 refill=2/3us", 1),
        ("leaky-bucket capacity=2 leak=1/2us", 1),
    ];
    for (text, phases) in limits {
        let limit: Limit = text.parse().unwrap();
        for interval_us in 1..=4 {
            let best = (0..phases).map(|phase_us| {
                let (state, holds) = (limit.fresh(), Holds::default());
                let key = Search { state, holds, open: Vec::new(), next: 0 };
                let start_us = 1_000 * phases + phase_us;
                most(&limit, &key, start_us, start_us + interval_us)
            });
            let (best, bound) = (best.max().unwrap(), limit.bound_over(interval_us).max_units);
            assert_eq!(best, bound, "{text} over {interval_us} us");
        }
    }
}

/// A key of a concurrency limit while every way of using it is tried, and what the limit should say of it.
#[derive(Clone)]
struct Running {
    state: State,
    holds: Holds,
    /// Each open hold, the units that it should have, and the units that partial settlements have used.
    open: Vec<(HoldReference, u64, u64)>,
    next: u64,
}

/// Reaches every state of a key by all sequences of `steps` operations, each at once or a microsecond after the one
/// before, and asserts that no more than the bound is held at any instant. Returns the most that is held.
fn most_held(limit: &Limit, key: &Running, now_us: u64, steps: u64) -> u64 {
    let mut key = key.clone();
    key.open.retain(|(hold, ..)| hold.expires_us > now_us);
    let held: u64 = key.open.iter().map(|(_, units, _)| units).sum();
    let bound = limit.bound_over(1).max_units;
    assert!(held <= bound, "{limit}: {held} held of {bound}");
    let one = limit.peek_beside(&key.state, &key.holds, now_us, Cost::ONE.into());
    assert_eq!(one.remaining, limit.size() - held, "{limit}: no unit is lost");
    if steps == 0 {
        return held;
    }
    let mut best = held;
    let mut follow = |key: &Running| {
        best = best.max(most_held(limit, key, now_us, steps - 1));
        best = best.max(most_held(limit, key, now_us + 1, steps - 1));
    };
    for units in 1..=limit.size() + 1 {
        let mut checked = key.clone();
        let request = UnitRequest::new(Cost::new(units).unwrap());
        let answer = limit.check_beside(&mut checked.state, &mut checked.holds, now_us, request);
        assert!(!answer.decision.is_allowed(), "{limit}: a check");
        for for_us in 1..=2 {
            let mut reserved = key.clone();
            let (id, cost) = (HoldId(key.next), Cost::new(units).unwrap());
            let hold_for = HoldTime::from_us(for_us).unwrap();
            let reservation = Reservation { id, cost, hold_for };
            let (state, holds) = (&mut reserved.state, &mut reserved.holds);
            let answer = limit.reserve(state, holds, now_us, reservation).unwrap();
            assert_eq!(answer.hold.is_some(), held + units <= limit.size(), "{limit}");
            let Some(hold) = answer.hold else { continue };
            reserved.open.push((hold, units, 0));
            reserved.next += 1;
            follow(&reserved);
        }
    }
    for index in 0..key.open.len() {
        let (hold, units, used) = key.open[index];
        for total in 0..=used + units + 1 {
            let mut settled = key.clone();
            let part = HoldUse { units: total, is_last: false };
            limit.settle_hold(&mut settled.state, &mut settled.holds, now_us, hold, part);
            let free = total.saturating_sub(used).min(units);
            settled.open[index] = (hold, units - free, used.max(total));
            follow(&settled);
        }
        let mut released = key.clone();
        let all = HoldUse { units: 0, is_last: true };
        limit.settle_hold(&mut released.state, &mut released.holds, now_us, hold, all);
        released.open.swap_remove(index);
        follow(&released);
        for more in [None, Some(Cost::ONE), Cost::new(2).ok()] {
            let mut extended = key.clone();
            let growth = HoldGrowth { more, hold_for: HoldTime::from_us(2).unwrap() };
            let (state, holds) = (&mut extended.state, &mut extended.holds);
            let answer = limit.extend_hold(state, holds, now_us, hold, growth);
            let more = more.map_or(0, Cost::units);
            match answer.extension {
                Extension::Granted { expires_us, .. } => {
                    extended.open[index] =
                        (HoldReference { expires_us, ..hold }, units + more, used);
                    follow(&extended);
                }
                refused => assert!(held + more > limit.size(), "{limit}: {refused:?}"),
            }
        }
    }
    best
}

#[test]
fn concurrency_limit_never_holds_more_than_its_bound_and_can_hold_as_much() {
    for (text, steps) in [("concurrency limit=1 for=2us", 5), ("concurrency limit=2 for=2us", 4)] {
        let limit: Limit = text.parse().unwrap();
        let (state, holds) = (limit.fresh(), Holds::default());
        let key = Running { state, holds, open: Vec::new(), next: 0 };
        assert_eq!(most_held(&limit, &key, 1_000, steps), limit.size(), "{text}");
    }
}

/// Holds from before the interval must not add to what is charged in it.
#[test]
fn holds_from_before_the_interval_stay_within_the_bound() {
    for text in [
        "fixed-window limit=2 window=2us",
        "sliding-window-log limit=2 window=2us",
        "sliding-window-counter limit=1 window=3us",
        "token-bucket capacity=2 refill=1/2us",
    ] {
        let limit: Limit = text.parse().unwrap();
        for (before_us, for_us) in [(1, 2), (1, 3), (2, 3), (3, 4), (5, 6)] {
            for units in 1..=limit.size() {
                for phase_us in 0..limit.bound().interval_us {
                    let start_us = 1_000 * limit.bound().interval_us + phase_us;
                    let mut key = Search {
                        state: limit.fresh(),
                        holds: Holds::default(),
                        open: Vec::new(),
                        next: 1,
                    };
                    let (id, cost) = (HoldId(0), Cost::new(units).unwrap());
                    let answer = limit
                        .reserve(
                            &mut key.state,
                            &mut key.holds,
                            start_us - before_us,
                            Reservation { id, cost, hold_for: HoldTime::from_us(for_us).unwrap() },
                        )
                        .unwrap();
                    key.open.push((answer.hold.unwrap(), units));
                    for interval_us in 1..=3 {
                        let best = most(&limit, &key, start_us, start_us + interval_us);
                        let bound = limit.bound_over(interval_us).max_units;
                        assert!(best <= bound, "{text} over {interval_us} us: {best} of {bound}");
                    }
                }
            }
        }
    }
}
