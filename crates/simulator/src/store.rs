//! The store: the real algorithms, a clock, and failures.

use tollgate_core::{
    CheckResult, Cost, HoldId, HoldReference, HoldUse, Holds, LeaseAnswer, LeaseRequest, Limit,
    OpenHold, State, UnitRequest,
};
use tollgate_lease::LeaseEnd;

use crate::clock::StoreClock;
use crate::mutant::Mutant;

/// The extent of a loss of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateLoss {
    /// Everything.
    All,
    /// The latest writes, as by a failover to a replica that is behind.
    Since {
        /// The time by which the replica is behind.
        back_us: u64,
    },
}

/// A key as the store keeps it.
#[derive(Clone, Debug)]
pub(crate) struct StoredKey {
    limit: Limit,
    state: State,
    holds: Holds,
}

impl StoredKey {
    fn fresh(limit: Limit) -> StoredKey {
        StoredKey { limit, state: limit.fresh(), holds: Holds::default() }
    }
}

#[derive(Debug)]
pub(crate) struct SimulatedStore {
    keys: Vec<StoredKey>,
    pub(crate) clock: StoreClock,
    pub(crate) down_until_us: u64,
    mutant: Option<Mutant>,
}

impl SimulatedStore {
    pub(crate) fn new(
        limits: impl Iterator<Item = Limit>,
        mutant: Option<Mutant>,
    ) -> SimulatedStore {
        SimulatedStore {
            keys: limits.map(StoredKey::fresh).collect(),
            clock: StoreClock::new(),
            down_until_us: 0,
            mutant,
        }
    }

    pub(crate) fn check(&mut self, at_us: u64, key: u32, cost: Cost) -> CheckResult {
        let now_us = self.clock.now_us(at_us);
        let StoredKey { limit, state, holds } = &mut self.keys[key as usize];
        limit.check_beside(state, holds, now_us, UnitRequest::new(cost))
    }

    pub(crate) fn lease(
        &mut self,
        at_us: u64,
        key: u32,
        request: LeaseRequest,
        first_use_us: Option<u64>,
    ) -> Option<LeaseAnswer> {
        let now_us = self.clock.now_us(at_us);
        let StoredKey { limit, state, holds } = &mut self.keys[key as usize];
        if let (Some(Mutant::SettleAtUseTime), Some(use_us)) = (self.mutant, first_use_us) {
            let expires_us = request.expires_us.unwrap_or(u64::MAX);
            let hold = HoldReference { id: request.id, expires_us };
            let used = HoldUse { units: request.used, is_last: false };
            limit.settle_hold(state, holds, use_us.min(now_us), hold, used);
        }
        limit.lease(state, holds, now_us, request).ok()
    }

    pub(crate) fn end(&mut self, at_us: u64, end: &LeaseEnd<u32>) {
        let now_us = self.clock.now_us(at_us);
        let StoredKey { limit, state, holds } = &mut self.keys[end.key as usize];
        limit.settle_hold(state, holds, now_us, end.hold, end.used);
    }

    /// Returns a hold that has not expired.
    pub(crate) fn open_hold(&self, at_us: u64, key: u32, id: HoldId) -> Option<OpenHold> {
        let now_us = self.clock.now_us(at_us);
        let mut open = self.keys[key as usize].holds.iter();
        open.find(|hold| hold.id == id && hold.expires_us > now_us).copied()
    }

    /// The units that are held and not expired, of all keys together.
    pub(crate) fn held_units(&self, at_us: u64) -> u64 {
        let now_us = self.clock.now_us(at_us);
        let holds = self.keys.iter().flat_map(|key| key.holds.iter());
        holds.filter(|hold| hold.expires_us > now_us).map(|hold| hold.units).sum()
    }

    /// The start of the latest window of a key that was charged; 0 if its algorithm has no windows.
    pub(crate) fn window_start_us(&self, key: u32) -> u64 {
        match &self.keys[key as usize].state {
            State::Window(window) => window.start_us,
            State::WindowPair(windows) => windows.start_us,
            State::Log(_) | State::Fill(_) | State::KeyClock(_) => 0,
        }
    }

    /// Returns a copy of all keys, as a replica has them.
    pub(crate) fn replica(&self) -> Vec<StoredKey> {
        self.keys.clone()
    }

    /// Goes on with the keys of a replica; without one, with fresh keys.
    pub(crate) fn fail_over(&mut self, replica: Option<Vec<StoredKey>>) {
        match replica {
            Some(keys) => self.keys = keys,
            None => self.keys.iter_mut().for_each(|key| *key = StoredKey::fresh(key.limit)),
        }
    }
}
