//! Information about a rule: its counts, the limits that it may spend, and for which requests.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use tollgate_limiter::{LeaseOptions, Scope};

use super::Rules;
use super::explain::RuleAction;
use super::key::{push_part, without_preflight};
use super::names::AttributeId;
use super::plan::{Plan, PlannedRule, RuleName, SpendTargetId};
use super::tally::Counts;

/// A rule as it was at one time: its name, its counts and the limits that it may spend.
///
/// ```
/// # use tollgate::Limiter;
/// # use tollgate::rules::{Config, Rules};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let file = "
/// limits: { free: fixed-window limit=60 window=1m, pro: fixed-window limit=600 window=1m }
/// rules:
///   - name: per-client
///     domain: api
///     key: [ip]
///     limit: { by: tier, tiers: { pro: pro, banned: block }, default: free }
///     overrides: [{ key: { ip: 192.0.2.1 }, limit: allow }]
/// ";
/// let rules = Rules::new(&Limiter::memory(), &Config::parse("rules.yaml", file)?)?;
/// let rule = rules.rule("api/per-client").ok_or("no such rule")?;
/// let names = |limits: Vec<tollgate::rules::RuleLimit>| -> Vec<String> {
///     limits.iter().map(|limit| limit.spends.name().to_owned()).collect()
/// };
/// assert_eq!(names(rule.limits()), ["free", "block", "pro", "allow"]);
/// assert_eq!(names(rule.limits_of(b"ip=203.0.113.9")), ["free", "block", "pro"]);
/// assert_eq!(names(rule.limits_of(b"ip=192.0.2.1")), ["allow"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RuleInfo {
    plan: Arc<Plan>,
    rule: Arc<PlannedRule>,
}

/// One of the limits that a rule may spend.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RuleLimit {
    /// The limit, or that the rule allows or blocks the request.
    pub spends: RuleAction,
    /// The scope that holds the keys of the limit; `None` for `allow` and `block`. A key has one state under all
    /// limits of a rule.
    pub scope: Option<Scope>,
    /// How the limit is leased, on a store that has leases; `None` if the store decides each check.
    pub lease: Option<LeaseOptions>,
    /// Whether requests without a tier of the rule spend this limit.
    pub is_default: bool,
    /// The tiers that spend this limit, in alphabetical order.
    pub tiers: Vec<String>,
    /// The number of overrides that choose this limit.
    pub overrides: usize,
}

impl Rules {
    /// Returns the rule of this [name](RuleName), such as `api/per-client`.
    pub fn rule(&self, name: &str) -> Option<RuleInfo> {
        let plan = self.plan();
        let (domain, own) = name.rsplit_once('/')?;
        let mut rules = plan.domains.get(domain)?.rules.iter().filter_map(|&at| plan.rules.get(at));
        let rule = Arc::clone(rules.find(|rule| rule.name.name() == own)?);
        Some(RuleInfo { plan, rule })
    }

    /// Returns every rule, in the order of the file.
    pub fn rules(&self) -> Vec<RuleInfo> {
        let plan = self.plan();
        let info =
            |rule: &Arc<PlannedRule>| RuleInfo { plan: Arc::clone(&plan), rule: Arc::clone(rule) };
        plan.rules.iter().map(info).collect()
    }
}

impl RuleInfo {
    /// Returns the rule's name.
    pub fn name(&self) -> &RuleName {
        &self.rule.name
    }

    /// Returns whether the rule is in shadow mode, and refuses nothing.
    pub fn is_shadow(&self) -> bool {
        self.rule.is_shadow
    }

    /// Returns the counts of the rule's decisions, since a rule of that name was added.
    pub fn counts(&self) -> Counts {
        self.rule.tally.counts()
    }

    /// Returns every limit that the rule may spend, each once: the default, then the limits of tiers, then the limits
    /// of overrides, in the order of the file.
    pub fn limits(&self) -> Vec<RuleLimit> {
        let mut overrides: Vec<SpendTargetId> = self.rule.overrides().collect();
        overrides.sort_unstable();
        self.described(self.ids_by_request().into_iter().chain(overrides))
    }

    /// Returns the limits that the rule may spend for a key: the limit of the key's override, or else the default and
    /// the limits of all tiers, because the tier is an attribute of each request.
    pub fn limits_of(&self, key: &[u8]) -> Vec<RuleLimit> {
        match self.rule.override_of(without_preflight(key)) {
            Some(id) => self.described([id]),
            None => self.described(self.ids_by_request()),
        }
    }

    /// Returns whether a key has the form of this rule's keys: the attributes of the rule's `key` in their order,
    /// each with a value, like `ip=203.0.113.9`.
    pub fn is_key(&self, key: &[u8]) -> bool {
        let key = without_preflight(key);
        let parts = key.split(|byte| *byte == b',').filter(|_| !key.is_empty());
        let begins = |part: &[u8], name: &str| {
            let mut prefix = Vec::new();
            push_part(&mut prefix, 0, name, "");
            part.starts_with(&prefix)
        };
        let is_part = |(part, first_of): (&[u8], &Vec<(AttributeId, Box<str>)>)| {
            first_of.iter().any(|(_, name)| begins(part, name))
        };
        parts.clone().count() == self.rule.key.len() && parts.zip(&self.rule.key).all(is_part)
    }

    /// Returns the form of this rule's keys: `ip=VALUE`, or `tenant=VALUE,api_key|ip=VALUE`.
    pub fn key_form(&self) -> String {
        let names = |first_of: &Vec<(AttributeId, Box<str>)>| {
            let names: Vec<&str> = first_of.iter().map(|(_, name)| &**name).collect();
            format!("{}=VALUE", names.join("|"))
        };
        self.rule.key.iter().map(names).collect::<Vec<_>>().join(",")
    }

    /// Returns whether there is an override for the key.
    pub fn has_override(&self, key: &[u8]) -> bool {
        self.rule.override_of(without_preflight(key)).is_some()
    }

    /// Returns the default, and the limits of tiers in the alphabetical order of their names. A limit may occur
    /// twice.
    fn ids_by_request(&self) -> Vec<SpendTargetId> {
        let tiers = self.tiers().into_iter().map(|(_, id)| id);
        [self.rule.default_spent()].into_iter().chain(tiers).collect()
    }

    /// Returns the tiers in alphabetical order.
    fn tiers(&self) -> Vec<(&str, SpendTargetId)> {
        let mut tiers: Vec<_> = self.rule.tiers().collect();
        tiers.sort_unstable();
        tiers
    }

    /// Describes each limit once, at its first occurrence.
    fn described(&self, ids: impl IntoIterator<Item = SpendTargetId>) -> Vec<RuleLimit> {
        let mut tiers: HashMap<SpendTargetId, Vec<String>> = HashMap::new();
        for (tier, id) in self.tiers() {
            tiers.entry(id).or_default().push(tier.to_owned());
        }
        let mut overrides: HashMap<SpendTargetId, usize> = HashMap::new();
        for id in self.rule.overrides() {
            *overrides.entry(id).or_default() += 1;
        }
        let mut seen = HashSet::new();
        let describe = |id: SpendTargetId| {
            let spent = self.plan.spends.get(id)?;
            Some(RuleLimit {
                spends: RuleAction::of(spent),
                scope: spent.scope().cloned(),
                lease: spent.lease(),
                is_default: self.rule.default_spent() == id,
                tiers: tiers.remove(&id).unwrap_or_default(),
                overrides: overrides.get(&id).copied().unwrap_or(0),
            })
        };
        ids.into_iter().filter(|id| seen.insert(*id)).filter_map(describe).collect()
    }
}

/// Prints the name only: keys of overrides may be secrets.
impl fmt::Debug for RuleInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RuleInfo").field(self.name()).finish()
    }
}
