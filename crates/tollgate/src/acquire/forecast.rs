//! How long a place in a line will take.

use tollgate_core::{Ask, Cost, Decision, Limit, State};

/// What lies ahead of one that joins a key's line, if nothing else arrives and nobody gives up.
pub(super) struct Forecast<'a> {
    limit: &'a Limit,
    state: State,
    now_us: u64,
    wait_us: u64,
}

impl<'a> Forecast<'a> {
    /// From how the key stands now.
    pub(super) fn of(limit: &'a Limit, state: State, now_us: u64) -> Forecast<'a> {
        Forecast { limit, state, now_us, wait_us: 0 }
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
