//! The requests that front ends make to the pipeline.

use std::borrow::Cow;
use std::time::Duration;

use tollgate::rules::Snapshot;

use crate::trust::Description;

/// A request for a decision, decoded by a front end.
#[derive(Debug)]
pub(crate) struct DecisionRequest<'a> {
    pub(crate) target: DecisionTarget<'a>,
    pub(crate) terms: Terms,
}

/// The cost of a request, and the delay that it accepts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    /// The cost; `None` for a cost of 1, or for the cost in the rules.
    pub(crate) cost: Option<u64>,
    /// The longest delay that the caller accepts.
    pub(crate) max_wait: Option<Duration>,
}

/// The target of a request: a limit and a key, or rules and a description.
#[derive(Debug)]
pub(crate) enum DecisionTarget<'a> {
    /// A key under the limit of this name.
    Limit { name: Cow<'a, str>, key: Cow<'a, str> },
    /// The rules that apply to the described request, of this domain; `None` means the only domain of the rules.
    Rules { domain: Option<Cow<'a, str>>, description: Description<'a> },
}

/// A target that does not exist, so that nothing can decide the request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UnknownTarget<'a> {
    Limit(Cow<'a, str>),
    Domain(Cow<'a, str>),
    /// The request names no domain, and the rules have several domains or none.
    DomainNotGiven,
}

/// Returns the given domain if it has rules; without a given domain, the only domain that has rules.
pub(crate) fn domain<'a: 'n, 'n>(
    given: Option<Cow<'a, str>>,
    rules: &'n Snapshot<'_>,
) -> Result<Cow<'n, str>, UnknownTarget<'a>> {
    match given {
        Some(domain) if rules.has_domain(&domain) => Ok(domain),
        Some(domain) => Err(UnknownTarget::Domain(domain)),
        None => rules.only_domain().map(Cow::Borrowed).ok_or(UnknownTarget::DomainNotGiven),
    }
}
