//! How long a waiter at some position in a queue will wait.

use std::mem;

use tollgate_core::{CarryOver, Holds, Limit, LimitDecision, State, UnitRequest};

use crate::queues::WaiterCharge;
use crate::store::KeyState;

/// The expected wait of a new waiter, if no other request arrives and no waiter gives up.
pub(super) struct Forecast {
    /// The limit that the state is under. Each waiter has its own limit.
    limit: Limit,
    state: State,
    holds: Holds,
    now_us: u64,
    wait_us: u64,
}

impl Forecast {
    /// Returns a forecast from the key's current state. It assumes that the holds are left to expire.
    pub(super) fn of(KeyState { limit, state, holds, now_us }: KeyState) -> Forecast {
        Forecast { limit, state, holds, now_us, wait_us: 0 }
    }

    /// Returns how long a request waits behind the waiters `ahead`, including its own delay. Stops counting
    /// past `enough_us`.
    ///
    /// With a bucket that has no units left and refills 1 per 100 ms, and three waiters ahead that cost 1 each: 400
    /// ms.
    pub(super) fn wait_us(
        mut self,
        ahead: &[WaiterCharge],
        own: WaiterCharge,
        enough_us: u64,
    ) -> u64 {
        for charge in ahead {
            self.admit(charge);
            if self.wait_us > enough_us {
                return self.wait_us;
            }
        }
        let delay_us = self.admit(&own);
        self.wait_us.saturating_add(delay_us)
    }

    /// Charges one request as soon as it fits; returns its delay from then on.
    fn admit(&mut self, charge: &WaiterCharge) -> u64 {
        let first = self.check(charge);
        if first.is_allowed() {
            return first.delay_us();
        }
        // Never `None`: a request whose cost is above the limit does not join a queue.
        let retry_us = first.retry_after_us().unwrap_or(u64::MAX);
        self.wait_us = self.wait_us.saturating_add(retry_us);
        self.check(charge).delay_us()
    }

    fn check(&mut self, &WaiterCharge { limit, cost }: &WaiterCharge) -> LimitDecision {
        let at_us = self.now_us.saturating_add(self.wait_us);
        if limit != self.limit {
            let state = mem::replace(&mut self.state, limit.fresh());
            match limit.carry_over_beside(&self.limit, state, &mut self.holds, at_us, cost) {
                CarryOver::Done(state) => (self.limit, self.state) = (limit, state),
                CarryOver::Stays { decides, state } => {
                    self.state = state;
                    return self.check_under(&decides, at_us, UnitRequest::new(cost));
                }
            }
        }
        self.check_under(&limit, at_us, UnitRequest::new(cost))
    }

    fn check_under(&mut self, limit: &Limit, at_us: u64, request: UnitRequest) -> LimitDecision {
        limit.check_beside(&mut self.state, &mut self.holds, at_us, request).decision
    }
}
