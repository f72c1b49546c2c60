//! How long a place in a line will take.

use std::num::NonZeroU64;

use tollgate_core::{
    Ask, Cost, Decision, Fill, Level, Limit, MAX_UNITS, Rate, State, Window, WindowPair, muldiv,
};

use crate::error::Error;
use crate::scope::Scope;

/// What lies ahead of one that joins a key's line, if nothing else arrives and nobody gives up.
pub(super) struct Forecast<'a> {
    limit: &'a Limit,
    state: State,
    now_us: u64,
    wait_us: u64,
}

impl<'a> Forecast<'a> {
    /// From how the key stands now.
    pub(super) fn of(scope: &'a Scope, key: &[u8], now_us: u64) -> Result<Forecast<'a>, Error> {
        let state = standing(scope, key, now_us)?;
        Ok(Forecast { limit: scope.limit(), state, now_us, wait_us: 0 })
    }

    /// How long one who asks `cost` waits behind those `ahead`, its own delay included. It stops
    /// counting past `enough_us`.
    ///
    /// A bucket of 1 per 100 ms that is empty, three ahead that ask 1 each: 400 ms.
    pub(super) fn wait_us(mut self, ahead: &[Cost], cost: Cost, enough_us: u64) -> u64 {
        for &cost in ahead {
            self.admit(cost);
            if self.wait_us > enough_us {
                return self.wait_us;
            }
        }
        let delay_us = self.admit(cost);
        self.wait_us.saturating_add(delay_us)
    }

    /// Charges `cost` as soon as it fits; its delay from then on.
    fn admit(&mut self, cost: Cost) -> u64 {
        let first = self.check(cost);
        if first.is_allowed() {
            return first.delay_us();
        }
        // Never, for a cost above the limit: those do not join a line.
        let retry_us = first.retry_after_us().unwrap_or(u64::MAX);
        self.wait_us = self.wait_us.saturating_add(retry_us);
        self.check(cost).delay_us()
    }

    fn check(&mut self, cost: Cost) -> Decision {
        let at_us = self.now_us.saturating_add(self.wait_us);
        self.limit.check(&mut self.state, at_us, Ask::new(cost)).decision
    }
}

/// A state that decides as the key's own does from `now_us` on, put together from what any store
/// tells: exact for a window and a log, to a microsecond for a bucket, to a unit for a counter.
fn standing(scope: &Scope, key: &[u8], now_us: u64) -> Result<State, Error> {
    let limit = scope.limit();
    let now = scope.peek(key).at_us(now_us).now()?;
    let spent = now.limit() - now.remaining();
    let drain_us = now.decided().reset_after_us;
    if spent == 0 && drain_us == 0 {
        return Ok(limit.fresh());
    }
    Ok(match limit {
        Limit::FixedWindow(limit) => {
            let start_us = now_us - now_us % limit.window_us().max(1);
            State::Window(Window { start_us, spent })
        }
        Limit::SlidingWindowLog(_) => {
            let mut log = limit.fresh();
            for entry in scope.entries_now(key)? {
                limit.check(&mut log, entry.at_us, Ask::new(entry.cost));
            }
            log
        }
        Limit::SlidingWindowCounter(limit) => {
            let window_us = limit.window_us().max(1);
            let start_us = now_us - now_us % window_us;
            // At the next window's first instant, what this one holds counts in full.
            let next = scope.peek(key).at_us(start_us.saturating_add(window_us)).now()?;
            let current = next.limit() - next.remaining();
            let previous = weighed_down_to(spent.saturating_sub(current), window_us, now_us);
            State::WindowPair(WindowPair { start_us, current, previous })
        }
        Limit::TokenBucket(limit) => filled(limit.capacity(), limit.refill(), drain_us, now_us),
        Limit::LeakyBucket(limit) => filled(limit.capacity(), limit.leak(), drain_us, now_us),
    })
}

/// The least that a window before this one held, if it still weighs `weight`.
fn weighed_down_to(weight: u64, window_us: u64, now_us: u64) -> u64 {
    // OK because the remainder is below the window: at least 1 is left.
    let left_us = u128::from(window_us - now_us % window_us);
    let held = (u128::from(weight) * u128::from(window_us)).div_ceil(left_us);
    u64::try_from(held).unwrap_or(MAX_UNITS).min(MAX_UNITS)
}

/// A bucket of `capacity` that drains for `drain_us` from now.
fn filled(capacity: u64, rate: Rate, drain_us: u64, now_us: u64) -> State {
    // OK because a rate's period is at least 1: it never falls back.
    let per_us = NonZeroU64::new(rate.per_us()).unwrap_or(NonZeroU64::MIN);
    let (units, fraction) = muldiv(drain_us, rate.units(), per_us);
    // Rounded up by less than a microsecond's drain, which may be more than fits.
    let level = Level { units, fraction }.min(Level { units: capacity, fraction: 0 });
    State::Fill(Fill { level, as_of_us: now_us, charged: 0 })
}
