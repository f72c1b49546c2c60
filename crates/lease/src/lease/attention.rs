//! The steps of a lease without a check: renewals, and the end of an idle lease.

use tollgate_core::{HoldReference, HoldUse};

use super::{Holding, Lease, SequencedRequest, Shared};
use crate::time::Now;

/// With this many times the units that it wants, a lease gives them back.
const TOO_MANY_TIMES: u64 = 4;

/// The step of a lease that was due.
#[derive(Debug)]
pub(crate) enum Attention {
    Nothing,
    Renew(SequencedRequest),
    /// End the lease and open a smaller one, because it has far more units than it needs.
    Shrink((HoldReference, HoldUse), SequencedRequest),
    /// The key is idle. Forget it, and send the settlement if there is one.
    Leave(Option<(HoldReference, HoldUse)>),
}

impl Lease {
    /// Does what is due.
    pub(crate) fn attend(&mut self, now: Now, shared: &mut Shared) -> Attention {
        self.is_renewal_planned = false;
        self.notice_time(now, shared);
        if self.in_flight.is_some() {
            return Attention::Nothing;
        }
        if now.monotonic_us >= self.idle_from_us() {
            return Attention::Leave(self.end(shared));
        }
        if self.renewal_from_us().is_none_or(|from_us| now.monotonic_us < from_us) {
            return Attention::Nothing;
        }
        self.renew(now, shared)
    }

    fn renew(&mut self, now: Now, shared: &mut Shared) -> Attention {
        shared.counters.background_calls += 1;
        self.measure_demand(now);
        let has_too_many = self.left / TOO_MANY_TIMES > self.want();
        let end = if has_too_many { self.end(shared) } else { None };
        let request = self.request(now, None, shared);
        match end {
            Some(end) => Attention::Shrink(end, request),
            None => Attention::Renew(request),
        }
    }

    /// Returns when the lease needs attention next.
    pub(crate) fn due_us(&self) -> u64 {
        match &self.in_flight {
            // By then the request has been answered, or is taken for lost.
            Some(flight) => flight.sent.monotonic_us.saturating_add(self.terms.lease_for().as_us()),
            None => self.renewal_from_us().unwrap_or(u64::MAX).min(self.idle_from_us()),
        }
    }

    /// Plans a renewal after a hit that left few units. Returns its time, or `None` if the lease is not to be renewed.
    #[cold]
    pub(super) fn plan_renewal(&mut self, now: Now) -> Option<u64> {
        self.is_renewal_planned = true;
        let is_asking = self.in_flight.is_some();
        self.renewal_from_us().filter(|_| !is_asking).map(|from_us| from_us.max(now.monotonic_us))
    }

    /// Returns when the lease is to be renewed in the background; `None` if the next check asks for units, as it does
    /// when the store had too few: the last units are decided one by one.
    fn renewal_from_us(&self) -> Option<u64> {
        if !matches!(self.holding, Holding::Open { .. }) || (self.left == 0 && !self.gave_all) {
            return None;
        }
        let is_low = self.left < self.low_units;
        Some(if is_low { self.ask_from_us } else { self.ask_from_us.max(self.renew_from_us) })
    }

    fn idle_from_us(&self) -> u64 {
        self.last_check_us.saturating_add(self.terms.lease_for().as_us() / 2)
    }
}
