//! Decides whether what callers saw of one key is what a limit decides.
//!
//! Callers on real stores, in threads or processes, record each request with the time at which it began and the time at
//! which it was answered: a [`RecordedRequest`]. Requests of different callers overlap, so the order in which the
//! store decided them is unknown. Two checkers judge the record of one key:
//!
//! - [`explain`] is for callers that decide every request on the store. It searches for an order of the requests in
//!   which the algorithm of [`tollgate_core`] gives every caller the answer that it got, field by field, and in which no
//!   request comes before another that was answered before it began. This property is called linearizability.
//! - [`excess_over`] is for callers that decide with leases, whose answers are estimates. It compares the units that
//!   were admitted in each interval with the limit's bound.
//!
//! ```
//! use tollgate_conformance::history::{RecordedAnswer, RecordedRequest, explain};
//! use tollgate_core::{Cost, Intent, Limit, UnitRequest};
//!
//! let limit: Limit = "fixed-window limit=1 window=1m".parse()?;
//! let decision = limit.check(&mut limit.fresh(), 0, UnitRequest::new(Cost::ONE)).decision;
//! let request = |began_us: u64, ended_us: u64| RecordedRequest {
//!     began_us,
//!     at_us: Some(began_us),
//!     cost: Cost::ONE,
//!     intent: Intent::Charge,
//!     answer: Some(RecordedAnswer { ended_us, decision }),
//! };
//! assert!(explain(&limit, &[request(0, 5)], 0).is_ok());
//! // Two callers were both given the only unit.
//! assert!(explain(&limit, &[request(0, 5), request(2, 7)], 0).is_err());
//! # Ok::<(), tollgate_core::LimitError>(())
//! ```
//!
//! - A request should have a time of its own, so that its decision follows from the order of the requests alone.
//! - A request without an answer has an unknown outcome: it failed, or its caller was killed. It may have been decided
//!   at any time after it began, or never.
//! - A store that fails over, or restarts without its data, loses state: it goes back to a state that the key had before.
//!   The caller of [`explain`] says how often that may have happened.
//! - Both take the requests of one key under one limit. [`Recorder`] writes the requests of many keys, as lines of text
//!   that survive a process that is killed, and [`Histories`] reads them.

mod order;
mod record;
mod search;
#[cfg(test)]
mod tests;
mod trails;
mod units;

pub use order::{Order, Unexplained, explain};
pub use record::{Histories, RecordError, Recorder, now_us};
pub use search::OrderStep;
pub use units::{Excess, excess_over};

use tollgate_core::{Cost, Intent, Limit, LimitDecision, State, UnitRequest};

/// A request that a caller made, and the answer that it got. All times are microseconds on one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedRequest {
    /// When the caller sent it, or earlier.
    pub began_us: u64,
    /// The time at which the limit was to decide: [`Check::at_us`](tollgate_limiter::Check::at_us).
    ///
    /// `None` if the store's clock decided. [`explain`] then compares the verdict and the remaining units of the answer,
    /// and no times. So it can only be used with a limit of which no unit comes back meanwhile; and either all requests
    /// of a history have a time, or none.
    pub at_us: Option<u64>,
    /// The units that it spends.
    pub cost: Cost,
    /// Whether it is charged.
    pub intent: Intent,
    /// The answer; `None` if the outcome is unknown.
    pub answer: Option<RecordedAnswer>,
}

/// The answer to a [`RecordedRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedAnswer {
    /// When the caller got it, or later.
    pub ended_us: u64,
    /// The decision.
    pub decision: LimitDecision,
}

impl RecordedRequest {
    /// Decides the request as the limit does, and charges `state` if it is charged.
    fn decide(&self, limit: &Limit, state: &mut State) -> LimitDecision {
        let (request, at_us) = (UnitRequest::new(self.cost), self.at_us.unwrap_or(self.began_us));
        match self.intent {
            Intent::Charge => limit.check(state, at_us, request).decision,
            Intent::Peek => limit.peek(state, at_us, request),
        }
    }

    /// Returns the units that remain for this request in a state.
    fn units_found(&self, limit: &Limit, state: &State) -> u64 {
        let at_us = self.at_us.unwrap_or(self.began_us);
        limit.peek(state, at_us, UnitRequest::new(self.cost)).remaining
    }

    /// Returns the units that remained before the request, according to its answer; 0 without one.
    fn units_before_answer(&self) -> u64 {
        let remaining = self.answer.map_or(0, |answer| answer.decision.remaining);
        remaining + self.admitted().map_or(0, |(units, _)| units)
    }

    /// Whether the answer is the limit's decision, as far as that can be known.
    fn is_answered_with(&self, decision: &LimitDecision) -> bool {
        let units = |own: &LimitDecision| (own.is_allowed(), own.limit, own.remaining);
        self.answer.is_some_and(|answer| match self.at_us {
            Some(_) => answer.decision == *decision,
            None => units(&answer.decision) == units(decision),
        })
    }

    /// Returns the units that it was charged, and when its answer came; `None` if it was not charged, or if that is
    /// unknown.
    fn admitted(&self) -> Option<(u64, u64)> {
        let answer = self.answer?;
        let is_charged = self.intent == Intent::Charge && answer.decision.is_allowed();
        is_charged.then_some((self.cost.units(), answer.ended_us))
    }
}
