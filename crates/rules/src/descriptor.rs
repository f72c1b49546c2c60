//! One of several sets of attributes that a request has.

use std::time::Duration;

use tollgate_core::{Cost, CostError};

use super::attributes::Attributes;

/// One of several sets of attributes of a request, with its cost and its own limit: what Envoy calls a descriptor.
///
/// ```
/// # use tollgate::Limiter;
/// # use tollgate::rules::{Attributes, Config, Descriptor, Rules};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::parse("rules.yaml", "
/// # limits: { tokens: fixed-window limit=1000 window=1h }
/// # rules: [{ name: tokens, domain: llm, key: [user], limit: tokens }]
/// # ")?;
/// # let rules = Rules::new(&Limiter::memory(), &config)?;
/// let alice = Attributes::new().with("user", "alice");
/// let ruling = rules.check_each("llm", &[Descriptor::new(alice).cost(40)]).now()?;
/// assert_eq!(ruling.rules().next().and_then(|part| part.decision()).map(|own| own.remaining()), Some(960));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Descriptor<'a> {
    pub(super) attributes: Attributes<'a>,
    pub(super) hits: RequestCost,
    pub(super) quota: Option<RequestQuota>,
}

/// The cost of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum RequestCost {
    /// The cost that the rules give.
    OfRules,
    Of(Result<Cost, CostError>),
    /// A peek: nothing is spent. The request is refused if the cost that the rules give would not fit.
    Peek,
}

/// A number of units in a span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RequestQuota {
    pub(super) units: u64,
    pub(super) per: Duration,
}

impl<'a> Descriptor<'a> {
    /// Returns a descriptor with the cost that the rules give.
    pub fn new(attributes: Attributes<'a>) -> Descriptor<'a> {
        Descriptor { attributes, hits: RequestCost::OfRules, quota: None }
    }

    /// Sets the cost for every limit, in place of the cost that the rules give. At least 1.
    #[must_use]
    pub fn cost(self, units: u64) -> Descriptor<'a> {
        Descriptor { hits: RequestCost::Of(Cost::new(units)), ..self }
    }

    /// Makes the descriptor a peek: nothing is spent, and the request is refused if the cost that the rules give would not
    /// fit.
    #[must_use]
    pub fn peek(self) -> Descriptor<'a> {
        Descriptor { hits: RequestCost::Peek, ..self }
    }

    /// Limits the request to a number of units in a span of time, with the algorithm of the rule's own limit. With 0
    /// units every request is refused. The key has one state under both limits: units that are spent under one are
    /// also spent under the other. Has no effect if no rule applies, or if only rules without a limit apply. If two
    /// descriptors have the same key, the limit of the first counts.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::Limiter;
    /// # use tollgate::rules::{Attributes, Config, Descriptor, Rules};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let config = Config::parse("rules.yaml", "
    /// # limits: { free: token-bucket capacity=60 refill=1/s }
    /// # rules: [{ name: it, domain: api, key: [user], limit: free }]
    /// # ")?;
    /// # let rules = Rules::new(&Limiter::memory(), &config)?;
    /// let alice = || Descriptor::new(Attributes::new().with("user", "alice"));
    /// assert_eq!(rules.check_each("api", &[alice()]).now()?.remaining(), Some(59));
    /// let more = [alice().limited_to(100, Duration::from_secs(1))];
    /// assert_eq!(rules.check_each("api", &more).now()?.remaining(), Some(98));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn limited_to(self, units: u64, per: Duration) -> Descriptor<'a> {
        Descriptor { quota: Some(RequestQuota { units, per }), ..self }
    }
}
