//! The fast path for one unit, compared with the full check.

use proptest::prelude::*;
use tollgate_core::store::{FastPath, LogFastPath, LogStorage};
use tollgate_core::{
    Algorithm, CheckResult, Cost, Entry, FixedWindow, Limit, Log, SlidingWindowCounter,
    SlidingWindowLog, State, UnitRequest,
};

use tollgate_conformance::any;
use tollgate_conformance::trace::{self, Walk};

proptest! {
    /// On the states of a trace, also when its clock steps.
    #[test]
    fn fast_path_agrees_with_the_full_check(limit in any::limit(), steps in trace::any()) {
        let mut walk = Walk::new(limit);
        for step in &steps {
            let Some(cost) = walk.aim(step) else { break };
            agree(&limit, &walk.state, walk.now_us)?;
            walk.check(cost);
            agree(&limit, &walk.state, walk.now_us)?;
        }
    }

    /// On states that no limit ever wrote, and with sizes that no constructor accepts: both agree and neither panics,
    /// except that a fraction of more than a unit, which has no meaning, may be decided differently.
    #[test]
    fn fast_path_agrees_with_the_full_check_on_corrupt_states(
        limit in any::limit(),
        size in prop_oneof![0..3_u64, any::<u64>()],
        hostile in prop_oneof![4 => any::state(), 1 => any_log()],
        now_us in prop_oneof![any::<u64>(), 0..40_u64],
    ) {
        for limit in [limit, with_size(&limit, size)] {
            match has_meaning(&limit, &hostile) {
                true => agree(&limit, &hostile, now_us)?,
                false => drop(check_one(&limit, &mut hostile.clone(), now_us)),
            }
        }
    }
}

/// Logs of charges in order of time, some at the same time.
fn any_log() -> impl Strategy<Value = State> {
    let units = prop_oneof![3 => Just(1), 1 => 1..4_u64];
    let charges = prop::collection::vec((0..60_u64, units), 0..9);
    let later_us = prop_oneof![Just(0), 0..10_u64];
    (charges, later_us).prop_map(|(mut charges, later_us)| {
        charges.sort_by_key(|&(at_us, _)| at_us);
        let charged_us = charges.last().map_or(0, |(at_us, _)| at_us + later_us);
        let entry = |(at_us, units)| Entry { at_us, cost: Cost::new(units).unwrap() };
        State::Log(Log::of(charged_us, charges.into_iter().map(entry)))
    })
}

fn has_meaning(limit: &Limit, state: &State) -> bool {
    let rate = match limit {
        Limit::TokenBucket(limit) => limit.refill(),
        Limit::LeakyBucket(limit) => limit.leak(),
        _ => return true,
    };
    !matches!(state, State::Fill(fill) if fill.level.fraction >= rate.per_us())
}

fn with_size(limit: &Limit, size: u64) -> Limit {
    match limit {
        Limit::FixedWindow(limit) => limit.with_size(size).into(),
        Limit::SlidingWindowLog(limit) => limit.with_size(size).into(),
        Limit::SlidingWindowCounter(limit) => limit.with_size(size).into(),
        Limit::TokenBucket(limit) => limit.with_size(size).into(),
        Limit::LeakyBucket(limit) => limit.with_size(size).into(),
        Limit::Concurrency(limit) => limit.with_size(size).into(),
    }
}

fn agree(limit: &Limit, state: &State, now_us: u64) -> Result<(), TestCaseError> {
    let agrees = |short: CheckResult, after: &State| {
        let mut wanted = state.clone();
        prop_assert_eq!(short, limit.check(&mut wanted, now_us, UnitRequest::new(Cost::ONE)));
        prop_assert_eq!(after, &wanted);
        Ok(())
    };
    if let Some(refused) = refuse_one(limit, state, now_us) {
        agrees(refused, state)?;
    }
    let mut after = state.clone();
    match check_one(limit, &mut after, now_us) {
        Some(short) => agrees(short, &after)?,
        None => prop_assert_eq!(&after, state, "undecided, but the state changed"),
    }
    Ok(())
}

fn refuse_one(limit: &Limit, state: &State, now_us: u64) -> Option<CheckResult> {
    match (limit, state) {
        (Limit::SlidingWindowLog(limit), State::Log(log)) => {
            limit.refuse_one(log.as_three_units()?, now_us)
        }
        _ => None,
    }
}

fn check_one(limit: &Limit, state: &mut State, now_us: u64) -> Option<CheckResult> {
    match (limit, state) {
        (Limit::FixedWindow(limit), State::Window(state)) => limit.check_one(state, now_us),
        (Limit::SlidingWindowCounter(limit), State::WindowPair(state)) => {
            limit.check_one(state, now_us)
        }
        (Limit::TokenBucket(limit), State::Fill(state)) => limit.check_one(state, now_us),
        (Limit::LeakyBucket(limit), State::Fill(state)) => limit.check_one(state, now_us),
        (Limit::SlidingWindowLog(limit), State::Log(state)) => {
            if let Some(mut log) = state.as_three_units()
                && let Some(checked) = limit.check_one(&mut log, now_us)
            {
                *state = Log::from(log);
                return Some(checked);
            }
            let full = state.clone();
            limit.check_one_in_log(state, now_us).or_else(|| {
                assert_eq!(*state, full, "undecided, but the state changed");
                state.reserve_one();
                limit.check_one_in_log(state, now_us)
            })
        }
        _ => None,
    }
}

/// Most requests take the fast path: they are allowed, on a known key, in the window last charged.
#[test]
fn fast_path_decides_common_requests() {
    const NOW_US: u64 = 1_800_000_000_000_000;
    for limit in [
        "fixed-window limit=3 window=1m",
        "sliding-window-counter limit=3 window=1m",
        "sliding-window-log limit=3 window=1ms",
        "sliding-window-log limit=3 window=1m",
        "sliding-window-log limit=2 window=1500us",
        "token-bucket capacity=3 refill=1/s",
        "token-bucket capacity=3 refill=7/s",
        "token-bucket capacity=1000000000 refill=1/ms",
        "leaky-bucket capacity=3 leak=1/s mode=policing",
        "leaky-bucket capacity=3 leak=3/7ms mode=shaping",
    ] {
        let limit: Limit = limit.parse().unwrap();
        let mut state = limit.fresh();
        limit.check(&mut state, NOW_US, UnitRequest::new(Cost::ONE));
        for now_us in [NOW_US + 1_000, NOW_US + 2_000] {
            let answer = check_one(&limit, &mut state, now_us).map(|checked| checked.decision);
            assert!(answer.is_some_and(|decision| decision.is_allowed()), "{limit} at {now_us}");
        }
    }
}

/// A log of a few charges has a fast path for refusals, until enough charges have left.
#[test]
fn fast_refusal_ends_when_enough_charges_have_left() {
    for (size, retry_us) in [(1, 1_002), (2, 1_001), (3, 1_000)] {
        let limit: Limit = format!("sliding-window-log limit={size} window=1ms").parse().unwrap();
        let entry = |at_us| Entry { at_us, cost: Cost::ONE };
        let state = State::Log(Log::of(5_002, [5_000, 5_001, 5_002].map(entry)));
        let refused = refuse_one(&limit, &state, 5_002).unwrap().decision;
        assert_eq!(refused.retry_after_us(), Some(retry_us - 2), "{limit}");
        assert_eq!(refuse_one(&limit, &state, 5_000 + retry_us), None, "{limit}");
        assert_eq!(refuse_one(&limit, &state, 5_001), None, "{limit}: an earlier time");
    }
}

/// When very many charges leave a log at once, the full check searches; the fast path would walk past them at every
/// refusal.
#[test]
fn fast_path_declines_when_hundreds_of_charges_leave() {
    let limit = SlidingWindowLog::new(1_000, core::time::Duration::from_millis(1)).unwrap();
    let entry = |at_us| Entry { at_us, cost: Cost::ONE };
    let log = Log::of(1_050, (1..=100).chain([1_050]).map(entry));
    for (now_us, is_short) in [(1_060, true), (1_064, true), (1_065, false), (1_101, false)] {
        let mut after = log.clone();
        let short = limit.check_one_in_log(&mut after, now_us);
        assert_eq!(short.is_some(), is_short, "at {now_us}");
        assert_eq!(after != log, is_short, "at {now_us}");
        let long = limit.check(&mut log.clone(), now_us, UnitRequest::new(Cost::ONE));
        assert!(short.is_none_or(|short| short == long), "at {now_us}");
    }
}

/// A refusal, an earlier time, another window and numbers beyond 64 bits are left to the full check.
#[test]
fn fast_path_declines_uncommon_requests() {
    let fixed = FixedWindow::new(1, core::time::Duration::from_millis(1)).unwrap();
    let counter = SlidingWindowCounter::new(1, core::time::Duration::from_millis(1)).unwrap();
    for (limit, now_us) in [
        (fixed.into(), 5_500),
        (fixed.into(), 6_000),
        (fixed.into(), 4_999),
        (counter.into(), 5_500),
        (counter.into(), 6_000),
        ("token-bucket capacity=1 refill=1/s".parse().unwrap(), 5_500),
        ("token-bucket capacity=2 refill=1/s".parse().unwrap(), 4_999),
        (
            "token-bucket capacity=9007199254740991 refill=9007199254740991/7d".parse().unwrap(),
            5_500,
        ),
        ("sliding-window-log limit=1 window=1ms".parse().unwrap(), 5_500),
    ] {
        let limit: Limit = limit;
        let mut state = limit.fresh();
        assert!(limit.check(&mut state, 5_000, UnitRequest::new(Cost::ONE)).decision.is_allowed());
        let before = state.clone();
        assert_eq!(check_one(&limit, &mut state, now_us), None, "{limit} at {now_us}");
        assert_eq!(state, before, "{limit} at {now_us}");
    }
}
