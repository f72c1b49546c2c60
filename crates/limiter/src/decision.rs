//! The answer to a check.

use std::time::Duration;

use tollgate_core::{CheckResult, Limit, Verdict};

use crate::receipt::{Fingerprint, Receipt};

/// The decision on one request under one limit.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the request may have been refused: branch on `is_allowed()` or `verdict()`"]
pub struct Decision {
    decided: tollgate_core::LimitDecision,
    receipt: Option<Receipt>,
    source: DecisionSource,
}

/// Where a decision comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionSource {
    /// The store.
    Store,
    /// The store, about a key with holds. Their units may come back at any time, also by a settlement in another process.
    BesideHolds,
    /// The deny cache: a refusal by the store from up to a second ago.
    Cache,
    /// A lease of this process: units that the store had set aside.
    Leased,
    /// The failure policy, because the store failed.
    Degraded,
}

impl Decision {
    /// Returns the store's decision about a key, with a receipt for that key if it was charged.
    #[inline(always)]
    pub fn of_key(
        CheckResult { decision, receipt }: CheckResult,
        fingerprint: Fingerprint,
    ) -> Decision {
        let receipt = receipt.map(|charge| Receipt::new(charge, fingerprint));
        Decision { decided: decision, receipt, source: DecisionSource::Store }
    }

    /// Returns a decision that charged nothing.
    #[inline]
    pub fn uncharged(decided: tollgate_core::LimitDecision, source: DecisionSource) -> Decision {
        Decision { decided, receipt: None, source }
    }

    /// Notes that the key has holds. Only for stores that several processes use: the caller that waits for units then asks
    /// again from time to time.
    pub fn beside_holds(self) -> Decision {
        Decision { source: DecisionSource::BesideHolds, ..self }
    }

    /// Whether the store has noted that the key has holds.
    pub fn is_beside_holds(&self) -> bool {
        self.source == DecisionSource::BesideHolds
    }

    /// Whether the store has decided now: this is no remembered refusal, and no decision without the store.
    #[inline]
    pub(crate) fn is_of_store_now(&self) -> bool {
        matches!(self.source, DecisionSource::Store | DecisionSource::BesideHolds)
    }

    /// Notes that a lease of this process decided.
    pub(crate) fn leased(self) -> Decision {
        Decision { source: DecisionSource::Leased, ..self }
    }

    /// Takes the receipt.
    pub fn take_receipt(&mut self) -> Option<Receipt> {
        self.receipt.take()
    }

    /// Returns the same decision without the receipt, for another part of a check that was charged once.
    pub fn without_receipt(&self) -> Decision {
        Decision { receipt: None, ..*self }
    }

    /// Whether this is a remembered refusal from up to a second ago, for which the store was not queried again.
    ///
    /// The wait is then that of the remembered refusal, whose cost may have been lower than this request's. The
    /// remaining units are those at the time of that refusal.
    pub fn is_cached(&self) -> bool {
        self.source == DecisionSource::Cache
    }

    /// Whether this process decided with units of a [lease](crate::Scope::leased), or refused because its lease is empty.
    ///
    /// `remaining` and `reset_after` are then values of the store's last answer, less the units that this process has used
    /// since. The wait of a refusal is the time until this process asks the store again, or the store's own wait, if that
    /// is longer. The receipt is good until this process tells the store of the charge; a later refund gives nothing
    /// back.
    pub fn is_leased(&self) -> bool {
        self.source == DecisionSource::Leased
    }

    /// Whether the store failed, and [`OnFailure`](crate::OnFailure) decided instead. Such a decision carries
    /// no receipt.
    pub fn is_degraded(&self) -> bool {
        self.source == DecisionSource::Degraded
    }

    /// Whether the request is allowed.
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.decided.is_allowed()
    }

    /// Returns the limit's size: its `limit` or `capacity`.
    pub fn limit(&self) -> u64 {
        self.decided.limit
    }

    /// Returns the largest cost that would be allowed at this same instant.
    pub fn remaining(&self) -> u64 {
        self.decided.remaining
    }

    /// Returns how long a refused request must wait, exactly; `None` for an allowed request, and for
    /// a request that costs more than the limit and can never be allowed.
    ///
    /// `None` does not mean allowed. Branch on [`is_allowed`](Self::is_allowed) or
    /// [`verdict`](Self::verdict), and call this only for a refused request.
    pub fn retry_after(&self) -> Option<Duration> {
        self.decided.retry_after_us().map(Duration::from_micros)
    }

    /// Returns how long until nothing is spent any more, exactly.
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.decided.reset_after_us)
    }

    /// Returns how long until more units remain than now, under the `limit` that was checked; `None` if all
    /// of them remain.
    ///
    /// Never too early. Exact, except that the time for a bucket may be a microsecond late.
    pub fn more_after(&self, limit: &Limit) -> Option<Duration> {
        self.decided.more_after_us(limit).map(Duration::from_micros)
    }

    /// Returns how long an allowed request should wait before it proceeds; zero unless the limit is shaping.
    pub fn delay(&self) -> Duration {
        Duration::from_micros(self.decided.delay_us())
    }

    /// Returns the decision as the algorithm made it, with times in microseconds.
    pub fn decided(&self) -> &tollgate_core::LimitDecision {
        &self.decided
    }

    /// Returns whether the request is allowed, and when a refused request may be tried again.
    ///
    /// ```
    /// # use tollgate::{Limiter, Verdict};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::memory();
    /// let jobs = limiter.scope("jobs", "fixed-window limit=10 window=1h")?;
    /// let decision = jobs.check("user:42").cost(11).now()?;
    /// match decision.verdict() {
    ///     Verdict::Allowed { .. } => println!("allowed, {} left", decision.remaining()),
    ///     Verdict::Denied { retry } => match retry.after() {
    ///         Some(wait) => println!("refused; retry in {wait:?}"),
    ///         None => println!("refused; a cost of 11 never fits a limit of 10"),
    ///     },
    /// }
    /// # assert!(!decision.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    pub fn verdict(&self) -> Verdict {
        self.decided.verdict
    }

    /// Returns the receipt of the charge; `None` if nothing was charged. Its cost and place can be stored
    /// with the key, and [`Scope::receipt`](crate::Scope::receipt) makes the receipt again from them.
    ///
    /// ```
    /// # use tollgate::Limiter;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::memory();
    /// let jobs = limiter.scope("jobs", "fixed-window limit=10 window=1h")?;
    /// let decision = jobs.check("user:42").cost(3).now()?;
    /// let written = decision.receipt().map(|receipt| (receipt.cost(), receipt.place()));
    ///
    /// // Later, and once: a second refund gives back what other requests were charged.
    /// if let Some((cost, place)) = written {
    ///     let receipt = jobs.receipt("user:42", cost, place)?;
    ///     assert_eq!(jobs.refund_now("user:42", receipt)?, 3);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn receipt(&self) -> Option<&Receipt> {
        self.receipt.as_ref()
    }

    /// Takes the receipt, with which the charge can be refunded; `None` if nothing was charged.
    pub fn into_receipt(self) -> Option<Receipt> {
        self.receipt
    }
}
