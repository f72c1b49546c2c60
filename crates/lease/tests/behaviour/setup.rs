//! A driver for tests, with answers made by hand.

use tollgate_core::{Cost, LeaseAnswer, LeaseState, LimitDecision, Retry, Verdict};
use tollgate_lease::{
    LeaseCall, LeaseEffect, LeaseEnd, LeaseFailure, LeaseTerms, LeasedDecision, Leases, Now,
    ReplyEffects, TableSize, TakeAnswer,
};

pub(crate) const KEY: &str = "user:42";
pub(crate) const PACE_US: u64 = 10_000;
pub(crate) const SECOND_US: u64 = 1_000_000;

/// Jitter makes the next request up to a quarter of a pace later.
pub(crate) const LATEST_US: u64 = PACE_US + PACE_US / 4;

pub(crate) fn cost(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

/// Terms of 1 s with a pace of 10 ms, for at most 250 of 1,000 units.
pub(crate) fn terms() -> LeaseTerms {
    LeaseTerms::new("token-bucket capacity=1000 refill=1000/s".parse().unwrap()).unwrap()
}

/// Leases and a clock.
pub(crate) struct Driver {
    pub(crate) leases: Leases<String>,
    pub(crate) now: Now,
    pub(crate) terms: LeaseTerms,
}

impl Driver {
    pub(crate) fn new() -> Driver {
        let now = Now { monotonic_us: 5 * SECOND_US, wall_us: 1_700_000_000 * SECOND_US };
        Driver { leases: Leases::new(TableSize::default(), 7), now, terms: terms() }
    }

    /// A driver whose key has become hot: its request for a lease is in flight.
    pub(crate) fn hot() -> (Driver, LeaseCall<String>) {
        let mut driver = Driver::new();
        for _ in 0..7 {
            assert!(matches!(driver.take(1), TakeAnswer::Strict));
            driver.pass_us(1_000);
        }
        let call = driver.ask(1);
        assert!((20..30).contains(&call.request.want)); // two paces, at 8 in 7 ms
        (driver, call)
    }

    /// A driver with a lease of this many units, which lasts 1 s. With 30 units or more, the store gave all that was wanted.
    pub(crate) fn leased(units: u64) -> Driver {
        let (mut driver, call) = Driver::hot();
        let _ = driver.open(&call, units);
        driver
    }

    pub(crate) fn pass_us(&mut self, us: u64) {
        self.now.monotonic_us += us;
        self.now.wall_us += us;
    }

    pub(crate) fn take(&mut self, units: u64) -> TakeAnswer<String> {
        self.leases.take(self.now, KEY, &self.terms, cost(units))
    }

    pub(crate) fn hit(&mut self, units: u64) -> LeasedDecision {
        match self.take(units) {
            TakeAnswer::Hit(hit) => hit,
            other => panic!("expected a hit: {other:?}"),
        }
    }

    pub(crate) fn ask(&mut self, units: u64) -> LeaseCall<String> {
        match self.take(units) {
            TakeAnswer::Ask(call) => call,
            other => panic!("expected a request: {other:?}"),
        }
    }

    pub(crate) fn refuse(&mut self, units: u64) -> LimitDecision {
        match self.take(units) {
            TakeAnswer::Refuse(decision) => decision,
            other => panic!("expected a refusal: {other:?}"),
        }
    }

    /// The store gives the lease this many unused units, for 1 s from now.
    pub(crate) fn open(&mut self, call: &LeaseCall<String>, unused: u64) -> ReplyEffects<String> {
        let lease = open_state(unused, SECOND_US);
        self.reply(call, &answer(lease))
    }

    pub(crate) fn reply(
        &mut self,
        call: &LeaseCall<String>,
        answer: &LeaseAnswer,
    ) -> ReplyEffects<String> {
        self.leases.replied(self.now, KEY, call.sequence, Ok(answer))
    }

    pub(crate) fn fail(&mut self, call: &LeaseCall<String>) {
        let effects = self.leases.replied(self.now, KEY, call.sequence, Err(LeaseFailure));
        assert!(effects.end.is_none() && effects.ask_again.is_none());
    }

    /// Passes the time until a lease is due, and returns what is to be sent.
    pub(crate) fn tick(&mut self) -> Vec<LeaseEffect<String>> {
        let due_us = self.leases.next_due().unwrap();
        self.pass_us(due_us.saturating_sub(self.now.monotonic_us));
        self.leases.tick(self.now)
    }

    /// Ticks until there is a renewal.
    pub(crate) fn renewal(&mut self) -> LeaseCall<String> {
        loop {
            match self.tick().pop() {
                Some(LeaseEffect::Renew(call)) => return call,
                Some(LeaseEffect::End(end)) => panic!("the lease ended: {end:?}"),
                None => {}
            }
        }
    }

    /// Ticks until the lease ends.
    pub(crate) fn end(&mut self) -> LeaseEnd<String> {
        loop {
            match self.tick().pop() {
                Some(LeaseEffect::End(end)) => return end,
                Some(LeaseEffect::Renew(call)) => panic!("the lease was renewed: {call:?}"),
                None => {}
            }
        }
    }
}

pub(crate) fn open_state(unused: u64, lasts_us: u64) -> LeaseState {
    LeaseState::Open { unused, expires_us: 77, lasts_us, holders: 1 }
}

/// An answer that allows the check, with 500 units left on the store.
pub(crate) fn answer(lease: LeaseState) -> LeaseAnswer {
    let decision = LimitDecision {
        verdict: Verdict::Allowed { delay_us: 0 },
        limit: 1_000,
        remaining: 500,
        reset_after_us: 500_000,
        first_back_us: 0,
    };
    LeaseAnswer { decision, receipt: None, lease }
}

/// An answer that refuses the check.
pub(crate) fn refusal(lease: LeaseState, remaining: u64, retry_us: u64) -> LeaseAnswer {
    let LeaseAnswer { decision, receipt, lease } = answer(lease);
    let verdict = Verdict::Denied { retry: Retry::AfterUs(retry_us) };
    LeaseAnswer { decision: LimitDecision { verdict, remaining, ..decision }, receipt, lease }
}
