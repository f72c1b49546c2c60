//! The contents of a rules file: limits, and which requests spend them. Every name in it is known to exist.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use tollgate_core::{Cost, Limit};

use tollgate_identity::config::IdentityConfig;
use tollgate_limiter::{LeaseOptions, OnFailure};

use super::networks::Networks;
use super::pattern::Pattern;
use super::problem::{Problem, Problems};

/// Limits and rules as the file has them, validated.
#[derive(Clone, Default, PartialEq)]
pub struct Config {
    pub(crate) limits: Vec<LimitConfig>,
    pub(crate) rules: Vec<RuleConfig>,
    /// Domains that once had rules, and whose requests are deliberately not limited.
    pub(crate) retired_domains: HashSet<Box<str>>,
    /// The failure policy and the deadline of limits that callers use by name; each rule has its own.
    pub(crate) on_store_failure: Option<OnFailure>,
    pub(crate) deadline: Option<Duration>,
    /// Whether rules and limits are leased that do not say so themselves.
    pub(crate) lease: LeaseSettings,
    /// The tier of every API key in the file.
    pub(crate) api_keys: HashMap<Box<str>, Box<str>>,
    /// How clients are identified; `None` if the file leaves that to the program.
    pub(crate) identity: Option<IdentityConfig>,
    /// The number of tests in the file. The rules pass all of them.
    pub(crate) tests: usize,
    /// Mistakes that leave the file valid.
    pub(crate) warnings: Problems,
}

/// A limit and its name in the file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LimitConfig {
    pub(crate) name: Box<str>,
    pub(crate) limit: Limit,
    pub(crate) lease: LeaseSettings,
}

/// How a rule decides on a limit that several processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecisionMode {
    /// The store decides each check.
    Strict,
    /// This process decides, with units that the store has set aside for it.
    Leased,
}

/// Whether limits are leased, as far as a rule, a limit or the defaults of the file say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LeaseSettings {
    pub(crate) mode: Option<DecisionMode>,
    pub(crate) options: Option<LeaseOptions>,
}

impl LeaseSettings {
    /// Returns these settings, completed by others.
    pub(crate) fn or(self, others: LeaseSettings) -> LeaseSettings {
        LeaseSettings { mode: self.mode.or(others.mode), options: self.options.or(others.options) }
    }

    /// Returns how these settings lease a limit; `None` if its checks go to the store.
    pub(crate) fn leasing(self, limit: &Limit) -> Option<LeaseOptions> {
        let can_be_leased = !limit.is_shaping() && !limit.only_holds();
        self.chosen().filter(|_| can_be_leased)
    }

    /// Returns how limits are leased, if leases are chosen; also for a limit that cannot be leased.
    pub(crate) fn chosen(self) -> Option<LeaseOptions> {
        (self.mode == Some(DecisionMode::Leased)).then(|| self.options.unwrap_or_default())
    }
}

/// A rule: the requests that it is for, their key, and the limit that they spend.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RuleConfig {
    pub(crate) name: Box<str>,
    pub(crate) domain: Box<str>,
    /// All conditions must hold; each attribute has at most one.
    pub(crate) when: Vec<Condition>,
    /// Each part must be found in the request. Without parts, all requests share one key.
    pub(crate) key: Vec<KeyPart>,
    pub(crate) limit: LimitChoice,
    pub(crate) cost: Costs,
    /// How long units are held. The default of the limit applies if `None`.
    pub(crate) hold_for: Option<Duration>,
    /// Shadow mode: the rule counts what it would have refused, and refuses nothing.
    pub(crate) is_shadow: bool,
    /// The limiter's setting applies if `None`; likewise for the deadline.
    pub(crate) on_store_failure: Option<OnFailure>,
    pub(crate) deadline: Option<Duration>,
    /// The settings of the limit apply where these say nothing, and then the settings of the file.
    pub(crate) lease: LeaseSettings,
    /// The limits of single keys and of networks.
    pub(crate) overrides: Vec<Override>,
    /// The rules of the domain that do not decide a request to which this rule applies.
    pub(crate) replaces: Replacement,
}

/// The other rules of its domain that a rule replaces.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Replacement {
    /// The rules with these names.
    Named(Vec<Box<str>>),
    /// All rules of the domain, except rules that themselves replace all rules.
    All,
}

/// A condition on an attribute of the request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Condition {
    pub(crate) attribute: Box<str>,
    pub(crate) wanted: Requirement,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Requirement {
    /// The attribute is present and matches one of these patterns.
    AnyOf(Vec<Pattern>),
    /// The attribute is present and matches no pattern of the list.
    NoneOf(Vec<Pattern>),
    /// The attribute is present, with any value.
    Present,
    Absent,
}

impl Requirement {
    /// Returns the patterns that the value is compared with; empty if only its presence matters.
    pub(crate) fn patterns(&self) -> &[Pattern] {
        match self {
            Requirement::AnyOf(patterns) | Requirement::NoneOf(patterns) => patterns,
            Requirement::Present | Requirement::Absent => &[],
        }
    }
}

/// A part of the key: the first of these attributes that the request has. There is at least one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyPart {
    pub(crate) first_of: Vec<Box<str>>,
}

/// The limit that a rule spends, or what the rule does instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Spend {
    /// The limit at this index in [`Config::limits`].
    Limit(usize),
    /// Nothing: such requests are not limited by this rule.
    Allow,
    /// Nothing: such requests are always refused.
    Block,
}

/// The limit that a rule spends, chosen by the tier of the request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LimitChoice {
    /// The attribute that names the tier, and the limit of each tier.
    pub(crate) tiers: Option<TierConfig>,
    /// The limit of requests without a tier of the rule.
    pub(crate) default: Spend,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TierConfig {
    pub(crate) by: Box<str>,
    pub(crate) of: Vec<(Box<str>, Spend)>,
}

/// The cost of a request: the value of the attribute, or else the cost of the first route that the request matches, or
/// else the default.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Costs {
    pub(crate) attribute: Option<Box<str>>,
    pub(crate) routes: Vec<(CostRoute, Cost)>,
    pub(crate) default: Cost,
    /// Whether the units are set aside, and charged when the request ends.
    pub(crate) is_reserved: bool,
}

/// `POST /reports`, or a path with any method.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CostRoute {
    pub(crate) method: Option<Box<str>>,
    pub(crate) path: Pattern,
}

/// The limit of a single key or of a network.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Override {
    /// The attributes that make the key, in the order of [`RuleConfig::key`], and their values. At most one value is a list
    /// of networks.
    pub(crate) key: Vec<(Box<str>, KeyValue)>,
    pub(crate) spend: Spend,
}

/// The value of an attribute in an override's key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum KeyValue {
    Text(Box<str>),
    /// Any address in one of these networks.
    In(Networks),
}

impl fmt::Debug for Config {
    /// Prints only the number of entries: API keys are secrets, also in rules.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("limits", &self.limits.len())
            .field("rules", &self.rules.len())
            .field("api_keys", &self.api_keys.len())
            .field("warnings", &self.warnings.iter().count())
            .finish_non_exhaustive()
    }
}

impl Config {
    /// Returns how a rule leases a limit; `None` if its checks go to the store.
    pub(crate) fn leasing(&self, rule: &RuleConfig, own: &LimitConfig) -> Option<LeaseOptions> {
        if rule.cost.is_reserved {
            return None;
        }
        rule.lease.or(own.lease).or(self.lease).leasing(&own.limit)
    }

    /// Returns how a limit is leased for callers that use it by its name.
    pub(crate) fn leasing_by_name(&self, own: &LimitConfig) -> Option<LeaseOptions> {
        own.lease.or(self.lease).leasing(&own.limit)
    }

    /// Returns the number of limits.
    pub fn limits(&self) -> usize {
        self.limits.len()
    }

    /// Returns the number of rules.
    pub fn rules(&self) -> usize {
        self.rules.len()
    }

    /// Returns the domains that have rules, in alphabetical order.
    pub fn domains(&self) -> Vec<&str> {
        let domains: BTreeSet<&str> = self.rules.iter().map(|rule| &*rule.domain).collect();
        domains.into_iter().collect()
    }

    /// Returns what is worth knowing about rules that have no mistake: for instance that Envoy cannot end the holds of a
    /// rule.
    pub fn notes(&self) -> impl Iterator<Item = &Problem> {
        self.warnings.notes()
    }

    /// Returns the number of tests in the file. The rules pass all of them: otherwise the file is refused.
    pub fn tests(&self) -> usize {
        self.tests
    }
}
