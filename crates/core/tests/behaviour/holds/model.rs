//! A slow and obvious model of a key with holds: the list of its charges, and the list of its holds.

use tollgate_core::{Limit, Rate};

/// A hold of the model.
#[derive(Clone, Debug)]
pub(super) struct ModelHold {
    pub(super) id: u64,
    pub(super) units: u64,
    pub(super) expires_us: u64,
    pub(super) used: u64,
}

/// A key of the model, on a clock that only moves forward.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) limit: Limit,
    /// Every charge, in order of time, and its units.
    pub(super) charges: Vec<(u64, u64)>,
    pub(super) holds: Vec<ModelHold>,
}

impl Model {
    pub(super) fn new(limit: Limit) -> Model {
        Model { limit, charges: Vec::new(), holds: Vec::new() }
    }

    /// Charges the holds that have expired at `now_us`, in order of expiry. Under a concurrency limit no charge counts.
    pub(super) fn expire(&mut self, now_us: u64) {
        self.holds.sort_by_key(|hold| (hold.expires_us, hold.id));
        let is_expired = |hold: &ModelHold| hold.expires_us <= now_us;
        let expired: Vec<_> = self.holds.iter().filter(|hold| is_expired(hold)).cloned().collect();
        self.holds.retain(|hold| !is_expired(hold));
        self.charges.extend(expired.iter().map(|hold| (hold.expires_us, hold.units)));
    }

    /// The units that are spent or held at `at_us`, if nothing else happens until then.
    pub(super) fn taken(&self, at_us: u64) -> u64 {
        let mut later = self.clone();
        later.expire(at_us);
        later.spent(at_us) + later.holds.iter().map(|hold| hold.units).sum::<u64>()
    }

    /// The wait until at most `most` units are taken, found by trying every microsecond.
    pub(super) fn wait_us(&self, now_us: u64, most: u64) -> u64 {
        (0..1_000_000).find(|wait_us| self.taken(now_us + wait_us) <= most).unwrap()
    }

    fn spent(&self, at_us: u64) -> u64 {
        let sum = |counts: &dyn Fn(u64) -> bool| -> u64 {
            self.charges.iter().filter(|(us, _)| counts(*us)).map(|(_, units)| units).sum()
        };
        match self.limit {
            Limit::FixedWindow(limit) => {
                let window = |us| us / limit.window_us();
                sum(&|us| window(us) == window(at_us))
            }
            Limit::SlidingWindowLog(limit) => sum(&|us| us + limit.window_us() > at_us),
            Limit::SlidingWindowCounter(limit) => {
                let window_us = limit.window_us();
                let window = |us| us / window_us;
                let current = sum(&|us| window(us) == window(at_us));
                let previous = sum(&|us| window(us) + 1 == window(at_us));
                current + previous * (window_us - at_us % window_us) / window_us
            }
            Limit::TokenBucket(limit) => self.level(limit.refill(), at_us),
            Limit::LeakyBucket(limit) => self.level(limit.leak(), at_us),
            Limit::Concurrency(_) => 0,
        }
    }

    /// A bucket's level, in whole units rounded up. Computed in parts of a unit.
    fn level(&self, rate: Rate, at_us: u64) -> u64 {
        let (drains, unit) = (rate.units(), rate.per_us());
        let (mut parts, mut as_of_us) = (0_u64, 0);
        for &(us, units) in &self.charges {
            parts = parts.saturating_sub((us - as_of_us).saturating_mul(drains)) + units * unit;
            as_of_us = us;
        }
        parts.saturating_sub((at_us - as_of_us).saturating_mul(drains)).div_ceil(unit)
    }
}
