//! The charge of a delayed request.

use std::time::Duration;

use super::admission::Admission;
use super::waiting::WaitingSlot;

/// The charge of a request that is delayed. Dropping it refunds the charge, as far as the limit can refund it.
pub(super) struct DelayedCharge {
    pub(super) delay: Duration,
    admission: Option<Admission>,
    _slot: Option<WaitingSlot>,
}

impl DelayedCharge {
    /// Holds the charge and the waiting slot of a delayed request.
    pub(super) fn new(admission: Admission, slot: Option<WaitingSlot>) -> DelayedCharge {
        DelayedCharge { delay: admission.delay(), admission: Some(admission), _slot: slot }
    }

    pub(super) fn admission(&self) -> Option<Admission> {
        self.admission.clone()
    }

    /// Keeps the charge: the request goes to the service.
    pub(super) fn keep(mut self) {
        self.admission = None;
    }
}

impl Drop for DelayedCharge {
    fn drop(&mut self) {
        if let Some(admission) = self.admission.take() {
            // Nothing awaits the answers; on Redis the refunds are sent all the same.
            drop(admission.send_refunds());
        }
    }
}
