//! What a rules file says: limits, and which requests spend them. Every name in it stands for something.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use tollgate_core::{Cost, Limit};

use tollgate_identity::config::IdentityConfig;
use tollgate_limiter::OnFailure;

use super::networks::Networks;
use super::pattern::Pattern;
use super::problem::Problems;

/// Limits and rules, as a file has them, checked.
#[derive(Clone, Default, PartialEq)]
pub struct Config {
    pub(crate) limits: Vec<NamedLimit>,
    pub(crate) rules: Vec<Rule>,
    /// Domains that had rules once, and whose requests are not limited on purpose.
    pub(crate) retired_domains: HashSet<Box<str>>,
    /// For limits that are called by their names; rules have it in them.
    pub(crate) on_store_failure: Option<OnFailure>,
    pub(crate) deadline: Option<Duration>,
    /// The tier of every API key that is known.
    pub(crate) api_keys: HashMap<Box<str>, Box<str>>,
    /// Who clients are; whoever asks knows, if `None`.
    pub(crate) identity: Option<IdentityConfig>,
    /// How many tests the file carries, all of which its rules pass.
    pub(crate) tests: usize,
    /// What was probably not meant.
    pub(crate) warnings: Problems,
}

/// A limit and what the file calls it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NamedLimit {
    pub(crate) name: Box<str>,
    pub(crate) limit: Limit,
}

/// Which requests spend which limit, and for whom.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rule {
    pub(crate) name: Box<str>,
    pub(crate) domain: Box<str>,
    /// All of them must hold; of one attribute there is one.
    pub(crate) when: Vec<Condition>,
    /// Each must be found in the request. None: all requests have one key.
    pub(crate) key: Vec<KeyPart>,
    pub(crate) limit: Choice,
    pub(crate) cost: Costs,
    /// Says what it would have done, and refuses nothing.
    pub(crate) is_shadow: bool,
    /// As the limiter has it, if `None`; so is the deadline.
    pub(crate) on_store_failure: Option<OnFailure>,
    pub(crate) deadline: Option<Duration>,
    /// What is different for single keys.
    pub(crate) overrides: Vec<Override>,
    /// The rules of the domain that do not decide a request to which this rule applies.
    pub(crate) replaces: Replaces,
}

/// The other rules of its domain that a rule replaces.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Replaces {
    /// The rules with these names.
    Named(Vec<Box<str>>),
    /// All rules that do not say the same.
    All,
}

/// What an attribute of the request must be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Condition {
    pub(crate) attribute: Box<str>,
    pub(crate) wanted: Wanted,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wanted {
    /// There, and like one of these.
    AnyOf(Vec<Pattern>),
    /// There, and like none of these.
    NoneOf(Vec<Pattern>),
    /// There, whatever it is.
    Present,
    Absent,
}

impl Wanted {
    /// What the value is compared with, if it is.
    pub(crate) fn patterns(&self) -> &[Pattern] {
        match self {
            Wanted::AnyOf(patterns) | Wanted::NoneOf(patterns) => patterns,
            Wanted::Present | Wanted::Absent => &[],
        }
    }
}

/// The first of these attributes that the request has is a part of the key. At least one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyPart {
    pub(crate) first_of: Vec<Box<str>>,
}

/// What a rule spends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Spend {
    /// Of the limit at this place in [`Config::limits`].
    Limit(usize),
    /// Nothing: such requests are not limited by this rule.
    Allow,
    /// Such requests are refused, for as long as the file says so.
    Block,
}

/// What a rule spends for whom.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Choice {
    /// The attribute that chooses, and what each of its values does.
    pub(crate) tiers: Option<Tiers>,
    /// What those spend that no tier is for.
    pub(crate) default: Spend,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tiers {
    pub(crate) by: Box<str>,
    pub(crate) of: Vec<(Box<str>, Spend)>,
}

/// What a request costs: as the first route says that it is on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Costs {
    pub(crate) routes: Vec<(Route, Cost)>,
    pub(crate) default: Cost,
}

/// `POST /reports`, or a path with any method.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Route {
    pub(crate) method: Option<Box<str>>,
    pub(crate) path: Pattern,
}

/// What is different for a single key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Override {
    /// The attributes that make the key, in the order of [`Rule::key`], and what they are. At most one
    /// of them is of networks.
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
    /// How many there are of everything: API keys are secrets, also in rules.
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
    /// How many limits there are.
    pub fn limits(&self) -> usize {
        self.limits.len()
    }

    /// How many rules there are.
    pub fn rules(&self) -> usize {
        self.rules.len()
    }

    /// The domains that have rules, in alphabetical order.
    pub fn domains(&self) -> Vec<&str> {
        let domains: BTreeSet<&str> = self.rules.iter().map(|rule| &*rule.domain).collect();
        domains.into_iter().collect()
    }

    /// The number of tests that the file carries. The rules pass all of them: otherwise the file is refused.
    pub fn tests(&self) -> usize {
        self.tests
    }
}
