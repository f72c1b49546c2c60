//! The second check: what was used is what the limit admits in strict mode.

use tollgate_core::{Cost, Limit, State, UnitRequest};

/// How many points of a run are compared with each other.
const POINTS: usize = 64;

/// The times of a use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UseTimes {
    /// By the store's clock, and not before the latest window that was charged.
    pub(crate) store_us: u64,
    /// On a clock that never goes back, for algorithms without windows.
    pub(crate) generous_us: u64,
}

/// The units of one key that were admitted, by leases and by the store.
///
/// Each use goes to a key that knows of no leases: in strict mode it would have been admitted too. That says more than
/// the bound over every interval. It holds because a use is charged in the same window, and not before its time. After
/// a loss of state it holds again when the leases of that time are over.
#[derive(Debug)]
pub(crate) struct BoundCheck {
    limit: Limit,
    lease_us: u64,
    /// The key in strict mode; `None` after a loss of state, until `resumes_us`.
    strict: Option<State>,
    resumes_us: u64,
    losses_us: Vec<u64>,
    /// The uses, with the sum of all units up to each.
    uses: Vec<(u64, u64)>,
}

impl BoundCheck {
    pub(crate) fn new(limit: Limit, lease_us: u64) -> BoundCheck {
        BoundCheck {
            limit,
            lease_us,
            strict: Some(limit.fresh()),
            resumes_us: 0,
            losses_us: Vec::new(),
            uses: Vec::new(),
        }
    }

    /// Adds a loss of state. Leases of the time before it are used for one more lease time.
    ///
    /// If windows start at other times after it, because the store's clock was set, an interval around it can touch two
    /// windows more than without it, in strict mode too.
    pub(crate) fn lose(&mut self, generous_us: u64, moves_windows: bool) {
        let bursts = if moves_windows && self.limit_has_windows() { 2 } else { 1 };
        self.losses_us.extend([generous_us].repeat(bursts));
        self.resumes_us = generous_us + self.lease_us;
        self.strict = None;
    }

    fn limit_has_windows(&self) -> bool {
        matches!(self.limit, Limit::FixedWindow(_) | Limit::SlidingWindowCounter(_))
    }

    /// The store's clock steps back. Under a sliding window counter more of the previous window counts again. In strict
    /// mode nothing is then admitted until that has passed, but leases are used that were granted before.
    pub(crate) fn step_back(&mut self, generous_us: u64) {
        if matches!(self.limit, Limit::SlidingWindowCounter(_)) {
            self.resumes_us = self.resumes_us.max(generous_us + self.lease_us);
            self.strict = None;
        }
    }

    /// Adds units that were admitted. Returns what is wrong, if strict mode would not have admitted them.
    pub(crate) fn admit(&mut self, times: UseTimes, cost: Cost) -> Option<String> {
        let total = self.uses.last().map_or(0, |&(_, total)| total) + cost.units();
        match self.uses.last_mut() {
            Some((at_us, last)) if *at_us == times.generous_us => *last = total,
            _ => self.uses.push((times.generous_us, total)),
        }
        if self.strict.is_none() && times.generous_us > self.resumes_us {
            self.strict = Some(self.limit.fresh());
        }
        let now_us = if self.limit_has_windows() { times.store_us } else { times.generous_us };
        let state = self.strict.as_mut()?;
        let decision = self.limit.check(state, now_us, UnitRequest::new(cost)).decision;
        (!decision.is_allowed()).then(|| {
            self.strict = None;
            self.resumes_us = u64::MAX;
            format!("{} units of `{}`: {decision:?}", cost.units(), self.limit)
        })
    }

    /// Compares the uses between points of the whole run with the bound, with one burst more for each loss of state.
    /// Returns what is wrong.
    pub(crate) fn above_bound(&self) -> Option<String> {
        let step = self.uses.len().div_ceil(POINTS).max(1);
        let points: Vec<usize> = (0..self.uses.len()).step_by(step).collect();
        let pairs = points.iter().flat_map(|first| points.iter().map(move |last| (*first, *last)));
        pairs.filter(|(first, last)| first <= last).find_map(|(first, last)| {
            let before = if first == 0 { 0 } else { self.uses[first - 1].1 };
            let (from_us, (to_us, total)) = (self.uses[first].0, self.uses[last]);
            let bound = self.limit.bound_over(to_us - from_us + 1);
            let counts =
                |loss_us: &&u64| **loss_us + self.lease_us >= from_us && **loss_us <= to_us;
            let losses = self.losses_us.iter().filter(counts).count() as u64;
            let most = bound.max_units.saturating_add(losses * self.limit.size());
            (total - before > most).then(|| {
                format!(
                    "`{}`: {} units in {} us, above {most} ({losses} losses of state)",
                    self.limit,
                    total - before,
                    bound.interval_us
                )
            })
        })
    }
}
