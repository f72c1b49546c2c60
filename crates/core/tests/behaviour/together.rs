//! P7: a check of several limits charges all of them or none.

use proptest::prelude::*;
use tollgate_core::{
    CombinedDecision, Cost, Intent, Limit, LimitCheck, Retry, Role, State, TightestLimit,
    UnitRequest, Verdict, check_all,
};

use tollgate_conformance::any;
use tollgate_conformance::trace::{self, Walk};

/// Makes one request on the limits of all walks.
fn check(
    walks: &mut [Walk],
    costs: &[Cost],
    manners: &[Manner],
    now_us: u64,
) -> (CombinedDecision, Vec<tollgate_core::LimitDecision>) {
    let limits: Vec<Limit> = walks.iter().map(|walk| walk.limit).collect();
    let mut charges: Vec<_> = walks
        .iter_mut()
        .zip(&limits)
        .zip(costs.iter().zip(manners))
        .map(|((walk, limit), (&cost, &(role, intent)))| {
            LimitCheck::enforced(limit, &mut walk.state, cost).with(role, intent)
        })
        .collect();
    let combined = check_all(&mut charges, now_us);
    let decisions = charges.iter().map(|charge| *charge.decision().unwrap()).collect();
    (combined, decisions)
}

/// A limit's role and intent in a joint check.
type Manner = (Role, Intent);

fn manner() -> impl Strategy<Value = Manner> {
    let role = prop_oneof![3 => Just(Role::Enforced), 1 => Just(Role::Shadow)];
    let intent = prop_oneof![3 => Just(Intent::Charge), 1 => Just(Intent::Peek)];
    (role, intent)
}

proptest! {
    #[test]
    fn all_are_charged_or_none(
        limits in prop::collection::vec((any::limit(), manner()), 1..5),
        steps in trace::any(),
    ) {
        let (limits, manners): (Vec<_>, Vec<_>) = limits.into_iter().unzip();
        let mut walks: Vec<Walk> = limits.into_iter().map(Walk::new).collect();
        for step in &steps {
            let Some(first) = walks[0].aim(step) else { break };
            let now_us = walks[0].now_us;
            // Each limit has another cost, as rules may have.
            let costs: Vec<Cost> = (0..walks.len())
                .map(|index| if index == 0 { first } else { Cost::new(index as u64).unwrap() })
                .collect();
            let mut alone: Vec<Walk> = walks.clone();
            for (walk, (_, intent)) in alone.iter_mut().zip(&manners) {
                if *intent == Intent::Charge {
                    walk.limit.restart_clock(&mut walk.state, now_us);
                }
            }
            let (combined, decisions) = check(&mut walks, &costs, &manners, now_us);
            let fits: Vec<bool> = alone
                .iter()
                .zip(&costs)
                .map(|(walk, &cost)| walk.limit.peek(&walk.state, now_us, cost.into()).is_allowed())
                .collect();
            let admitted =
                (0..fits.len()).all(|index| fits[index] || manners[index].0 == Role::Shadow);
            prop_assert_eq!(combined.verdict.is_allowed(), admitted);
            for (index, walk) in walks.iter().enumerate() {
                let mut expected = alone[index].state.clone();
                let request = UnitRequest::new(costs[index]);
                let charged = admitted && fits[index] && manners[index].1 == Intent::Charge;
                let decision = if charged {
                    walk.limit.check(&mut expected, now_us, request).decision
                } else {
                    walk.limit.peek(&expected, now_us, request)
                };
                prop_assert_eq!(&walk.state, &expected);
                prop_assert_eq!(&decisions[index], &decision);
            }
            combined_is_exact(&walks, &costs, &manners, now_us, &combined)?;
        }
    }
}

/// The combined wait and the combined remaining keep P1 and P2 too, as if limits that are only read were charged.
fn combined_is_exact(
    walks: &[Walk],
    costs: &[Cost],
    manners: &[Manner],
    now_us: u64,
    combined: &CombinedDecision,
) -> Result<(), TestCaseError> {
    let again_after = |wait_us: u64| check(&mut walks.to_vec(), costs, manners, now_us + wait_us).0;
    match combined.verdict {
        Verdict::Denied { retry } => {
            prop_assert!(
                combined.refused_by.is_some_and(|index| manners[index].0 == Role::Enforced)
            );
            if let Retry::AfterUs(wait_us) = retry {
                prop_assert!(again_after(wait_us).verdict.is_allowed());
                prop_assert!(!again_after(wait_us - 1).verdict.is_allowed());
            }
        }
        Verdict::Allowed { .. } => prop_assert_eq!(combined.refused_by, None),
    }
    let Some(remaining) = requests_remaining(combined) else {
        prop_assert!(manners.iter().all(|&(role, _)| role == Role::Shadow));
        return Ok(());
    };
    let mut walks = walks.to_vec();
    let all_charged: Vec<Manner> = manners.iter().map(|it| (it.0, Intent::Charge)).collect();
    for _ in 0..remaining.min(10) {
        prop_assert!(check(&mut walks, costs, &all_charged, now_us).0.verdict.is_allowed());
    }
    if remaining <= 10 {
        prop_assert!(!check(&mut walks, costs, &all_charged, now_us).0.verdict.is_allowed());
    }
    Ok(())
}

fn requests_remaining(combined: &CombinedDecision) -> Option<u64> {
    combined.tightest.map(|tightest| tightest.requests_remaining)
}

fn limit(text: &str) -> (Limit, State) {
    let limit: Limit = text.parse().unwrap();
    (limit, limit.fresh())
}

#[test]
fn refused_request_charges_no_limit() {
    let (small, mut one) = limit("fixed-window limit=1 window=1m");
    let (large, mut many) = limit("token-bucket capacity=100 refill=1/s");
    let mut check = || {
        let mut charges = [
            LimitCheck::enforced(&large, &mut many, Cost::ONE),
            LimitCheck::enforced(&small, &mut one, Cost::ONE),
        ];
        let combined = check_all(&mut charges, 0);
        (combined, charges.map(|mut charge| charge.take_receipt().is_some()))
    };
    assert_eq!(check().1, [true, true]);
    let (refused, receipts) = check();
    assert_eq!(refused.refused_by, Some(1));
    assert_eq!(refused.verdict.retry_after_us(), Some(60_000_000));
    assert_eq!(receipts, [false, false]);
    assert_eq!(large.peek(&many, 0, Cost::ONE.into()).remaining, 99);
}

#[test]
fn refused_by_is_the_limit_with_the_longest_wait() {
    let (second, mut a) = limit("fixed-window limit=1 window=1s");
    let (minute, mut b) = limit("fixed-window limit=1 window=1m");
    let (tiny, mut c) = limit("fixed-window limit=1 window=1s");
    let mut check = |tiny_cost: u64| {
        let tiny_cost = Cost::new(tiny_cost).unwrap();
        check_all(
            &mut [
                LimitCheck::enforced(&second, &mut a, Cost::ONE),
                LimitCheck::enforced(&minute, &mut b, Cost::ONE),
                LimitCheck::enforced(&tiny, &mut c, tiny_cost),
            ],
            0,
        )
    };
    assert_eq!(check(1).refused_by, None);
    assert_eq!(check(1).refused_by, Some(1));
    // A cost that never fits counts as the longest wait.
    let never = check(2);
    assert_eq!(
        (never.refused_by, never.verdict),
        (Some(2), Verdict::Denied { retry: Retry::Never })
    );
}

#[test]
fn shadow_limit_never_refuses_and_is_charged_only_when_it_fits() {
    let (enforced, mut live) = limit("fixed-window limit=3 window=1m");
    let (candidate, mut trial) = limit("fixed-window limit=1 window=1m");
    let mut check = || {
        let mut charges = [
            LimitCheck::shadow(&candidate, &mut trial, Cost::ONE),
            LimitCheck::enforced(&enforced, &mut live, Cost::ONE),
        ];
        let combined = check_all(&mut charges, 0);
        (
            combined.verdict.is_allowed(),
            charges[0].decision().unwrap().is_allowed(),
            requests_remaining(&combined),
        )
    };
    assert_eq!(check(), (true, true, Some(2)));
    assert_eq!(check(), (true, false, Some(1)));
    assert_eq!(check(), (true, false, Some(0)));
    assert_eq!(check(), (false, false, Some(0)));
}

#[test]
fn peek_refuses_what_a_charge_would_and_is_never_charged() {
    let (peeked_at, mut seen) = limit("fixed-window limit=3 window=1m");
    let (charged, mut spent) = limit("fixed-window limit=10 window=1h");
    let two = Cost::new(2).unwrap();
    let mut check = |at_most: Cost| {
        let mut charges = [
            LimitCheck::enforced(&peeked_at, &mut seen, at_most).with(Role::Enforced, Intent::Peek),
            LimitCheck::enforced(&charged, &mut spent, two),
        ];
        let combined = check_all(&mut charges, 0);
        let decided = charges.map(|mut charge| {
            (charge.decision().unwrap().remaining, charge.take_receipt().is_some())
        });
        (
            combined.verdict.retry_after_us(),
            combined.refused_by,
            requests_remaining(&combined),
            decided,
        )
    };
    for left in [8, 6] {
        let answer = check(two);
        assert_eq!(answer, (None, None, Some(1), [(3, false), (left, true)]));
    }
    let refused = check(Cost::new(4).unwrap());
    assert_eq!(refused, (None, Some(0), Some(0), [(3, false), (6, false)]));
    assert_eq!(seen, peeked_at.fresh());
}

#[test]
fn shadow_peek_reports_its_decision_and_refuses_nothing() {
    let (peeked_at, mut seen) = limit("fixed-window limit=1 window=1m");
    let (charged, mut spent) = limit("fixed-window limit=10 window=1h");
    let two = Cost::new(2).unwrap();
    let mut charges = [
        LimitCheck::enforced(&peeked_at, &mut seen, two).with(Role::Shadow, Intent::Peek),
        LimitCheck::enforced(&charged, &mut spent, two),
    ];
    let combined = check_all(&mut charges, 0);
    assert!(combined.verdict.is_allowed());
    assert_eq!((combined.refused_by, requests_remaining(&combined)), (None, Some(4)));
    assert!(!charges[0].decision().unwrap().is_allowed());
}

/// A charge restarts a key's time on a new clock, even when it is refused. A peek does not change the state.
#[test]
fn peek_on_a_new_clock_decides_as_a_check_would_and_changes_nothing() {
    for text in [
        "fixed-window limit=3 window=1m",
        "sliding-window-log limit=3 window=1m",
        "sliding-window-counter limit=3 window=1m",
        "token-bucket capacity=3 refill=1/m",
        "leaky-bucket capacity=3 leak=1/m mode=policing",
        "leaky-bucket capacity=3 leak=1/m mode=shaping",
    ] {
        let (limit, mut state) = limit(text);
        let (three, noon_us) = (Cost::new(3).unwrap(), 43_200_000_000);
        assert!(limit.check(&mut state, noon_us, three.into()).decision.is_allowed());
        let before = state.clone();
        let request = UnitRequest::new(Cost::ONE).within_us(u64::MAX);
        let mut peek =
            [LimitCheck::enforced(&limit, &mut state, request).with(Role::Enforced, Intent::Peek)];
        let peeked = check_all(&mut peek, noon_us / 2);
        assert_eq!(state, before, "{text}");
        let checked =
            check_all(&mut [LimitCheck::enforced(&limit, &mut state, request)], noon_us / 2);
        assert_eq!(peeked, checked, "{text}");
        assert_ne!(state, before, "{text}");
    }
}

#[test]
fn check_of_no_limits_is_allowed() {
    let combined = check_all(&mut [], 0);
    assert!(combined.verdict.is_allowed());
    assert_eq!(combined.tightest, None);
}

#[test]
fn refused_by_is_the_first_limit_when_waits_are_equal() {
    let (minute, mut a) = limit("fixed-window limit=1 window=1m");
    let (other, mut b) = limit("fixed-window limit=1 window=1m");
    let mut check = || {
        let mut charges = [
            LimitCheck::enforced(&minute, &mut a, Cost::ONE),
            LimitCheck::enforced(&other, &mut b, Cost::ONE),
        ];
        check_all(&mut charges, 0).refused_by
    };
    assert_eq!(check(), None);
    assert_eq!(check(), Some(0));
}

#[test]
fn joint_check_reports_the_longest_delay_and_the_last_reset() {
    let (slow, mut a) = limit("leaky-bucket capacity=10 leak=1/s mode=shaping");
    let (fast, mut b) = limit("leaky-bucket capacity=10 leak=10/s mode=shaping");
    let mut check = |slow_first: bool| {
        let (slow, fast) = (
            LimitCheck::enforced(&slow, &mut a, Cost::ONE),
            LimitCheck::enforced(&fast, &mut b, Cost::ONE),
        );
        let mut charges = if slow_first { [slow, fast] } else { [fast, slow] };
        let combined = check_all(&mut charges, 0);
        (combined.verdict.delay_us(), combined.reset_after_us)
    };
    assert_eq!(check(true), (0, 1_000_000));
    assert_eq!(check(true), (1_000_000, 2_000_000));
    assert_eq!(check(false), (2_000_000, 3_000_000));
}

/// For a caller that waits at most 2.5 s two more requests fit, and not nine, for which there is capacity.
#[test]
fn requests_remaining_depends_on_max_wait() {
    let (queue, mut state) = limit("leaky-bucket capacity=10 leak=1/s mode=shaping");
    let request = UnitRequest::new(Cost::ONE).within_us(2_500_000);
    let mut check = || check_all(&mut [LimitCheck::enforced(&queue, &mut state, request)], 0);
    assert_eq!(requests_remaining(&check()), Some(2));
    assert_eq!(requests_remaining(&check()), Some(1));
    assert_eq!(requests_remaining(&check()), Some(0));
    assert_eq!(check().verdict.retry_after_us(), Some(500_000));
}

#[test]
fn tightest_limit_reports_its_own_units() {
    let (large, mut a) = limit("fixed-window limit=600 window=1m");
    let (small, mut b) = limit("fixed-window limit=100 window=1h");
    let mut check = |cost_of_large: u64| {
        let mut charges = [
            LimitCheck::enforced(&large, &mut a, Cost::new(cost_of_large).unwrap()),
            LimitCheck::enforced(&small, &mut b, Cost::ONE),
        ];
        let TightestLimit { limit, remaining, requests_remaining, .. } =
            check_all(&mut charges, 0).tightest.unwrap();
        (limit, remaining, requests_remaining)
    };
    assert_eq!(check(10), (600, 590, 59), "59 more requests of 10, and 99 of 1");
    assert_eq!(check(1), (100, 98, 98), "589 more requests of 1 fit the other limit");
    assert_eq!(check(590), (600, 589, 0), "the refusing limit, with its own units");
}

#[test]
fn tightest_of_equals_is_the_limit_that_resets_last() {
    for windows in [["1m", "1h"], ["1h", "1m"]] {
        let mut limits =
            windows.map(|window| limit(&format!("fixed-window limit=5 window={window}")));
        let mut charges =
            limits.each_mut().map(|(limit, state)| LimitCheck::enforced(limit, state, Cost::ONE));
        let combined = check_all(&mut charges, 0);
        assert_eq!(combined.tightest.unwrap().reset_after_us, 3_600_000_000);
    }
}
