//! The requests of a lease to the store.

use tollgate_core::{Cost, HoldId, LeaseRequest};

use super::{Holding, InFlight, Lease, Shared};
use crate::time::Now;

/// A request with the number by which its answer is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SequencedRequest {
    pub(crate) sequence: u64,
    pub(crate) request: LeaseRequest,
}

impl Lease {
    /// Makes the next request, which is then in flight. The demand has just been measured.
    pub(super) fn request(
        &mut self,
        now: Now,
        need: Option<Cost>,
        shared: &mut Shared,
    ) -> SequencedRequest {
        let (id, expires_us) = self.id_to_ask_for(shared);
        let want = self.want();
        shared.sequence += 1;
        self.settlements = self.settlements.wrapping_add(1);
        self.in_flight = Some(InFlight {
            sequence: shared.sequence,
            sent: now,
            used: self.used,
            want,
            need,
            is_second: false,
        });
        let pace_us = self.terms.pace();
        let jitter_us = shared.numbers.below(pace_us / 4);
        self.ask_from_us = now.monotonic_us.saturating_add(pace_us + jitter_us);
        self.is_renewal_planned = false;
        let request = LeaseRequest {
            id,
            expires_us,
            used: self.used,
            need,
            want,
            most: self.terms.max_unused(),
            lease_for: self.terms.lease_for(),
        };
        SequencedRequest { sequence: shared.sequence, request }
    }

    /// Brings the demand up to date.
    pub(super) fn measure_demand(&mut self, now: Now) {
        self.demand.update(now.monotonic_us, self.terms.pace());
    }

    /// The id of the lease and the last expiry that was granted; a fresh id if there is no lease to be renewed.
    fn id_to_ask_for(&mut self, shared: &mut Shared) -> (HoldId, Option<u64>) {
        match self.holding {
            Holding::Open { id, expires_us } => (id, Some(expires_us)),
            Holding::Started { id } => (id, None),
            Holding::None => {
                let id = HoldId::of_lease(shared.numbers.next());
                self.holding = Holding::Started { id };
                self.used = 0;
                (id, None)
            }
        }
    }

    /// The units that the process wants to have unused: the demand of two paces, and longer if answers take longer
    /// than usual.
    pub(super) fn want(&self) -> u64 {
        let pace_us = self.terms.pace();
        let time_us = self.low_time_us() + pace_us + pace_us / 2;
        let units = self.demand.units_in(time_us, pace_us).max(1);
        units.min(self.terms.max_unused())
    }

    /// With the demand of this time left, the lease is renewed: half of a pace, or the time of one and a half round
    /// trips if that is longer.
    pub(super) fn low_time_us(&self) -> u64 {
        let round_trip_us = self.round_trip_us + self.round_trip_us / 2;
        round_trip_us.max(self.terms.pace() / 2)
    }
}
