//! A response body that keeps the hold of its request until it has ended.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::thread;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use pin_project_lite::pin_project;

use super::actual::{BodyMeter, CostSource};
use super::shared::SharedHold;

/// The hold of a request whose response has a body. Dropping it ends the hold.
///
/// [`RefusalBody::holding`](crate::RefusalBody::holding) gets it, and [wraps](BodyHold::wrap) the body with it.
#[must_use = "dropping it ends the hold of the request"]
pub struct BodyHold {
    shared: Arc<SharedHold>,
    /// In a mutex, so that a meter that is not `Sync` can be in a body that is.
    meter: Option<Mutex<Box<dyn BodyMeter>>>,
}

impl BodyHold {
    /// Returns a new keeper of the hold, and notes the actual cost if it is known; `None` if the hold has ended.
    pub(crate) fn of(shared: &Arc<SharedHold>, source: CostSource) -> Option<BodyHold> {
        let meter = match source {
            CostSource::Unknown => None,
            CostSource::Units(units) => {
                shared.note_used(units);
                None
            }
            CostSource::Body(meter) => Some(Mutex::new(meter)),
        };
        shared.join().then(|| BodyHold { shared: Arc::clone(shared), meter })
    }

    /// Returns the body, which now keeps the hold until it has ended or is dropped.
    pub fn wrap<B: Body<Data = Bytes>>(self, body: B) -> HeldBody<B> {
        let hold = (!body.is_end_stream()).then_some(self);
        HeldBody { body, hold }
    }

    /// Ends the hold with a body that is in memory as a whole: the service has done its work.
    pub fn end_with(mut self, body: &[u8]) {
        self.data(body);
    }

    /// Ends the hold with a body that cannot be wrapped, and logs that once.
    pub fn end_unseen(self) {
        static HAS_WARNED: AtomicBool = AtomicBool::new(false);
        if !HAS_WARNED.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the type of a response body has no `RefusalBody::holding`: holds end before such bodies do"
            );
        }
    }

    fn frame(&mut self, frame: &Frame<Bytes>) {
        if let Some(chunk) = frame.data_ref() {
            self.data(chunk);
        }
        if let (Some(meter), Some(trailers)) = (&mut self.meter, frame.trailers_ref()) {
            meter.get_mut().trailers(trailers);
        }
    }

    fn data(&mut self, chunk: &[u8]) {
        if let Some(meter) = &mut self.meter {
            meter.get_mut().data(chunk);
        }
    }
}

impl Drop for BodyHold {
    fn drop(&mut self) {
        // A meter that panics while a panic unwinds would end the process.
        if let Some(meter) = &mut self.meter
            && !thread::panicking()
            && let Some(units) = meter.get_mut().units()
        {
            self.shared.note_used(units);
        }
        self.shared.leave();
    }
}

impl fmt::Debug for BodyHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyHold").finish_non_exhaustive()
    }
}

pin_project! {
    /// A response body that keeps the hold of its request until it has ended or is dropped.
    #[derive(Debug)]
    pub struct HeldBody<B> {
        // Dropped first, with the handles of the hold that the body may have.
        #[pin]
        body: B,
        hold: Option<BodyHold>,
    }
}

impl<B: Body<Data = Bytes>> Body for HeldBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut this = self.project();
        let Some(hold) = this.hold else { return this.body.poll_frame(context) };
        hold.shared.renew_if_due();
        let polled = ready!(this.body.as_mut().poll_frame(context));
        let has_ended = match &polled {
            Some(Ok(frame)) => {
                hold.frame(frame);
                frame.is_trailers() || this.body.is_end_stream()
            }
            Some(Err(_)) | None => true,
        };
        if has_ended {
            *this.hold = None;
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
