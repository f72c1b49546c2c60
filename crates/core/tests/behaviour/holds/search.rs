//! P11 with holds: no way to check, reserve, settle and let expire admits more than the bound of the limit.

use tollgate_core::{
    Cost, HoldId, HoldReference, HoldTime, HoldUse, Holds, Limit, Reservation, State, UnitRequest,
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
