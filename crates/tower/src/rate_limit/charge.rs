//! What was charged for a request that waits.

use std::time::Duration;

use super::admission::Admission;
use super::line::Place;

/// What was charged for a request that has not gone. Dropped, it is given back, as far as the limit can.
pub(super) struct Charge {
    pub(super) delay: Duration,
    admission: Option<Admission>,
    _place: Option<Place>,
}

impl Charge {
    /// What was charged for a request that is delayed, and its place among those.
    pub(super) fn new(admission: Admission, place: Option<Place>) -> Charge {
        Charge { delay: admission.delay(), admission: Some(admission), _place: place }
    }

    pub(super) fn admission(&self) -> Option<Admission> {
        self.admission.clone()
    }

    /// It goes: nothing is given back.
    pub(super) fn keep(mut self) {
        self.admission = None;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(admission) = self.admission.take() {
            // Nothing waits for the answers. On Redis the refunds are on their way all the same.
            drop(admission.send_refunds());
        }
    }
}
