//! Limits compared with models that keep the whole history, and with each other.

use proptest::prelude::*;
use tollgate_core::{Cost, LeakyBucket, Limit, Rate, TokenBucket, UnitRequest};

use tollgate_conformance::any;
use tollgate_conformance::trace::{self, Walk};

/// A model of a limit: every admitted request. It computes each answer from all of them.
struct History {
    limit: Limit,
    admitted: Vec<(u64, u64)>,
}

impl History {
    fn spent_between(&self, from_us: u64, to_us: u64) -> u128 {
        let within = self.admitted.iter().filter(|(at_us, _)| (from_us..to_us).contains(at_us));
        within.map(|&(_, cost)| u128::from(cost)).sum()
    }

    /// Whole units spent at `now_us`, rounded the way the limit rounds.
    fn spent(&self, now_us: u64) -> u128 {
        match self.limit {
            Limit::FixedWindow(limit) => {
                self.spent_between(now_us - now_us % limit.window_us(), now_us + 1)
            }
            Limit::SlidingWindowLog(limit) => {
                self.spent_between(now_us + 1 - limit.window_us(), now_us + 1)
            }
            Limit::SlidingWindowCounter(limit) => {
                let window_us = limit.window_us();
                let start_us = now_us - now_us % window_us;
                let previous = self.spent_between(start_us - window_us, start_us);
                let in_view_us = u128::from(window_us - now_us % window_us);
                self.spent_between(start_us, now_us + 1)
                    + previous * in_view_us / u128::from(window_us)
            }
            Limit::TokenBucket(_) | Limit::LeakyBucket(_) => {
                let rate = self.rate();
                self.level_parts(now_us).div_ceil(u128::from(rate.per_us()))
            }
            Limit::Concurrency(_) => 0,
        }
    }

    fn rate(&self) -> Rate {
        match self.limit {
            Limit::TokenBucket(limit) => limit.refill(),
            Limit::LeakyBucket(limit) => limit.leak(),
            _ => unreachable!("only buckets have a rate"),
        }
    }

    /// The bucket's level in parts of a unit. One unit has one part for each microsecond of the rate's period.
    fn level_parts(&self, now_us: u64) -> u128 {
        let rate = self.rate();
        let (mut level, mut as_of_us) = (0_u128, 0);
        for &(at_us, cost) in self.admitted.iter().chain([&(now_us, 0)]) {
            let drained = u128::from(at_us - as_of_us).saturating_mul(u128::from(rate.units()));
            level = level.saturating_sub(drained) + u128::from(cost) * u128::from(rate.per_us());
            as_of_us = at_us;
        }
        level
    }
}

proptest! {
    #[test]
    fn every_limit_agrees_with_a_model_of_its_whole_history(limit in any::limit(), steps in trace::forward()) {
        let mut walk = Walk::new(limit);
        let mut history = History { limit, admitted: Vec::new() };
        for step in &steps {
            let Some(cost) = walk.aim(step) else { break };
            let now_us = walk.now_us;
            let fits = history.spent(now_us) + u128::from(cost.units()) <= u128::from(limit.size());
            let delay_us = match limit {
                Limit::LeakyBucket(it) if it.mode() == tollgate_core::Mode::Shaping => {
                    history.level_parts(now_us).div_ceil(u128::from(history.rate().units()))
                }
                _ => 0,
            };
            let decision = walk.check(cost).decision;
            prop_assert_eq!(decision.is_allowed(), fits);
            if fits {
                prop_assert_eq!(u128::from(decision.delay_us()), delay_us);
                history.admitted.push((now_us, cost.units()));
            }
            let spent = u128::from(limit.size() - decision.remaining);
            prop_assert_eq!(spent, history.spent(now_us));
        }
    }

    #[test]
    fn token_bucket_and_policing_leaky_bucket_decide_alike(
        (capacity, rate) in any::capacity_and_rate(),
        steps in trace::any(),
    ) {
        let bucket = TokenBucket::new(capacity, rate).unwrap();
        let policing = LeakyBucket::policing(capacity, rate).unwrap();
        prop_assert_eq!(policing.as_token_bucket(), Some(&bucket));
        let (mut tokens, mut level) = (Walk::new(bucket.into()), Walk::new(policing.into()));
        for step in &steps {
            let Some(cost) = tokens.aim(step) else { break };
            level.now_us = tokens.now_us;
            prop_assert_eq!(tokens.check(cost), level.check(cost));
        }
    }

    #[test]
    fn shaping_admits_what_policing_does_and_spaces_it_out(
        (capacity, rate) in any::capacity_and_rate(),
        steps in trace::any(),
    ) {
        let bucket = LeakyBucket::shaping(capacity, rate).unwrap();
        prop_assert_eq!(bucket.as_token_bucket(), None);
        let mut shaping = Walk::new(bucket.into());
        let mut policing = Walk::new(LeakyBucket::policing(capacity, rate).unwrap().into());
        for step in &steps {
            let Some(cost) = shaping.aim(step) else { break };
            policing.now_us = shaping.now_us;
            let (shaped, policed) = (shaping.check(cost).decision, policing.check(cost).decision);
            prop_assert_eq!(shaped.remaining, policed.remaining);
            prop_assert_eq!(shaped.reset_after_us, policed.reset_after_us);
            prop_assert_eq!(shaped.retry_after_us(), policed.retry_after_us());
            prop_assert_eq!(policed.delay_us(), 0);
        }
    }

    #[test]
    fn shaping_releases_requests_no_faster_than_it_leaks(
        (capacity, rate) in any::capacity_and_rate(),
        steps in trace::forward(),
    ) {
        let mut walk = Walk::new(LeakyBucket::shaping(capacity, rate).unwrap().into());
        // The time at which the last admitted request has left with all its units, in parts of a microsecond.
        let parts = u128::from(rate.units());
        let mut free_at = 0_u128;
        for step in &steps {
            let Some(cost) = walk.aim(step) else { break };
            let now_us = u128::from(walk.now_us);
            let decision = walk.check(cost).decision;
            if decision.is_allowed() {
                let leaves_us = now_us + u128::from(decision.delay_us());
                // A request leaves at once, or when the request ahead has left.
                prop_assert_eq!(leaves_us, now_us.max(free_at.div_ceil(parts)));
                let takes = u128::from(cost.units()) * u128::from(rate.per_us());
                free_at = free_at.max(now_us * parts) + takes;
            }
        }
    }
}

#[test]
fn common_large_limits_are_exact() {
    for (limit, now_us, cost, reset_after_us) in [
        ("fixed-window limit=10000000 window=1d", 1, 10_000_000, 86_399_999_999),
        (
            "sliding-window-counter limit=1000000000 window=30d",
            0,
            1_000_000_000,
            2 * 2_592_000_000_000 - 2_591,
        ),
        ("token-bucket capacity=1000000 refill=999983/d", 7, 1_000_000, 86_401_468_825),
        ("leaky-bucket capacity=1000000000 leak=1000000000/30d mode=policing", 0, 1, 2_592),
    ] {
        let limit: Limit = limit.parse().unwrap();
        let mut state = limit.fresh();
        let decision =
            limit.check(&mut state, now_us, UnitRequest::new(Cost::new(cost).unwrap())).decision;
        assert!(decision.is_allowed(), "{limit}");
        assert_eq!(decision.remaining, limit.size() - cost, "{limit}");
        assert_eq!(decision.reset_after_us, reset_after_us, "{limit}");
    }
}
