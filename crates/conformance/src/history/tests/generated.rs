//! Random histories that a limit made.

use proptest::prelude::*;
use tollgate_core::{Cost, Intent, Limit, UnitRequest};

use crate::any;
use crate::history::{RecordedAnswer, RecordedRequest};

/// The time from one decision to the next.
const STEP_US: u64 = 1_000;

/// The requests of a history, in the order in which they are decided.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) limit: Limit,
    pub(crate) requests: Vec<PlannedRequest>,
}

/// One request of a [`Plan`].
#[derive(Clone, Debug)]
pub(crate) struct PlannedRequest {
    units: u64,
    intent: Intent,
    /// How long before its decision it began, and how long after it the answer came.
    began_before_us: u64,
    ended_after_us: u64,
    /// `None`: answered. Otherwise whether it reached the store.
    unknown: Option<bool>,
    /// Before this request, the store goes back to the state before an earlier request. The number is the place of that
    /// request among all earlier ones, in thousandths.
    loss: Option<usize>,
    /// The store forgets the charge of this request alone.
    pub(crate) loses_own_charge: bool,
}

pub(crate) fn plan() -> impl Strategy<Value = Plan> {
    (any::limit(), prop::collection::vec(request(), 1..60))
        .prop_map(|(limit, requests)| Plan { limit, requests }.with_one_loss())
}

fn request() -> impl Strategy<Value = PlannedRequest> {
    let intent = prop_oneof![6 => Just(Intent::Charge), 1 => Just(Intent::Peek)];
    let unknown = prop_oneof![12 => Just(None), 1 => any::<bool>().prop_map(Some)];
    let loss = prop_oneof![30 => Just(None), 1 => (0..1_000_usize).prop_map(Some)];
    let overlap = || 0..3 * STEP_US;
    (1..4_u64, intent, overlap(), overlap(), unknown, loss).prop_map(
        |(units, intent, began_before_us, ended_after_us, unknown, loss)| PlannedRequest {
            units,
            intent,
            began_before_us,
            ended_after_us,
            unknown,
            loss,
            loses_own_charge: false,
        },
    )
}

impl Plan {
    /// Keeps the first loss only.
    fn with_one_loss(mut self) -> Plan {
        let losing = self.requests.iter_mut().filter(|request| request.loss.is_some());
        losing.skip(1).for_each(|request| request.loss = None);
        self
    }

    pub(crate) fn losses(&self) -> usize {
        self.requests.iter().filter(|request| request.loss.is_some()).count()
    }

    pub(crate) fn without_losses_and_unknown_outcomes(mut self) -> Plan {
        for request in &mut self.requests {
            (request.unknown, request.loss) = (None, None);
        }
        self
    }

    pub(crate) fn without_overlaps(&self) -> Plan {
        let mut plan = self.clone().without_losses_and_unknown_outcomes();
        for request in &mut plan.requests {
            request.began_before_us /= 8;
            request.ended_after_us /= 8;
        }
        plan
    }

    /// Returns the indices of the requests that are charged.
    pub(crate) fn charged(&self) -> Vec<usize> {
        let history = self.history().into_iter().enumerate();
        history.filter(|(_, request)| request.admitted().is_some()).map(|(at, _)| at).collect()
    }

    /// Lets the limit decide the requests.
    pub(crate) fn history(&self) -> Vec<RecordedRequest> {
        let (mut state, mut states) = (self.limit.fresh(), Vec::new());
        let mut history = Vec::new();
        for (index, planned) in self.requests.iter().enumerate() {
            if let Some(part) = planned.loss.filter(|_| !states.is_empty()) {
                state = tollgate_core::State::clone(&states[part * states.len() / 1_000]);
            }
            states.push(state.clone());
            let decided_us = crate::trace::START_US + (1 + index as u64) * 4 * STEP_US;
            // A request with an unknown outcome may have waited for long.
            let waited = if planned.unknown.is_some() { 10 } else { 1 };
            let began_us = decided_us - waited * planned.began_before_us;
            let cost = Cost::new(planned.units).unwrap();
            let mut request = RecordedRequest {
                began_us,
                at_us: Some(began_us),
                cost,
                intent: planned.intent,
                answer: None,
            };
            if planned.unknown != Some(false) {
                let before = state.clone();
                let decision = match planned.intent {
                    Intent::Peek => self.limit.peek(&state, began_us, UnitRequest::new(cost)),
                    Intent::Charge => {
                        self.limit.check(&mut state, began_us, UnitRequest::new(cost)).decision
                    }
                };
                let ended_us = decided_us + planned.ended_after_us;
                request.answer =
                    planned.unknown.is_none().then_some(RecordedAnswer { ended_us, decision });
                if planned.loses_own_charge {
                    state = before;
                }
            }
            history.push(request);
        }
        history
    }
}
