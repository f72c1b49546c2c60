//! The hold as the inner service sees it.

use std::fmt;
use std::sync::Arc;

use tollgate_limiter::{Answer, Error, Hold, HoldSettlement, JointExtension};

use super::shared::SharedHold;

/// The hold of a request, for the inner service: it can settle the hold itself, or extend it when the request needs
/// more units than the layer has reserved. [`Admission::hold`](crate::Admission::hold) returns it.
///
/// While a handle exists, the hold does not end, and is renewed. So a service that works longer than its response, such
/// as a WebSocket, moves a handle into its task.
///
/// ```
/// # use tollgate::tower::Admission;
/// /// Generates an answer of unknown length.
/// async fn generate(admission: Admission) -> Result<String, Box<dyn std::error::Error>> {
///     let Some(hold) = admission.hold() else { return Ok(String::new()) };
///     let (mut text, mut used) = (String::new(), 0);
///     while let Some((word, tokens)) = next_word(&text) {
///         if used + tokens > hold.units() && !hold.extend(500).await?.is_some_and(|it| it.is_granted()) {
///             break; // the client's quota is spent
///         }
///         used += tokens;
///         hold.note_used(used); // charged if the client hangs up
///         text.push_str(word);
///     }
///     Ok(text)
/// }
/// # fn next_word(_: &str) -> Option<(&'static str, u64)> { None }
/// ```
pub struct RequestHold {
    shared: Arc<SharedHold>,
}

impl RequestHold {
    /// Returns a handle; `None` if the hold has ended.
    pub(crate) fn of(shared: &Arc<SharedHold>) -> Option<RequestHold> {
        (shared.is_open() && shared.join()).then(|| RequestHold { shared: Arc::clone(shared) })
    }

    /// Returns the units that are held; 0 once the hold has ended. If units are held under several limits, returns the
    /// smallest number of them; places under concurrency limits count only if nothing else is held.
    pub fn units(&self) -> u64 {
        self.shared.units().unwrap_or(0)
    }

    /// Returns when the hold expires unless it is renewed, in microseconds since the Unix epoch by the store's clock;
    /// `None` once the hold has ended.
    pub fn expires_at_us(&self) -> Option<u64> {
        self.shared.expires_at_us()
    }

    /// Whether the hold has ended: it was settled or released, or its request refunded.
    pub fn is_ended(&self) -> bool {
        !self.shared.is_open()
    }

    /// Sets how many units are charged when the hold ends with the response, instead of all that are held. The last
    /// number counts, whether it is from this function or from the layer's
    /// [`settle`](crate::RateLimitLayer::settle).
    pub fn note_used(&self, units: u64) {
        self.shared.note_used(units);
    }

    /// Ends the hold, and charges the units that were used, under each of its limits. The layer then settles nothing.
    /// Returns a settlement for each limit; none if the hold has ended before.
    ///
    /// The settlement is sent when this is called, even if the future is dropped. If the store fails, the hold is
    /// charged in full at its expiry. Places under concurrency limits are freed, and nothing is charged for them.
    pub fn settle(&self, used: u64) -> Answer<Vec<HoldSettlement>> {
        self.settle_each(|_| used)
    }

    /// Does the same as [`settle`](Self::settle), with other units for each limit: `used` returns them for a hold, whose
    /// [scope](Hold::scope) names the limit.
    pub fn settle_each(&self, used: impl FnMut(&Hold) -> u64) -> Answer<Vec<HoldSettlement>> {
        self.shared.settle(used).unwrap_or_else(|| Answer::ready(Ok(Vec::new())))
    }

    /// Ends the hold and charges nothing, as [`settle`](Self::settle) by 0 units.
    pub fn release(&self) -> Answer<Vec<HoldSettlement>> {
        self.settle(0)
    }

    /// Adds `more` units to the hold under each of its limits, if a check of them would be allowed. If one of the limits
    /// refuses, the hold stays as it was. `None` if the hold has ended.
    ///
    /// The extension is sent when this is called. If the future is dropped before it returns the answer, the units count
    /// as granted. Places under concurrency limits are added only if nothing else is held.
    pub fn extend(
        &self,
        more: u64,
    ) -> impl Future<Output = Result<Option<JointExtension>, Error>> + Send + Sync + use<> {
        let answer = self.shared.extend(more);
        let shared = Arc::clone(&self.shared);
        async move {
            let Some(answer) = answer else { return Ok(None) };
            let extended = answer.await;
            if !extended.as_ref().is_ok_and(JointExtension::is_granted) {
                shared.shrink(more);
            }
            extended.map(Some)
        }
    }
}

impl Clone for RequestHold {
    fn clone(&self) -> RequestHold {
        // Succeeds, because this handle is a keeper.
        self.shared.join();
        RequestHold { shared: Arc::clone(&self.shared) }
    }
}

impl Drop for RequestHold {
    fn drop(&mut self) {
        self.shared.leave();
    }
}

impl fmt::Debug for RequestHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHold").field("units", &self.units()).finish_non_exhaustive()
    }
}
