//! Gives back what a receipt is for, once.
//!
//! First the life of the store, then the mark, then the units. Whatever fails in between, fails towards no refund: a receipt is never good
//! for two.

use std::time::Duration;

use tollgate::rules::Rules;
use tollgate::{Answer, Error, Scope, StoreError};
use tollgate_core::MAX_STEP_BACK_US;

use super::mark::{Mark, Set};
use super::part::Part;
use super::{Content, Receipts};

/// Longer than a check may take: nobody's request waits for it.
const DEADLINE: Duration = Duration::from_secs(1);

/// Why a receipt gives nothing back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unrefunded {
    /// Whatever is wrong with it, so that nobody learns how to make one.
    #[error(
        "this is no receipt of this server; send one as it was given, to a server with its secret"
    )]
    NotOurs,
    #[error("its limit is no longer there")]
    NoLimit,
    #[error("it was refunded before")]
    Before,
    #[error(
        "the store of limits has lost its state since, or this is of another; nothing comes back"
    )]
    AnotherLife,
    #[error(
        "there is no memory to remember that it was refunded; nothing came back, ask again later"
    )]
    NoRoom,
    #[error("the store of limits does not answer; nothing came back, ask again")]
    Failed(#[source] Error),
    #[error(
        "the store of limits failed, and what came back is not known; ask again: it comes back once at most"
    )]
    Unsure(#[source] Error),
}

impl Receipts {
    /// Gives back what a receipt is for: how much more remains then, over all its limits. Of those that are
    /// no longer there, nothing comes back.
    pub(crate) async fn refund(&self, rules: &Rules, text: &str) -> Result<u64, Unrefunded> {
        let signed = self.read(text).ok_or(Unrefunded::NotOurs)?;
        let Content { id, life, parts } = signed.content().ok_or(Unrefunded::NotOurs)?;
        let charged: Vec<(Scope, &Part<'_>)> = parts
            .iter()
            .filter_map(|part| Some((rules.scope(part.scope)?.deadline(DEADLINE), part)))
            .collect();
        if charged.is_empty() {
            return Err(Unrefunded::NoLimit);
        }
        let receipts = charged.iter().map(|(scope, part)| part.receipt(scope));
        let receipts = receipts.collect::<Result<Vec<_>, _>>().map_err(Unrefunded::Failed)?;
        if !self.life.has(life).await.map_err(Unrefunded::Failed)? {
            return Err(Unrefunded::AnotherLife);
        }
        let lasts_us = parts.iter().map(|part| part.lasts_us).max().unwrap_or_default();
        // A clock may have gone back a little, and servers that share a store differ a little.
        let at_least_us = lasts_us.saturating_add(MAX_STEP_BACK_US);
        let mark = match self.marks.set(rules.limiter(), id, at_least_us).await {
            Ok(Set::Now(mark)) => mark,
            Ok(Set::Before) => return Err(Unrefunded::Before),
            Ok(Set::NoRoom) | Err(Error::TooManyLimits { .. }) => return Err(Unrefunded::NoRoom),
            Err(error) if is_without_effect(&error) => return Err(Unrefunded::Failed(error)),
            Err(error) => return Err(Unrefunded::Unsure(error)),
        };
        // All on their way before the first is waited for.
        let refunds: Vec<_> = charged
            .iter()
            .zip(receipts)
            .filter(|((_, part), _)| outlives(&mark, part))
            .map(|((scope, part), receipt)| scope.refund(part.key, receipt))
            .collect();
        match sum(refunds).await {
            Ok(units) => Ok(units),
            Err(Unrefunded::Failed(error)) => match mark.take_back(id).await {
                Ok(()) => Err(Unrefunded::Failed(error)),
                Err(error) => Err(Unrefunded::Unsure(error)),
            },
            Err(unsure) => Err(unsure),
        }
    }
}

/// Whether a part's units may be there, and a mark is for as long as they are. It is not if the clock went
/// far back since.
fn outlives(mark: &Mark, part: &Part<'_>) -> bool {
    let until_us = part.until_us();
    mark.at_us < until_us && until_us <= mark.until_us
}

/// What all of them give back. That none had an effect is told from that some may have had one.
async fn sum(refunds: Vec<Answer<u64>>) -> Result<u64, Unrefunded> {
    let (mut units, mut may_have_changed, mut failure) = (0_u64, false, None);
    for refund in refunds {
        match refund.await {
            Ok(own) => {
                units = units.saturating_add(own);
                may_have_changed = true;
            }
            Err(error) => {
                may_have_changed |= !is_without_effect(&error);
                failure = Some(error);
            }
        }
    }
    match failure {
        None => Ok(units),
        Some(error) if may_have_changed => Err(Unrefunded::Unsure(error)),
        Some(error) => Err(Unrefunded::Failed(error)),
    }
}

/// Whether a request that failed so did nothing for sure.
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
