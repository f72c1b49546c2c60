//! The decision about a request that goes, for the service inside.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::http::Request;
use tollgate_limiter::{Answer, Decision, Error, Scope};

use super::settings::{By, Settings};
use super::store_answer::StoreAnswer;
use crate::ResponseHead;
use tollgate_http::{Outcome, QuotaHeaders};
use tollgate_rules::Ruling;

/// The decision about a request that was admitted, and the handle to give its charge back. Cheap to clone.
///
/// A [`RateLimitLayer`](super::RateLimitLayer) with [`with_decision`](super::RateLimitLayer::with_decision)
/// puts it into the extensions of each request that it limits and lets go; under feature `axum` it is an
/// extractor. With several such layers, a handler sees the decision of the innermost one.
///
/// ```
/// use axum::{Router, body::Body, http::Request, routing::post};
/// use tollgate::tower::{Admission, RateLimitLayer};
/// # use tower::ServiceExt;
///
/// async fn login(admission: Admission) -> &'static str {
///     // The password was right: only failures are to count.
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
    inner: Arc<Inner>,
}

struct Inner {
    spent: Spending,
    is_refunded: AtomicBool,
}

enum Spending {
    Limit { scope: Scope, decision: Decision, cost: u64, key: Box<[u8]> },
    Rules(Ruling),
}

impl Admission {
    /// `None` of what has no decision.
    pub(super) fn new(answered: StoreAnswer, by: &By) -> Option<Admission> {
        let spent = match (answered, by) {
            (StoreAnswer::Limit { decision, cost, key: Some(key) }, By::Limit { scope, .. }) => {
                Spending::Limit { scope: scope.clone(), decision, cost, key }
            }
            (StoreAnswer::Rules(ruling), _) => Spending::Rules(ruling),
            _ => return None,
        };
        Some(Admission { inner: Arc::new(Inner { spent, is_refunded: AtomicBool::new(false) }) })
    }

    /// Returns what was decided: each limit that had a say, and how the client stood with it after this
    /// request.
    pub fn outcome(&self) -> Outcome<'_> {
        match &self.inner.spent {
            Spending::Limit { scope, decision, cost, .. } => {
                Outcome::of_limit(scope, decision, *cost)
            }
            Spending::Rules(ruling) => Outcome::of_rules(ruling),
        }
    }

    /// Gives back what the request was charged, under all limits; how many more units remain then, over all of
    /// them.
    ///
    /// The refund is sent when this is called, also if the future is dropped. The charge comes back once:
    /// for later calls, on this handle or a clone, and for the layer's
    /// [`refund_if`](super::RateLimitLayer::refund_if), nothing is left, and they return 0. So does a refund of a
    /// decision that was made without the store ([`Outcome::is_degraded`]), which charged nothing. Of a
    /// shaping limit a place comes back only if it is the last one.
    ///
    /// An error says that the store failed; the charge may then stay.
    pub fn refund(&self) -> impl Future<Output = Result<u64, Error>> + Send + Sync + use<> {
        let refunds = self.send_refunds();
        async move {
            let mut back = Ok(0_u64);
            // One that fails does not keep the others from being read.
            for refund in refunds {
                let own = refund.await;
                back = back.and_then(|back| Ok(back.saturating_add(own?)));
            }
            back
        }
    }

    /// Returns whether a refund was begun, here or on a clone.
    pub fn is_refunded(&self) -> bool {
        self.inner.is_refunded.load(Ordering::Acquire)
    }

    /// Sends the refunds, once.
    pub(super) fn send_refunds(&self) -> Vec<Answer<u64>> {
        if self.inner.is_refunded.swap(true, Ordering::AcqRel) {
            return Vec::new();
        }
        match &self.inner.spent {
            Spending::Limit { scope, decision, key, .. } => {
                let receipt = decision.receipt().map(|receipt| receipt.copy());
                receipt.map(|receipt| scope.refund(key, receipt)).into_iter().collect()
            }
            Spending::Rules(ruling) => ruling.send_refunds(),
        }
    }

    fn is_charged(&self) -> bool {
        match &self.inner.spent {
            Spending::Limit { decision, .. } => decision.receipt().is_some(),
            Spending::Rules(ruling) => ruling.is_charged(),
        }
    }

    /// How long the request waits before it goes.
    pub(super) fn delay(&self) -> Duration {
        self.outcome().delay()
    }

    /// Asks the store how the client stands now. `None` if the store does not answer.
    async fn look_again(&self, settings: &Settings) -> Option<QuotaHeaders> {
        let mut told = QuotaHeaders::Nothing;
        match &self.inner.spent {
            Spending::Limit { scope, cost, key, .. } => {
                let decision = scope.peek(key).cost(*cost).await.ok()?;
                let outcome = Outcome::of_limit(scope, &decision, *cost).looked_at();
                (!outcome.is_degraded()).then(|| settings.note(&outcome, &mut told))?;
            }
            Spending::Rules(ruling) => {
                let ruling = ruling.look_again()?.await.ok()?;
                let outcome = Outcome::of_rules(&ruling).looked_at();
                (!outcome.is_degraded()).then(|| settings.note(&outcome, &mut told))?;
            }
        }
        Some(told)
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").field("outcome", &self.outcome()).finish_non_exhaustive()
    }
}

/// A request on its way whose charge may be given back when the service inside has answered.
pub(super) struct Tracked {
    admission: Admission,
    settings: Arc<Settings>,
}

/// What is told with a response after a refund; `None` is what was told before.
pub(super) type Retelling = Pin<Box<dyn Future<Output = Option<QuotaHeaders>> + Send + Sync>>;

impl Tracked {
    /// Shows the decision to the service inside, if that is wanted.
    pub(super) fn new<B>(
        admission: Admission,
        settings: &Arc<Settings>,
        request: &mut Request<B>,
    ) -> Tracked {
        if settings.shows_decision {
            request.extensions_mut().insert(admission.clone());
        }
        Tracked { admission, settings: Arc::clone(settings) }
    }

    /// Refunds the charge if the layer says so of this response; `None` if nothing was refunded, by the layer
    /// or by the service.
    pub(super) fn settle(&self, response: &dyn ResponseHead) -> Option<Retelling> {
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
                settings.complain_of_refund(&error);
                return None;
            }
            admission.look_again(&settings).await
        }))
    }
}
