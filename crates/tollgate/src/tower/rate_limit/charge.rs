//! What was charged for a request that waits.

use std::mem;
use std::time::Duration;

use super::decide::Answered;
use super::line::Place;
use super::settings::By;
use crate::decision::Decision;
use crate::rules::Ruling;
use crate::scope::Scope;

/// What was charged for a request that has not gone. Dropped, it is given back, as far as the limit can.
pub(super) struct Charge {
    pub(super) delay: Duration,
    paid: Paid,
    _place: Option<Place>,
}

enum Paid {
    Limit { scope: Scope, decision: Decision, key: Option<Box<[u8]>> },
    Rules(Ruling),
    Nothing,
}

impl Charge {
    /// What was charged for a request that is delayed, and its place among those.
    pub(super) fn new(answered: Answered, by: &By, place: Option<Place>) -> Charge {
        let (delay_us, paid) = match (answered, by) {
            (Answered::Limit { decision, key, .. }, By::Limit { scope, .. }) => {
                let scope = scope.clone();
                (decision.verdict().delay_us(), Paid::Limit { scope, decision, key })
            }
            (Answered::Rules(ruling), _) => (ruling.verdict().delay_us(), Paid::Rules(ruling)),
            // Nothing else is delayed.
            _ => (0, Paid::Nothing),
        };
        Charge { delay: Duration::from_micros(delay_us), paid, _place: place }
    }

    /// It goes: nothing is given back.
    pub(super) fn keep(mut self) {
        self.paid = Paid::Nothing;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        match mem::replace(&mut self.paid, Paid::Nothing) {
            // Nobody is left to tell. On Redis it is on its way all the same.
            Paid::Limit { scope, decision, key: Some(key) } => {
                if let Some(receipt) = decision.into_receipt() {
                    drop(scope.refund(&key, receipt));
                }
            }
            Paid::Rules(ruling) => ruling.give_back(),
            Paid::Limit { .. } | Paid::Nothing => {}
        }
    }
}
