//! The hold of a request, shared by the layer, the inner service and the body of the response.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ::http::StatusCode;
use parking_lot::Mutex;
use tollgate_limiter::{Answer, Clock, Error, Hold, HoldSettlement, JointExtension};

use super::actual::CostSource;
use super::held_limits::HeldLimits;
use super::renewal::{Renewable, Renewal, RenewalTimes};
use super::settlement::settle_unwatched;
use super::terms::HoldSettings;
use crate::ResponseHead;

/// The hold of a request. It ends once: by a settlement of the inner service, or with its last keeper.
///
/// The keepers are the future of the response, then the body of the response, and each handle of the inner service.
pub(crate) struct SharedHold {
    /// `None` once the hold has ended.
    open: Mutex<Option<UnsettledHold>>,
    keepers: AtomicUsize,
    /// The request was a CONNECT: a successful response is the start of a tunnel.
    is_connect: AtomicBool,
    /// Nothing but places under concurrency limits is held.
    only_places: bool,
    times: RenewalTimes,
    clock: Clock,
    settings: Arc<HoldSettings>,
}

/// A hold that has not ended.
struct UnsettledHold {
    held: HeldLimits,
    /// The units that were used, if they are known.
    actual: Option<u64>,
    /// `None` until it has started.
    renewal: Option<Renewal>,
}

impl SharedHold {
    /// Keeps a hold and renews it. The caller is the first keeper. `None` if nothing is held.
    pub(crate) fn open(held: HeldLimits, settings: &Arc<HoldSettings>) -> Option<Arc<SharedHold>> {
        let clock = held.holds().first()?.scope().limiter().clock().clone();
        let times = RenewalTimes { hold_for: held.shortest_time(), max_hold: settings.max_hold };
        let only_places = held.only_places();
        let shared = Arc::new(SharedHold {
            open: Mutex::new(Some(UnsettledHold { held, actual: None, renewal: None })),
            keepers: AtomicUsize::new(1),
            is_connect: AtomicBool::new(false),
            only_places,
            times,
            clock,
            settings: Arc::clone(settings),
        });
        let renewal = Renewal::start(&shared, times, shared.clock.now_us());
        if let Some(open) = &mut *shared.open.lock() {
            open.renewal = Some(renewal);
        }
        Some(shared)
    }

    /// Whether nothing but places under concurrency limits is held.
    pub(crate) fn only_places(&self) -> bool {
        self.only_places
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.lock().is_some()
    }

    pub(super) fn units(&self) -> Option<u64> {
        self.open.lock().as_ref().map(|open| open.held.units())
    }

    pub(super) fn expires_at_us(&self) -> Option<u64> {
        self.open.lock().as_ref()?.held.expires_at_us()
    }

    /// Sets the units that are charged when the hold ends.
    pub(crate) fn note_used(&self, units: u64) {
        if let Some(open) = &mut *self.open.lock() {
            open.actual = Some(units);
        }
    }

    /// Adds a keeper, unless the hold has ended.
    pub(super) fn join(&self) -> bool {
        let more = |keepers| (keepers > 0).then_some(keepers + 1);
        self.keepers.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Removes a keeper. With the last one the hold ends, and is charged as [`note_used`](Self::note_used) says, or
    /// else in full.
    pub(crate) fn leave(&self) {
        if self.keepers.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let Some(UnsettledHold { held, actual, .. }) = self.take() else { return };
        settle_unwatched(held, actual, &self.clock, &self.settings);
    }

    /// Notes that the response has a head. Returns where the actual cost comes from; `None` if the response leaves the
    /// connection to another protocol: then it has no body to wait for.
    pub(crate) fn answered(&self, response: &dyn ResponseHead) -> Option<CostSource> {
        let source = self.settings.actual(response);
        let status = response.status();
        let is_tunnel = self.is_connect.load(Ordering::Relaxed) && status.is_success();
        if status != StatusCode::SWITCHING_PROTOCOLS && !is_tunnel {
            return Some(source);
        }
        if let CostSource::Units(units) = source
            && !self.only_places
        {
            self.note_used(units);
        } else if self.keepers.load(Ordering::Acquire) == 1
            && let Some(unsettled) = self.take()
        {
            // Only the inner service knows when the upgraded connection ends, and it has kept no handle. So nothing is
            // settled, and the hold is left to expire.
            unsettled.held.leave();
        }
        None
    }

    pub(crate) fn note_connect(&self) {
        self.is_connect.store(true, Ordering::Relaxed);
    }

    /// Ends the hold, and charges under each limit what `used` returns. `None` if it has ended before.
    pub(super) fn settle(
        &self,
        used: impl FnMut(&Hold) -> u64,
    ) -> Option<Answer<Vec<HoldSettlement>>> {
        self.take().map(|open| open.held.settle_each(used))
    }

    /// Releases what would be charged. Places stay held until the request has ended. Returns the units that are free
    /// again, and the answer to await; `None` if nothing would be charged.
    pub(crate) fn refund(&self) -> Option<(u64, Answer<Vec<HoldSettlement>>)> {
        let charged = {
            let mut open = self.open.lock();
            let UnsettledHold { held, actual, renewal } = open.take()?;
            let (places, charged) = held.split_places();
            if !places.is_empty() {
                *open = Some(UnsettledHold { held: places, actual, renewal });
            }
            charged
        };
        (!charged.is_empty()).then(|| (charged.total(), charged.settle(Some(0))))
    }

    /// Sends an extension. `None` if the hold has ended.
    pub(super) fn extend(&self, more: u64) -> Option<Answer<JointExtension>> {
        self.open.lock().as_mut().map(|open| open.held.extend(more))
    }

    /// Notes that an extension was not granted.
    pub(super) fn shrink(&self, more: u64) {
        if let Some(open) = &mut *self.open.lock() {
            open.held.shrink(more);
        }
    }

    /// Renews a hold that no task renews, if it is time.
    pub(crate) fn renew_if_due(&self) {
        let is_due = match &mut *self.open.lock() {
            Some(UnsettledHold { renewal: Some(renewal), .. }) => {
                renewal.is_due(self.times, &self.clock)
            }
            _ => false,
        };
        if is_due {
            // It is sent, and there is no runtime to wait on.
            drop(self.renew());
        }
    }

    fn take(&self) -> Option<UnsettledHold> {
        self.open.lock().take()
    }
}

impl Renewable for SharedHold {
    fn renew(&self) -> Option<Answer<JointExtension>> {
        self.extend(0)
    }

    fn forget_ended(&self, extension: &JointExtension) -> bool {
        self.open.lock().as_mut().is_some_and(|open| open.held.forget_ended(extension))
    }

    fn log_failure(&self, error: &Error) {
        self.settings.log_failure(&self.clock, "renewed", error);
    }

    fn log_early_end(&self) {
        self.settings.log_early_end(&self.clock);
    }
}
