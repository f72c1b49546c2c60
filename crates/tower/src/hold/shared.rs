//! The hold of a request, shared by the layer, the inner service and the body of the response.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tollgate_core::MAX_UNITS;
use tollgate_limiter::{Answer, Clock, Error, Hold, HoldExtension, HoldSettlement};

use super::actual::CostSource;
use super::renewal::{Renewable, Renewal, RenewalTimes};
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
    only_holds: bool,
    times: RenewalTimes,
    clock: Clock,
    settings: Arc<HoldSettings>,
}

/// A hold that has not ended.
struct UnsettledHold {
    hold: Hold,
    /// The units that are held. While an extension is in flight, with its units.
    units: u64,
    /// The units that were used, if they are known.
    actual: Option<u64>,
    /// `None` until it has started.
    renewal: Option<Renewal>,
}

impl SharedHold {
    /// Keeps a hold of so many units and renews it. The caller is the first keeper.
    pub(crate) fn open(hold: Hold, units: u64, settings: &Arc<HoldSettings>) -> Arc<SharedHold> {
        let clock = hold.scope().limiter().clock().clone();
        let (hold_for, max_hold) = (settings.hold_for(hold.scope()), settings.max_hold);
        let times = RenewalTimes { hold_for, max_hold };
        let only_holds = hold.scope().only_holds();
        let shared = Arc::new(SharedHold {
            open: Mutex::new(Some(UnsettledHold { hold, units, actual: None, renewal: None })),
            keepers: AtomicUsize::new(1),
            is_connect: AtomicBool::new(false),
            only_holds,
            times,
            clock,
            settings: Arc::clone(settings),
        });
        let renewal = Renewal::start(&shared, times, shared.clock.now_us());
        if let Some(open) = &mut *shared.open.lock() {
            open.renewal = Some(renewal);
        }
        shared
    }

    /// Whether the limit's units are only ever held: a place for as long as the request is under way.
    pub(crate) fn only_holds(&self) -> bool {
        self.only_holds
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.lock().is_some()
    }

    pub(super) fn units(&self) -> Option<u64> {
        self.open.lock().as_ref().map(|open| open.units)
    }

    pub(super) fn expires_at_us(&self) -> Option<u64> {
        self.open.lock().as_ref().map(|open| open.hold.expires_at_us())
    }

    /// Sets the units that are charged when the hold ends.
    pub(crate) fn note_used(&self, units: u64) {
        if let Some(open) = &mut *self.open.lock() {
            open.actual = Some(units.min(MAX_UNITS));
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
        let Some(open) = self.take() else { return };
        let used = open.actual.unwrap_or(open.units);
        self.observe(open.hold.settle(used));
    }

    /// Notes that the response has a head. Returns where the actual cost comes from; `None` if the response leaves the
    /// connection to another protocol: then it has no body to wait for.
    pub(crate) fn answered(&self, response: &dyn ResponseHead) -> Option<CostSource> {
        let source = self.settings.actual(response);
        let status = response.status();
        let is_tunnel = self.is_connect.load(Ordering::Relaxed) && status.is_success();
        if status != ::http::StatusCode::SWITCHING_PROTOCOLS && !is_tunnel {
            return Some(source);
        }
        if let CostSource::Units(units) = source {
            self.note_used(units);
        } else if self.keepers.load(Ordering::Acquire) == 1 {
            // Only the inner service knows when the upgraded connection ends, and it has kept no handle. So nothing is
            // settled, and the hold ends by its time.
            if let Some(unsettled) = self.take() {
                unsettled.hold.into_reference();
            }
        }
        None
    }

    pub(crate) fn note_connect(&self) {
        self.is_connect.store(true, Ordering::Relaxed);
    }

    /// Ends the hold and charges these units. `None` if it has ended before.
    pub(super) fn settle(&self, used: u64) -> Option<Answer<HoldSettlement>> {
        self.take().map(|open| open.hold.settle(used.min(MAX_UNITS)))
    }

    /// Ends the hold and charges nothing. Returns the units that are free again, and the answer to await. `None` if the
    /// hold has ended before.
    pub(crate) fn release(&self) -> Option<(u64, Answer<HoldSettlement>)> {
        self.take().map(|open| (open.units, open.hold.release()))
    }

    /// Sends an extension. `None` if the hold has ended.
    pub(super) fn extend(&self, more: u64, hold_for: Duration) -> Option<Answer<HoldExtension>> {
        let mut open = self.open.lock();
        let open = open.as_mut()?;
        open.units = open.units.saturating_add(more);
        Some(open.hold.extend(more, hold_for))
    }

    /// Notes that an extension was not granted.
    pub(super) fn forget(&self, more: u64) {
        if let Some(open) = &mut *self.open.lock() {
            open.units = open.units.saturating_sub(more);
        }
    }

    pub(super) fn hold_for(&self) -> Duration {
        self.times.hold_for
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

    /// Logs the failure of a settlement that nothing waits for. The hold is then charged in full when it expires.
    fn observe(&self, mut answer: Answer<HoldSettlement>) {
        let (clock, settings) = (self.clock.clone(), Arc::clone(&self.settings));
        let log = move |settled: Result<HoldSettlement, Error>| {
            if let Err(error) = settled {
                settings.log_failure(&clock, "settled", &error);
            }
        };
        // In memory the answer is ready.
        match Pin::new(&mut answer).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(settled) => log(settled),
            Poll::Pending => {
                if let Ok(runtime) = Handle::try_current() {
                    runtime.spawn(async move { log(answer.await) });
                }
            }
        }
    }
}

impl Renewable for SharedHold {
    fn renew(&self) -> Option<Answer<HoldExtension>> {
        self.extend(0, self.times.hold_for)
    }

    fn log_failure(&self, error: &Error) {
        self.settings.log_failure(&self.clock, "renewed", error);
    }

    fn log_early_end(&self) {
        self.settings.log_early_end(&self.clock);
    }
}
