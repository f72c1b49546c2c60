//! The loops of governor's direct limiter on its fake clock. They are like ours in [`work`](crate::work).

use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::{Context, Result};
use governor::clock::{Clock, FakeRelativeClock};
use governor::middleware::{RateLimitingMiddleware, StateInformationMiddleware};
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};

use crate::scenario::{REQUESTS_BEFORE, STEP_US, Scenario};

type GovernorLimiter<M> = RateLimiter<NotKeyed, InMemoryState, FakeRelativeClock, M>;

/// Runs the loop of [`govern`] without a decision.
pub(crate) fn clock_alone(scenario: Scenario, count: u64) {
    each_request(&FakeRelativeClock::default(), scenario.step_us(), count, || {
        black_box(&());
        black_box(&());
    });
}

/// Runs governor with its default answer, which only allows or denies.
pub(crate) fn yes_or_no(scenario: Scenario, count: u64, mut see: impl FnMut(bool)) -> Result<()> {
    let clock = FakeRelativeClock::default();
    let limiter = RateLimiter::direct_with_clock(quota()?, clock.clone());
    govern(&limiter, &clock, scenario, count, |outcome| see(black_box(&outcome).is_ok()));
    Ok(())
}

/// Runs governor with the answer that has the remaining units of an allowed request, or the wait of a denied one.
pub(crate) fn remaining_or_wait(
    scenario: Scenario,
    count: u64,
    mut see: impl FnMut(bool),
) -> Result<()> {
    let clock = FakeRelativeClock::default();
    let limiter = RateLimiter::direct_with_clock(quota()?, clock.clone())
        .with_middleware::<StateInformationMiddleware>();
    govern(&limiter, &clock, scenario, count, |outcome| {
        see(outcome.is_ok());
        match outcome {
            Ok(snapshot) => _ = black_box(snapshot.remaining_burst_capacity()),
            Err(until) => _ = black_box(until.wait_time_from(clock.now())),
        }
    });
    Ok(())
}

fn quota() -> Result<Quota> {
    let per_second = NonZeroU32::new(19).context("a rate of 0")?;
    let burst = NonZeroU32::new(1_000).context("a burst of 0")?;
    Ok(Quota::per_second(per_second).allow_burst(burst))
}

/// Makes `count` requests of a limiter, and calls `see` with each outcome.
fn govern<M: RateLimitingMiddleware<Nanos>>(
    limiter: &GovernorLimiter<M>,
    clock: &FakeRelativeClock,
    scenario: Scenario,
    count: u64,
    mut see: impl FnMut(Result<M::PositiveOutcome, M::NegativeOutcome>),
) {
    each_request(clock, STEP_US, REQUESTS_BEFORE, || _ = limiter.check());
    if scenario == Scenario::Denied {
        while limiter.check().is_ok() {
            clock.advance(Duration::from_micros(1));
        }
    }
    each_request(clock, scenario.step_us(), count, || see(black_box(limiter).check()));
}

fn each_request(clock: &FakeRelativeClock, step_us: u64, count: u64, mut request: impl FnMut()) {
    let step = black_box(Duration::from_micros(step_us));
    for _ in 0..count {
        clock.advance(step);
        request();
    }
}
