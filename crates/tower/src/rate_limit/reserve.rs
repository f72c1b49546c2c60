//! Costs that are known only afterwards: an estimate is reserved, and the actual cost settled.

use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use super::admission::Admission;
use super::layer::RateLimitLayer;
use super::settings::LimitSource;
use crate::ResponseHead;
use crate::hold::{ActualCost, HoldSettings};
#[cfg(doc)]
use crate::hold::{BodyMeter, RequestHold};
use tollgate_identity::RequestHead;

impl RateLimitLayer {
    /// Sets units aside for a request whose cost is known only when its response has ended: the estimate of its cost.
    /// [`settle`](Self::settle) says what it really cost. The rest is free at once, and what it cost beyond the estimate
    /// is charged too.
    ///
    /// ```
    /// use tollgate::tower::{ActualCost, RateLimitLayer};
    /// # fn total_tokens(end_of_body: &[u8]) -> Option<u64> { None }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // The tokens of an LLM: at most as many as the request allows.
    /// let layer = RateLimitLayer::per_ip("token-bucket capacity=100000 refill=100000/m")?
    ///     .reserve(|request| {
    ///         let header = request.headers().get("x-max-tokens");
    ///         header.and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(4_000)
    ///     })
    ///     .settle(|_| ActualCost::from_tail(4_096, total_tokens));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The units are held until the body of the response has ended or was dropped; until then their hold is renewed
    /// ([`hold_for`](Self::hold_for)). If the actual cost is not known at the end, the estimate is charged in full. A
    /// handler can settle or extend the hold itself ([`Admission::hold`]).
    ///
    /// - The estimate takes the place of [`cost`](Self::cost): the later call counts. A request whose estimate is 0 is
    ///   not limited. Estimate at least what a request can cost, or extend the hold when it needs more: what requests
    ///   in flight cost beyond their estimates exceeds the limit.
    /// - If the store fails, the limit's failure policy decides whether the request proceeds without a hold.
    /// - With [rules](Self::rules), the file says which rules reserve (`cost: { reserve: … }`). The estimate, at least 1,
    ///   takes the place of the units that these rules give, and the actual cost is charged to each of them. All limits of
    ///   the rules are reserved or charged together, or none is.
    /// - A shaping limit cannot have holds, and a store may not have them: then requests are answered 503, and the log
    ///   says why.
    #[must_use]
    pub fn reserve(
        self,
        estimate: impl Fn(&RequestHead<'_>) -> u64 + Send + Sync + 'static,
    ) -> RateLimitLayer {
        self.with(|settings| match settings.by {
            LimitSource::Limit { .. } => {
                settings.cost = Some(Arc::new(estimate));
                (settings.is_tracked, settings.reserves) = (true, true);
            }
            LimitSource::Rules { .. } => settings.estimate = Some(Arc::new(estimate)),
        })
    }

    /// Sets what a request with a [reservation](Self::reserve) really cost: the closure gets the head of the response,
    /// and returns units, `None` if the cost is not known, or an [`ActualCost`] that is measured while the body streams.
    ///
    /// ```
    /// use tollgate::tower::{ActualCost, RateLimitLayer};
    ///
    /// #[derive(Clone, Copy)]
    /// struct RowsRead(u64); // an extension that the handler puts into its response
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let layer = || RateLimitLayer::per_ip("fixed-window limit=10000 window=1h");
    /// let by_extension = layer()?.reserve(|_| 100).settle(|response| {
    ///     response.extensions().get::<RowsRead>().map(|rows| rows.0)
    /// });
    /// let by_header = layer()?.reserve(|_| 100).settle(|response| {
    ///     Some(response.headers().get("x-cost")?.to_str().ok()?.parse().ok()?)
    /// });
    /// // A failed request costs nothing, and any other what it reserved.
    /// let by_status = layer()?
    ///     .reserve(|_| 100)
    ///     .settle(|response| response.status().is_server_error().then_some(0));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn settle<A: Into<ActualCost>>(
        self,
        actual: impl Fn(&dyn ResponseHead) -> A + Send + Sync + 'static,
    ) -> RateLimitLayer {
        self.with_holds(|holds| {
            holds.settle = Some(Arc::new(move |response| actual(response).into()))
        })
    }

    /// Sets how long units are held unless the hold is renewed. The default is a rule's `hold_for`, a concurrency
    /// limit's own time, or else 60 s. If the process is killed, the units are charged after at most this time.
    ///
    /// A hold is renewed after half of this time, by a task of the tokio runtime that serves the request, while the
    /// service works and the body streams. Without a tokio runtime it is renewed when the response is polled. Timers
    /// have a resolution of 1 ms, so a time of a few milliseconds may end early.
    #[must_use]
    pub fn hold_for(self, time: Duration) -> RateLimitLayer {
        self.with_holds(|holds| holds.hold_for = Some(time))
    }

    /// Sets how long the hold of one request is renewed; the default is 24 h. After that the hold is left to expire.
    /// This bounds the hold of a response that never ends.
    #[must_use]
    pub fn max_hold(self, time: Duration) -> RateLimitLayer {
        self.with_holds(|holds| holds.max_hold = time)
    }

    fn with_holds(self, change: impl FnOnce(&mut HoldSettings)) -> RateLimitLayer {
        self.with(|settings| change(Arc::make_mut(&mut settings.holds)))
    }
}
