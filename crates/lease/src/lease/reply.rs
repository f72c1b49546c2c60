//! Changes a lease by the answers of the store.

use tollgate_core::{
    HoldReference, HoldUse, LeaseAnswer, LeaseState, LimitDecision, Retry, Verdict,
};

use super::{Holding, InFlight, LastAnswer, Lease, SequencedRequest, Shared};
use crate::messages::LeaseFailure;
use crate::time::{Now, margin_us};

/// The next step after an answer.
#[derive(Debug)]
pub(crate) enum AfterReply {
    /// The answer was not to the request in flight.
    Ignored,
    Done,
    /// The check would have fitted without this lease: end it, and ask again.
    AskAgain((HoldReference, HoldUse), SequencedRequest),
}

impl Lease {
    /// Takes an answer into account, if it is to the request in flight.
    pub(crate) fn replied(
        &mut self,
        now: Now,
        sequence: u64,
        outcome: Result<&LeaseAnswer, LeaseFailure>,
        shared: &mut Shared,
    ) -> AfterReply {
        if self.in_flight.is_none_or(|flight| flight.sequence != sequence) {
            return AfterReply::Ignored;
        }
        let Ok(answer) = outcome else {
            self.fail(now, shared);
            self.notice_time(now, shared);
            return AfterReply::Done;
        };
        let Some(flight) = self.in_flight.take() else { return AfterReply::Ignored };
        self.is_renewal_planned = false;
        self.is_failing = false;
        self.doubt_until_us = 0;
        self.measure_round_trip(now, &flight);
        self.last_answer = last_answer(&flight, &answer.decision);
        self.change_lease(now, &flight, answer.lease, shared);
        self.ask_again(now, &flight, &answer.decision, shared).unwrap_or(AfterReply::Done)
    }

    /// The request in flight failed. The lease stays as it is: the store may or may not have received the request.
    pub(super) fn fail(&mut self, now: Now, shared: &mut Shared) {
        let Some(flight) = self.in_flight.take() else { return };
        let lease_us = self.terms.lease_for().as_us();
        shared.counters.failures += 1;
        self.is_renewal_planned = false;
        self.is_failing = true;
        self.gave_all = false;
        self.doubt_until_us = flight.sent.monotonic_us.saturating_add(lease_us);
        self.ask_from_us = now.monotonic_us.saturating_add(self.terms.pace());
    }

    fn measure_round_trip(&mut self, now: Now, flight: &InFlight) {
        let took_us = now.monotonic_us.saturating_sub(flight.sent.monotonic_us);
        let longest_us = self.terms.lease_for().as_us() / 4;
        self.round_trip_us = (self.round_trip_us + took_us.min(longest_us)) / 2;
    }

    fn change_lease(
        &mut self,
        now: Now,
        flight: &InFlight,
        lease: LeaseState,
        shared: &mut Shared,
    ) {
        match lease {
            LeaseState::Open { unused, expires_us, lasts_us, .. } => {
                self.opened(flight, unused, expires_us, shared);
                self.lasts(now, flight, lasts_us);
            }
            LeaseState::None => {
                self.forget(shared);
                self.gave_all = false;
            }
            LeaseState::Ended(_) => {
                self.forget(shared);
                // A fresh lease can be opened at once.
                self.gave_all = true;
                self.ask_from_us = now.monotonic_us;
            }
        }
    }

    fn opened(&mut self, flight: &InFlight, unused: u64, expires_us: u64, shared: &mut Shared) {
        let id = match self.holding {
            Holding::Open { id, .. } | Holding::Started { id } => id,
            // OK because the holding is kept while a request is in flight.
            Holding::None => return,
        };
        self.holding = Holding::Open { id, expires_us };
        // Units that were used while the request was in flight are among the unused ones of the answer.
        let left = unused.saturating_sub(self.used.saturating_sub(flight.used));
        shared.counters.leased_units += left.saturating_sub(self.left);
        self.left = left;
        self.gave_all = unused >= flight.want;
        let low_units = self.demand.units_in(self.low_time_us(), self.terms.pace());
        self.low_units = low_units.min(self.want().div_ceil(2)).max(1);
    }

    /// Determines when the lease is over, and when it can be renewed.
    fn lasts(&mut self, now: Now, flight: &InFlight, lasts_us: u64) {
        // The store counts from a later time: when it got the request.
        self.ends = flight.sent.plus_us(lasts_us.saturating_sub(margin_us(lasts_us)));
        self.renew_from_us = flight.sent.monotonic_us.saturating_add(lasts_us / 3 * 2);
        if !now.is_before(self.ends) {
            // Too short to be used: the window ends. Ask again in the next one.
            let over_us = flight.sent.monotonic_us.saturating_add(lasts_us);
            self.ask_from_us =
                over_us.clamp(now.monotonic_us, self.ask_from_us.max(now.monotonic_us));
        } else if self.gave_all {
            self.ask_from_us = now.monotonic_us;
        }
    }

    /// Forgets the lease, because the store has ended it.
    fn forget(&mut self, shared: &mut Shared) {
        shared.counters.expired_units += self.left;
        self.left = 0;
        self.ends = Now::default();
        self.holding = Holding::None;
    }

    /// Ends the lease and asks a second time, if the check was refused only because of the unused units of this lease.
    fn ask_again(
        &mut self,
        now: Now,
        flight: &InFlight,
        decision: &LimitDecision,
        shared: &mut Shared,
    ) -> Option<AfterReply> {
        let need = flight.need.filter(|_| !flight.is_second && !decision.is_allowed())?;
        let with_own_units = decision.remaining.saturating_add(self.left);
        if need.units() <= decision.remaining || need.units() > with_own_units {
            return None;
        }
        let end = self.end(shared)?;
        let request = self.request(now, Some(need), shared);
        if let Some(second) = &mut self.in_flight {
            second.is_second = true;
        }
        shared.counters.asks += 1;
        Some(AfterReply::AskAgain(end, request))
    }
}

fn last_answer(flight: &InFlight, decision: &LimitDecision) -> LastAnswer {
    let sent_us = flight.sent.monotonic_us;
    let (refused_units, refused_until_us) = match (decision.verdict, flight.need) {
        (Verdict::Denied { retry: Retry::AfterUs(wait_us) }, Some(need)) => {
            (need.units(), sent_us.saturating_add(wait_us))
        }
        _ => (u64::MAX, 0),
    };
    LastAnswer {
        remaining: decision.remaining,
        reset_at_us: sent_us.saturating_add(decision.reset_after_us),
        first_back_at_us: match decision.first_back_us {
            0 => 0,
            first_us => sent_us.saturating_add(first_us),
        },
        refused_units,
        refused_until_us,
    }
}
