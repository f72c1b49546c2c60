//! The decision about an admitted request, for the inner service.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::http::{Method, Request, Response};
use tollgate_limiter::{Answer, Decision, Error, Scope};

use super::settings::{LayerSettings, LimitSource};
use super::store_answer::StoreAnswer;
use crate::ResponseHead;
use crate::body::RefusalBody;
use crate::hold::{BodyHold, HeldLimits, HoldSettings, RequestHold, SharedHold};
use tollgate_http::{Outcome, QuotaHeaders};
use tollgate_rules::Ruling;

/// The decision about an admitted request, and the handle to refund its charge. Cheap to clone.
///
/// A [`RateLimitLayer`](super::RateLimitLayer) with [`with_decision`](super::RateLimitLayer::with_decision)
/// puts it into the extensions of each request that it limits and admits; with the feature `axum` it is an
/// extractor. With several such layers, a handler sees the decision of the innermost one.
///
/// ```
/// use axum::{Router, body::Body, http::Request, routing::post};
/// use tollgate::tower::{Admission, RateLimitLayer};
/// # use tower::ServiceExt;
///
/// async fn login(admission: Admission) -> &'static str {
///     // The password was right: only failures should count.
///     let _ = admission.refund().await;
///     "welcome"
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let layer = RateLimitLayer::per_ip("sliding-window-log limit=5 window=15m")?.with_decision();
/// let app = Router::new().route("/login", post(login).layer(layer));
/// let response = app.oneshot(Request::post("/login").body(Body::empty())?).await?;
/// assert_eq!(response.headers()["x-ratelimit-remaining"], "5"); // after the refund
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Admission {
    inner: Arc<AdmissionState>,
}

struct AdmissionState {
    spent: AdmissionCharge,
    /// The hold of a reservation.
    hold: Option<Arc<SharedHold>>,
    is_refunded: AtomicBool,
}

enum AdmissionCharge {
    Limit { scope: Scope, decision: Decision, cost: u64, key: Box<[u8]> },
    Rules(Ruling),
}

impl Admission {
    /// Returns `None` for an answer without a decision, or without a key to refund it by.
    pub(super) fn new(
        answered: StoreAnswer,
        by: &LimitSource,
        holds: &Arc<HoldSettings>,
    ) -> Option<Admission> {
        let (spent, hold) = match (answered, by) {
            (
                StoreAnswer::Limit { decision, hold, cost, key: Some(key) },
                LimitSource::Limit { scope, .. },
            ) => {
                let held = |hold| HeldLimits::of_limit(hold, cost, holds.hold_for(scope));
                let hold = hold.and_then(|hold| SharedHold::open(held(hold), holds));
                (AdmissionCharge::Limit { scope: scope.clone(), decision, cost, key }, hold)
            }
            (StoreAnswer::Rules(mut ruling), _) => {
                let held = ruling.take_hold().map(HeldLimits::of_rules);
                let hold = held.and_then(|held| SharedHold::open(held, holds));
                (AdmissionCharge::Rules(ruling), hold)
            }
            _ => return None,
        };
        let is_refunded = AtomicBool::new(false);
        Some(Admission { inner: Arc::new(AdmissionState { spent, hold, is_refunded }) })
    }

    /// Returns the hold of a request whose cost the layer has [reserved](super::RateLimitLayer::reserve), to settle it or
    /// to extend it. `None` if nothing is reserved, or the hold has ended.
    pub fn hold(&self) -> Option<RequestHold> {
        RequestHold::of(self.inner.hold.as_ref()?)
    }

    /// Returns the decision: each limit that took part, and what remains of it after this request.
    pub fn outcome(&self) -> Outcome<'_> {
        match &self.inner.spent {
            AdmissionCharge::Limit { scope, decision, cost, .. } => {
                Outcome::of_limit(scope, decision, *cost)
            }
            AdmissionCharge::Rules(ruling) => Outcome::of_rules(ruling),
        }
    }

    /// Refunds the request's charge under all limits. Returns how many units the refund made available again, summed
    /// over the limits.
    ///
    /// The refund is sent when this is called, even if the future is dropped. A charge is refunded once: later
    /// calls, on this handle or a clone, return 0, and the layer's
    /// [`refund_if`](super::RateLimitLayer::refund_if) refunds nothing. A decision that was made without the store
    /// ([`Outcome::is_degraded`]) charged nothing, so its refund returns 0 too. A shaping limit refunds a charge
    /// only if it is the last one. A [hold](Self::hold) is released: nothing is charged.
    ///
    /// An error means that the store failed; the charge may then remain.
    pub fn refund(&self) -> impl Future<Output = Result<u64, Error>> + Send + Sync + use<> {
        let refunds = self.send_refunds();
        async move {
            let mut back = Ok(0_u64);
            // Awaits all refunds, also after one has failed.
            for refund in refunds {
                let own = refund.await;
                back = back.and_then(|back| Ok(back.saturating_add(own?)));
            }
            back
        }
    }

    /// Returns whether a refund was started, on this handle or a clone.
    pub fn is_refunded(&self) -> bool {
        self.inner.is_refunded.load(Ordering::Acquire)
    }

    /// Sends the refunds and releases the hold, once.
    pub(super) fn send_refunds(&self) -> Vec<Answer<u64>> {
        if self.inner.is_refunded.swap(true, Ordering::AcqRel) {
            return Vec::new();
        }
        let mut refunds = match &self.inner.spent {
            AdmissionCharge::Limit { scope, decision, key, .. } => {
                let receipt = decision.receipt().map(|receipt| receipt.copy());
                receipt.map(|receipt| scope.refund(key, receipt)).into_iter().collect()
            }
            AdmissionCharge::Rules(ruling) => ruling.send_refunds(),
        };
        if let Some((units, released)) = self.inner.hold.as_ref().and_then(|hold| hold.refund()) {
            refunds.push(Answer::pending(async move { released.await.map(|_| units) }));
        }
        refunds
    }

    /// Whether there is something to refund.
    fn is_charged(&self) -> bool {
        if self.inner.hold.as_ref().is_some_and(|hold| !hold.only_places()) {
            return true;
        }
        match &self.inner.spent {
            AdmissionCharge::Limit { decision, .. } => decision.receipt().is_some(),
            AdmissionCharge::Rules(ruling) => ruling.is_charged(),
        }
    }

    /// Whether units are held for the request.
    pub(super) fn is_held(&self) -> bool {
        self.inner.hold.is_some()
    }

    /// How long the request is delayed.
    pub(super) fn delay(&self) -> Duration {
        self.outcome().delay()
    }

    /// Reads the limits again, after a refund. Returns `None` if the store does not answer.
    async fn peek_again(&self, settings: &LayerSettings) -> Option<QuotaHeaders> {
        let mut quota_headers = QuotaHeaders::Nothing;
        match &self.inner.spent {
            AdmissionCharge::Limit { scope, cost, key, .. } => {
                let decision = scope.peek(key).cost(*cost).await.ok()?;
                let outcome = Outcome::of_limit(scope, &decision, *cost).refreshed();
                (!outcome.is_degraded())
                    .then(|| settings.note_headers(&outcome, &mut quota_headers))?;
            }
            AdmissionCharge::Rules(ruling) => {
                let ruling = ruling.peek_again()?.await.ok()?;
                let outcome = Outcome::of_rules(&ruling).refreshed();
                (!outcome.is_degraded())
                    .then(|| settings.note_headers(&outcome, &mut quota_headers))?;
            }
        }
        Some(quota_headers)
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").field("outcome", &self.outcome()).finish_non_exhaustive()
    }
}

/// A request in flight that has a hold, or whose charge may be refunded after the inner service has responded.
pub(super) struct TrackedRequest {
    admission: Admission,
    settings: Arc<LayerSettings>,
}

/// The headers for a response after a refund; `None` if the headers that were noted before stay.
pub(super) type HeaderRefresh = Pin<Box<dyn Future<Output = Option<QuotaHeaders>> + Send + Sync>>;

impl TrackedRequest {
    /// Puts the decision into the request's extensions, if the layer is set to. The returned value keeps the request's
    /// hold.
    pub(super) fn new<B>(
        admission: Admission,
        settings: &Arc<LayerSettings>,
        request: &mut Request<B>,
    ) -> TrackedRequest {
        if settings.shows_decision {
            request.extensions_mut().insert(admission.clone());
        }
        if let Some(hold) = &admission.inner.hold
            && *request.method() == Method::CONNECT
        {
            hold.note_connect();
        }
        TrackedRequest { admission, settings: Arc::clone(settings) }
    }

    /// Refunds the charge if the layer's `refund_if` accepts this response. `None` if neither the layer nor the
    /// service refunded anything.
    pub(super) fn refund_after(&self, response: &dyn ResponseHead) -> Option<HeaderRefresh> {
        let (admission, settings) = (self.admission.clone(), Arc::clone(&self.settings));
        let refunds = settings.refund_if.as_ref().is_some_and(|refund_if| refund_if(response));
        if !admission.is_charged() || !(refunds || admission.is_refunded()) {
            return None;
        }
        let refund = refunds.then(|| admission.refund());
        Some(Box::pin(async move {
            if let Some(refund) = refund
                && let Err(error) = refund.await
            {
                settings.log_failed_refund(&error);
                return None;
            }
            admission.peek_again(&settings).await
        }))
    }
}

impl TrackedRequest {
    /// Passes the hold of the request on to the body of the response.
    pub(super) fn hold_until_end<R: RefusalBody>(&self, response: Response<R>) -> Response<R> {
        let Some(hold) = &self.admission.inner.hold else { return response };
        match hold.answered(&response).and_then(|source| BodyHold::of(hold, source)) {
            Some(hold) => response.map(|body| body.holding(hold)),
            None => response,
        }
    }

    /// Renews the hold of the request, if no task does and it is time.
    pub(super) fn renew_if_due(&self) {
        if let Some(hold) = &self.admission.inner.hold {
            hold.renew_if_due();
        }
    }
}

impl Drop for TrackedRequest {
    fn drop(&mut self) {
        if let Some(hold) = &self.admission.inner.hold {
            hold.leave();
        }
    }
}
