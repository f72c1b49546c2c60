//! What can be asked of the pipeline.

use std::borrow::Cow;
use std::time::Duration;

use tollgate::rules::Snapshot;

use crate::trust::Description;

/// A request to be decided, as a front end has decoded it.
#[derive(Debug)]
pub(crate) struct DecisionRequest<'a> {
    pub(crate) subject: Subject<'a>,
    pub(crate) terms: Terms,
}

/// What a request costs, and how long it may wait.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    /// The cost, if it is not 1, or not what the rules say.
    pub(crate) cost: Option<u64>,
    /// The longest delay that the caller accepts.
    pub(crate) max_wait: Option<Duration>,
}

/// What decides a request, and whom it is about.
#[derive(Debug)]
pub(crate) enum Subject<'a> {
    /// A key under a limit that is called by its name.
    Limit { name: Cow<'a, str>, key: Cow<'a, str> },
    /// The rules of a domain, or without a name those of the only domain, that apply to the described request.
    Rules { domain: Option<Cow<'a, str>>, description: Description<'a> },
}

/// Nothing decides the request: what it names does not exist.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoDecider<'a> {
    UnknownLimit(Cow<'a, str>),
    UnknownDomain(Cow<'a, str>),
    /// No domain is named, and there are several, or none.
    NoOnlyDomain,
}

/// Returns the named domain if it has rules, or without a name the only domain that has.
pub(crate) fn domain<'a: 'n, 'n>(
    named: Option<Cow<'a, str>>,
    now: &'n Snapshot<'_>,
) -> Result<Cow<'n, str>, NoDecider<'a>> {
    match named {
        Some(domain) if now.has_domain(&domain) => Ok(domain),
        Some(domain) => Err(NoDecider::UnknownDomain(domain)),
        None => now.only_domain().map(Cow::Borrowed).ok_or(NoDecider::NoOnlyDomain),
    }
}
