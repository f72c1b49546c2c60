//! Refunds a receipt, at most once.
//!
//! The steps are: compare the lifetime of the store, set the mark, give the units back. After a failure in between, the
//! units may be lost, but they are never given back twice.

use std::borrow::Cow;
use std::time::Duration;

use tollgate::rules::Rules;
use tollgate::{Answer, Error, Scope, StoreError};
use tollgate_core::MAX_STEP_BACK_US;

use super::mark::{Mark, MarkOutcome};
use super::part::ReceiptPart;
use super::{ReceiptContent, Receipts};

/// Longer than the deadline of checks, because no check waits for a refund.
const DEADLINE: Duration = Duration::from_secs(1);

/// Why a receipt was not refunded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RefundError {
    /// The text is not a receipt, or its signature is wrong. One message for every mistake, so that an attacker does
    /// not learn how to forge one.
    #[error(
        "not a receipt of this server; send the receipt unchanged, to a server with the secret that signed it"
    )]
    Invalid,
    #[error("the limit of the receipt no longer exists")]
    NoLimit,
    #[error("the receipt was refunded before")]
    AlreadyRefunded,
    #[error(
        "the store has lost its state since the receipt was given, or the receipt is of another store; nothing was \
         refunded"
    )]
    OtherLifetime,
    #[error("no memory to remember the refund; nothing was refunded, try again later")]
    NoMemory,
    #[error("{}", nothing_refunded(.0))]
    Failed(#[source] Error),
    #[error(
        "the store failed, and it is not known what was refunded; try again: a receipt is refunded at most once"
    )]
    OutcomeUnknown(#[source] Error),
}

/// The result of a refund.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RefundedUnits {
    /// The units that were given back, over all limits of the receipt.
    pub(crate) units: u64,
    /// Whether a charge was made with a lease that can no longer take it back: the lease has been settled since, or is of
    /// another process.
    pub(crate) is_after_lease: bool,
}

/// The refund of one limit, not answered yet.
struct SentRefund {
    units: Answer<u64>,
    is_leased: bool,
}

/// Says why a refund had no effect, without the names of servers.
fn nothing_refunded(error: &Error) -> Cow<'static, str> {
    match error {
        Error::Store(StoreError::Corrupt { .. }) => {
            "a key of this refund has data in the store that is not a state of a limit; nothing was refunded".into()
        }
        Error::Store(_) => "the store failed; nothing was refunded, try again".into(),
        error => format!("nothing was refunded: {error}").into(),
    }
}

impl Receipts {
    /// Refunds a receipt. Limits that no longer exist are skipped.
    pub(crate) async fn refund(
        &self,
        rules: &Rules,
        text: &str,
    ) -> Result<RefundedUnits, RefundError> {
        let signed = self.read(text).ok_or(RefundError::Invalid)?;
        let ReceiptContent { id, lifetime, parts } =
            signed.content().ok_or(RefundError::Invalid)?;
        let charged: Vec<(Scope, &ReceiptPart<'_>)> = parts
            .iter()
            .filter_map(|part| Some((rules.scope(part.scope)?.deadline(DEADLINE), part)))
            .collect();
        if charged.is_empty() {
            return Err(RefundError::NoLimit);
        }
        let receipts = charged.iter().map(|(scope, part)| part.receipt(scope));
        let receipts = receipts.collect::<Result<Vec<_>, _>>().map_err(RefundError::Failed)?;
        if !self.lifetime.has(lifetime).await.map_err(RefundError::Failed)? {
            return Err(RefundError::OtherLifetime);
        }
        let lasts_us = parts.iter().map(|part| part.lasts_us).max().unwrap_or_default();
        // The mark stays longer than the charges count, because the clock may have stepped back a little, and the
        // clocks of servers that share a store differ a little.
        let at_least_us = lasts_us.saturating_add(MAX_STEP_BACK_US);
        let mark = match self.marks.set(rules.limiter(), id, at_least_us).await {
            Ok(MarkOutcome::Set(mark)) => mark,
            Ok(MarkOutcome::AlreadySet) => return Err(RefundError::AlreadyRefunded),
            Ok(MarkOutcome::NoMemory) | Err(Error::TooManyLimits { .. }) => {
                return Err(RefundError::NoMemory);
            }
            Err(error) if is_without_effect(&error) => return Err(RefundError::Failed(error)),
            Err(error) => return Err(RefundError::OutcomeUnknown(error)),
        };
        // All refunds are sent before the first is waited for.
        let refunds: Vec<_> = charged
            .iter()
            .zip(receipts)
            .filter(|((_, part), _)| covers(&mark, part))
            .map(|((scope, part), receipt)| SentRefund {
                units: scope.refund(part.key, receipt),
                is_leased: part.is_leased(),
            })
            .collect();
        match sum_of(refunds).await {
            Ok(refunded) => Ok(refunded),
            Err(RefundError::Failed(error)) => match mark.remove(id).await {
                Ok(()) => Err(RefundError::Failed(error)),
                Err(error) => Err(RefundError::OutcomeUnknown(error)),
            },
            Err(unknown) => Err(unknown),
        }
    }
}

/// Returns whether the charge of a part may still count when the mark is set, and the mark expires no earlier than the
/// charge. If the clock has stepped far back since the charge, the mark would expire earlier.
fn covers(mark: &Mark, part: &ReceiptPart<'_>) -> bool {
    if part.is_leased() {
        // OK because the lease itself knows whether the charge can be refunded. The mark outlives the lease, which it counts
        // from its own time.
        return true;
    }
    let until_us = part.until_us();
    mark.at_us < until_us && until_us <= mark.until_us
}

/// Returns the units of all refunds. The error is `Failed` if no refund had an effect, and `OutcomeUnknown` if one may
/// have had.
async fn sum_of(refunds: Vec<SentRefund>) -> Result<RefundedUnits, RefundError> {
    let (mut refunded, mut may_have_changed, mut failure) = (RefundedUnits::default(), false, None);
    for SentRefund { units, is_leased } in refunds {
        match units.await {
            Ok(own) => {
                refunded.units = refunded.units.saturating_add(own);
                refunded.is_after_lease |= is_leased && own == 0;
                may_have_changed = true;
            }
            Err(error) => {
                may_have_changed |= !is_without_effect(&error);
                failure = Some(error);
            }
        }
    }
    match failure {
        None => Ok(refunded),
        Some(error) if may_have_changed => Err(RefundError::OutcomeUnknown(error)),
        Some(error) => Err(RefundError::Failed(error)),
    }
}

/// Returns whether a request that failed with this error certainly changed nothing.
fn is_without_effect(error: &Error) -> bool {
    match error {
        Error::Store(error) => matches!(
            error,
            StoreError::Corrupt { .. }
                | StoreError::BreakerOpen { .. }
                | StoreError::Overloaded { .. }
        ),
        _ => true,
    }
}
