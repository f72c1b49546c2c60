//! Keys with holds that move between a concurrency limit and any other.

use proptest::prelude::*;
use tollgate_core::{
    CarryOver, Cost, HoldId, HoldTime, Holds, Limit, LimitDecision, Reservation, State, UnitRequest,
};

/// A key under one of the limits of its name.
#[derive(Clone)]
struct MovingKey {
    under: Limit,
    state: State,
    holds: Holds,
    next: u64,
}

impl MovingKey {
    fn new(limit: Limit) -> MovingKey {
        MovingKey { under: limit, state: limit.fresh(), holds: Holds::default(), next: 0 }
    }

    /// Requests units of a limit as it must be requested: a concurrency limit by a reservation, any other by a check or
    /// a reservation.
    fn request(
        &mut self,
        limit: &Limit,
        now_us: u64,
        units: u64,
        hold_us: Option<u64>,
    ) -> LimitDecision {
        let cost = Cost::new(units).unwrap();
        let decides = self.carry_over(limit, now_us, cost);
        let hold_us = hold_us.or(limit.only_holds().then_some(10)).filter(|_| !limit.is_shaping());
        let (state, holds) = (&mut self.state, &mut self.holds);
        let Some(hold_us) = hold_us.filter(|_| decides.can_hold().is_ok()) else {
            return decides.check_beside(state, holds, now_us, UnitRequest::new(cost)).decision;
        };
        self.next += 1;
        let hold_for = HoldTime::from_us(hold_us).unwrap();
        let reservation = Reservation { id: HoldId(self.next), cost, hold_for };
        decides.reserve(state, holds, now_us, reservation).unwrap().decision
    }

    fn carry_over(&mut self, limit: &Limit, now_us: u64, cost: Cost) -> Limit {
        if self.under == *limit {
            return *limit;
        }
        let state = self.state.clone();
        match limit.carry_over_beside(&self.under, state, &mut self.holds, now_us, cost) {
            CarryOver::Done(state) => {
                (self.under, self.state) = (*limit, state);
                *limit
            }
            CarryOver::Stays { decides, state } => {
                self.state = state;
                decides
            }
        }
    }
}

fn other() -> impl Strategy<Value = Limit> {
    let window = (1..8_u64, 1..40_u64, 0..3_usize).prop_map(|(limit, window_us, algorithm)| {
        let name = ["fixed-window", "sliding-window-log", "sliding-window-counter"][algorithm];
        format!("{name} limit={limit} window={window_us}us")
    });
    let bucket =
        (1..8_u64, 1..6_u64, 1..20_u64, 0..3_usize).prop_map(|(capacity, units, per_us, kind)| {
            match kind {
                0 => format!("token-bucket capacity={capacity} refill={units}/{per_us}us"),
                1 => format!("leaky-bucket capacity={capacity} leak={units}/{per_us}us"),
                _ => {
                    format!("leaky-bucket capacity={capacity} leak={units}/{per_us}us mode=shaping")
                }
            }
        });
    let concurrency = (1..8_u64).prop_map(|limit| format!("concurrency limit={limit} for=9us"));
    prop_oneof![3 => window, 3 => bucket, 1 => concurrency].prop_map(|text| text.parse().unwrap())
}

proptest! {
    /// P2 and P4: a request of either limit is allowed after exactly its wait, and a refusal changes no later answer.
    #[test]
    fn waits_are_exact_while_a_key_moves_between_a_concurrency_limit_and_another(
        size in 1..8_u64,
        other in other(),
        steps in prop::collection::vec((0..20_u64, any::<bool>(), 1..9_u64, prop::option::of(1..30_u64)), 1..12),
    ) {
        let jobs: Limit = format!("concurrency limit={size} for=10us").parse().unwrap();
        let mut key = MovingKey::new(jobs);
        let mut now_us = 1_000_000;
        for (wait_us, is_other, units, hold_us) in steps {
            now_us += wait_us;
            let limit = if is_other { other } else { jobs };
            let decision = key.request(&limit, now_us, units, hold_us);
            if decision.is_allowed() {
                continue;
            }
            let Some(retry_us) = decision.retry_after_us() else {
                prop_assert!(units > limit.size(), "{limit} never admits {units}");
                continue;
            };
            prop_assert!(retry_us > 0);
            let mut early = key.clone();
            let too_early = early.request(&limit, now_us + retry_us - 1, units, hold_us);
            prop_assert!(!too_early.is_allowed(), "{limit} admits {units} too early");
            prop_assert_eq!(too_early.retry_after_us(), Some(1));
            for mut key in [early, key.clone()] {
                let in_time = key.request(&limit, now_us + retry_us, units, hold_us);
                prop_assert!(in_time.is_allowed(), "{limit} refuses {units} after its wait: {in_time:?}");
            }
        }
    }
}
