//! One of several sets of attributes that a request has.

use std::time::Duration;

use tollgate_core::{Cost, CostError};

use super::attributes::Attributes;

/// One of several sets of attributes that a request has, and what is asked of it: what Envoy calls a
/// descriptor.
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
    pub(super) hits: Hits,
    pub(super) quota: Option<Quota>,
}

/// What a request spends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hits {
    /// What the rules say.
    OfRules,
    Of(Result<Cost, CostError>),
    /// Nothing: it is refused if what the rules say would not fit.
    None,
}

/// So many units in so much time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Quota {
    pub(super) units: u64,
    pub(super) per: Duration,
}

impl<'a> Descriptor<'a> {
    /// One that spends what the rules say.
    pub fn new(attributes: Attributes<'a>) -> Descriptor<'a> {
        Descriptor { attributes, hits: Hits::OfRules, quota: None }
    }

    /// What it spends of every limit, instead of what the rules say. At least 1.
    #[must_use]
    pub fn cost(self, units: u64) -> Descriptor<'a> {
        Descriptor { hits: Hits::Of(Cost::new(units)), ..self }
    }

    /// Spends nothing, and is refused if it could not have spent what the rules say.
    #[must_use]
    pub fn look(self) -> Descriptor<'a> {
        Descriptor { hits: Hits::None, ..self }
    }

    /// Is limited to so many units in so much time: the rule's own algorithm, with these numbers. Of 0 units
    /// nothing may go. What a key has spent of the rule's limit it has spent of this one, and the other way
    /// round. Where no rule applies, or one that has no limit, it changes nothing; of two with one key, that of
    /// the first counts.
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
        Descriptor { quota: Some(Quota { units, per }), ..self }
    }
}
