//! Why rules apply to a request, or do not.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Excerpt, Limit};
use tollgate_limiter::{LeaseOptions, OnFailure};

use super::attributes::{Attributes, TrustLevel};
use super::names::AttributeId;
use super::networks::{self, FoundNetwork};
use super::pattern::Pattern;
use super::plan::{Mismatch, Plan, PlannedRule, RuleName, SpendReason, SpendTarget};
use super::request::NumberedRequest;

/// Whether a rule applies to a request, and its effect.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// The rule's name.
    pub rule: RuleName,
    /// Whether the rule is in shadow mode, and refuses nothing.
    pub is_shadow: bool,
    /// The rule's effect, or why it does not apply.
    pub outcome: Result<RuleEffect, MismatchReason>,
}

/// The effect of a rule that applies.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RuleEffect {
    /// The key that the rule limits: `ip=203.0.113.9`. Empty if the rule limits all requests together.
    pub key: String,
    /// The networks in which the rule's `when` found addresses of the request.
    pub networks: Vec<MatchedNetwork>,
    /// The limit that the request spends.
    pub spends: RuleAction,
    /// Why the request spends that limit.
    pub because: LimitReason,
    /// The cost of the request in units.
    pub cost: u64,
    /// The attribute that gave the cost; `None` if the rule has none, or the request does not have it as a number.
    pub cost_attribute: Option<String>,
    /// How long a reservation holds the units; `None` if they are charged at once.
    pub hold_for: Option<Duration>,
    /// The failure policy of the rule; the limiter's policy applies if `None`.
    pub on_store_failure: Option<OnFailure>,
    /// The deadline of the store for the rule; the limiter's deadline applies if `None`.
    pub deadline: Option<Duration>,
    /// How the limit is leased, on a store that has leases; `None` if the store decides each check.
    pub lease: Option<LeaseOptions>,
}

/// The longest network of a rule that contains an address of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MatchedNetwork {
    /// The attribute that has the address.
    pub attribute: String,
    /// The network: `198.51.100.0/24`.
    pub network: String,
    /// The name of its set under `networks`, if it belongs to one.
    pub set: Option<String>,
}

/// The limit that a rule spends, or what the rule does instead.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RuleAction {
    /// The rule spends a limit.
    Limit {
        /// The name of the limit in the file.
        name: String,
        /// The algorithm and numbers of the limit.
        limit: Limit,
    },
    /// The rule allows such requests without a limit.
    Allow,
    /// The rule refuses such requests.
    Block,
}

impl RuleAction {
    pub(super) fn of(spent: &SpendTarget) -> RuleAction {
        match spent {
            SpendTarget::Limit { name, scope, .. } => {
                RuleAction::Limit { name: name.to_string(), limit: *scope.limit() }
            }
            SpendTarget::Allow => RuleAction::Allow,
            SpendTarget::Block => RuleAction::Block,
        }
    }

    /// Returns the limit's name, `allow` or `block`, as in a file's `limit`.
    pub fn name(&self) -> &str {
        match self {
            RuleAction::Limit { name, .. } => name,
            RuleAction::Allow => "allow",
            RuleAction::Block => "block",
        }
    }
}

/// Why a rule spends a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitReason {
    /// The rule has an override for this key.
    Override,
    /// The rule has an override for addresses in a network.
    NetworkOverride {
        /// The longest network of the overrides that contains the address.
        network: String,
        /// The name of its set under `networks`, if it belongs to one.
        set: Option<String>,
    },
    /// The rule has a limit for this tier.
    Tier {
        /// The attribute that names the tier.
        by: String,
        /// The attribute's value.
        tier: String,
    },
    /// The request has no known tier that the rule has a limit for.
    NoTier {
        /// The attribute that would name the tier.
        by: String,
        /// The attribute's value; `None` if it is not known.
        tier: Option<String>,
    },
    /// The rule has only one limit.
    Only,
}

/// Why a rule does not apply.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MismatchReason {
    /// A required attribute is missing.
    Missing {
        /// The attribute's name.
        attribute: String,
    },
    /// An attribute is present, and must not be.
    Present {
        /// The attribute's name.
        attribute: String,
    },
    /// An attribute matches no pattern of the rule.
    Unlike {
        /// The attribute's name.
        attribute: String,
        /// The attribute's value.
        value: String,
        /// The patterns, one of which the value must match.
        wanted: Vec<String>,
    },
    /// An attribute matches a pattern that it must not match.
    Like {
        /// The attribute's name.
        attribute: String,
        /// The attribute's value.
        value: String,
        /// The pattern that the value must not match.
        unwanted: String,
    },
    /// An attribute is an address in a network that the rule excludes.
    InNetwork {
        /// The network, and the attribute that has the address.
        found: MatchedNetwork,
        /// The address.
        value: String,
    },
    /// Another rule, which applies, replaces this one.
    Replaced {
        /// The name of the other rule.
        by: String,
    },
    /// An attribute is present, but only claimed.
    Claimed {
        /// The attribute's name.
        attribute: String,
    },
    /// The request has no known attribute for a part of the key.
    NoKey {
        /// The attributes, one of which is needed.
        attributes: Vec<String>,
        /// The attributes among them that are present, but not confirmed.
        claimed: Vec<String>,
    },
}

pub(super) fn explain(plan: &Plan, domain: &str, attributes: &Attributes<'_>) -> Vec<Explanation> {
    let request = NumberedRequest::new(attributes, &plan.names);
    let rules = plan.domains.get(domain).map_or(&[][..], |domain| &domain.rules);
    let rules = rules.iter().map(|&at| &*plan.rules[at]);
    let outcomes: Vec<(&PlannedRule, Result<RuleEffect, MismatchReason>)> =
        rules.map(|rule| (rule, applied(plan, rule, &request))).collect();
    let applied = outcomes.iter().filter(|(_, outcome)| outcome.is_ok()).map(|(rule, _)| *rule);
    let replacing: Vec<&PlannedRule> = applied.filter(|rule| rule.is_replacing()).collect();
    let explain = |(rule, outcome): (&PlannedRule, Result<RuleEffect, MismatchReason>)| {
        let outcome = outcome.and_then(|applied| {
            let by = replacing.iter().find(|own| own.replaces(rule));
            by.map_or(Ok(applied), |by| {
                Err(MismatchReason::Replaced { by: by.name.name().to_owned() })
            })
        });
        Explanation { rule: rule.name.clone(), is_shadow: rule.is_shadow, outcome }
    };
    outcomes.into_iter().map(explain).collect()
}

/// Returns the rules that apply to a request, found as a check finds them, and their effects.
pub(super) fn applying<'p>(
    plan: &'p Plan,
    domain: &str,
    request: &NumberedRequest<'p>,
) -> Vec<(&'p PlannedRule, RuleEffect)> {
    let Some(domain) = plan.domains.get(domain) else { return Vec::new() };
    let mut candidates = Vec::new();
    domain.index.candidates(request, &mut candidates);
    let rules = candidates.iter().map(|&at| &*plan.rules[at]);
    let applying: Vec<(&PlannedRule, RuleEffect)> =
        rules.filter_map(|rule| Some((rule, applied(plan, rule, request).ok()?))).collect();
    let replacing: Vec<&PlannedRule> =
        applying.iter().map(|(rule, _)| *rule).filter(|rule| rule.is_replacing()).collect();
    let is_left =
        |(rule, _): &(&PlannedRule, RuleEffect)| !replacing.iter().any(|own| own.replaces(rule));
    applying.into_iter().filter(is_left).collect()
}

/// Returns why [`applying`] does not find a rule.
pub(super) fn why_not(
    plan: &Plan,
    domain: &str,
    name: &str,
    request: &NumberedRequest<'_>,
) -> Option<MismatchReason> {
    let rules = || plan.domains.get(domain).into_iter().flat_map(|domain| &domain.rules);
    let mut rules_of = rules().map(|&at| &*plan.rules[at]);
    let rule = rules_of.clone().find(|rule| rule.name.name() == name)?;
    if let Err(why) = applied(plan, rule, request) {
        return Some(why);
    }
    let by = rules_of.find(|own| own.replaces(rule) && applied(plan, own, request).is_ok())?;
    Some(MismatchReason::Replaced { by: by.name.name().to_owned() })
}

fn applied(
    plan: &Plan,
    rule: &PlannedRule,
    request: &NumberedRequest<'_>,
) -> Result<RuleEffect, MismatchReason> {
    let mut key = Vec::new();
    rule.apply(request, &mut key).map_err(|mismatch| not_applied(plan, rule, request, mismatch))?;
    let (spent, because) = rule.spent(request, &key);
    let target = &*plan.spends[spent];
    let spends = RuleAction::of(target);
    let networks = rule.networks(request).map(|(id, found)| matched(plan, id, found));
    Ok(RuleEffect {
        networks: networks.collect(),
        key: String::from_utf8_lossy(&key).into_owned(),
        spends,
        because: reason(plan, rule, request, because),
        cost: rule.units(request),
        cost_attribute: rule
            .measured(request)
            .and_then(|_| rule.cost.attribute.as_deref().map(str::to_owned)),
        hold_for: rule
            .reserves(target)
            .then(|| rule.hold_for().or_else(|| Some(target.scope()?.hold_for())))
            .flatten(),
        on_store_failure: rule.on_store_failure,
        deadline: rule.deadline,
        lease: target.lease(),
    })
}

fn matched(plan: &Plan, id: AttributeId, found: FoundNetwork<'_>) -> MatchedNetwork {
    MatchedNetwork {
        attribute: plan.names.name(id).to_owned(),
        network: networks::text(found.network),
        set: found.set.map(str::to_owned),
    }
}

fn reason(
    plan: &Plan,
    rule: &PlannedRule,
    request: &NumberedRequest<'_>,
    because: SpendReason<'_>,
) -> LimitReason {
    let by = |id| plan.names.name(id).to_owned();
    match (because, rule.tiers_by()) {
        (SpendReason::Override(None), _) => LimitReason::Override,
        (SpendReason::Override(Some(found)), _) => LimitReason::NetworkOverride {
            network: networks::text(found.network),
            set: found.set.map(str::to_owned),
        },
        (SpendReason::Tier(tier), Some(id)) => {
            LimitReason::Tier { by: by(id), tier: tier.to_owned() }
        }
        (SpendReason::Default, Some(id)) => {
            LimitReason::NoTier { by: by(id), tier: request.known(id).map(str::to_owned) }
        }
        (_, None) => LimitReason::Only,
    }
}

fn not_applied(
    plan: &Plan,
    rule: &PlannedRule,
    request: &NumberedRequest<'_>,
    mismatch: Mismatch<'_>,
) -> MismatchReason {
    let name = |id: AttributeId| plan.names.name(id).to_owned();
    match mismatch {
        Mismatch::Missing(id) if request.attribute(id).is_some() => {
            MismatchReason::Claimed { attribute: name(id) }
        }
        Mismatch::Missing(id) => MismatchReason::Missing { attribute: name(id) },
        Mismatch::Unwanted(id) => MismatchReason::Present { attribute: name(id) },
        Mismatch::Unlike(at, value) => {
            let (id, wanted) = &rule.when[at];
            let wanted = wanted.patterns().iter().map(ToString::to_string).collect();
            let value = shown(rule, request, *id, value);
            MismatchReason::Unlike { attribute: name(*id), value, wanted }
        }
        Mismatch::Like(at, value) => {
            let (id, unwanted) = &rule.when[at];
            if let Some(found) = rule.network(at, request) {
                let value = shown(rule, request, *id, value);
                return MismatchReason::InNetwork { found: matched(plan, *id, found), value };
            }
            let unwanted = unwanted.patterns().iter().find(|pattern| pattern.matches(value));
            let unwanted = unwanted.map(ToString::to_string).unwrap_or_default();
            MismatchReason::Like { attribute: name(*id), value: value.to_owned(), unwanted }
        }
        Mismatch::NoKey(first_of) => {
            let attributes = first_of.iter().map(|(_, name)| name.to_string()).collect();
            let is_claimed = |id: &AttributeId| {
                request.attribute(*id).is_some_and(|seen| seen.trust < TrustLevel::Known)
            };
            let claimed = first_of.iter().filter(|(id, _)| is_claimed(id));
            let claimed = claimed.map(|(_, name)| name.to_string()).collect();
            MismatchReason::NoKey { attributes, claimed }
        }
    }
}

/// Returns the value that a rule compares: an attribute's text, or the whole address if the rule has networks for it.
fn shown(
    rule: &PlannedRule,
    request: &NumberedRequest<'_>,
    id: AttributeId,
    value: &str,
) -> String {
    let has_networks = patterns(rule, id).any(|pattern| pattern.networks().is_some());
    let address = request.address(id).filter(|_| has_networks);
    address.map_or_else(|| value.to_owned(), networks::text)
}

/// Returns the patterns that a rule compares an attribute with.
fn patterns(rule: &PlannedRule, id: AttributeId) -> impl Iterator<Item = &Pattern> {
    let when = rule.when.iter().filter(move |(own, _)| *own == id);
    when.flat_map(|(_, wanted)| wanted.patterns())
}

impl fmt::Display for MismatchReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MismatchReason::Missing { attribute } => write!(f, "there is no `{attribute}`"),
            MismatchReason::Present { attribute } => {
                write!(f, "`{attribute}` is present, and the rule requires its absence")
            }
            MismatchReason::Unlike { attribute, value, wanted } => {
                write!(f, "`{attribute}` is `{}`, not {}", Excerpt::of(value), listed(wanted))
            }
            MismatchReason::Like { attribute, value, unwanted } => {
                write!(f, "`{attribute}` is `{}`, which the rule excludes", Excerpt::of(value))?;
                match value == unwanted {
                    true => Ok(()),
                    false => write!(f, ": it matches `{}`", Excerpt::of(unwanted)),
                }
            }
            MismatchReason::InNetwork { found, value } => {
                let (attribute, value) = (&found.attribute, Excerpt::of(value));
                write!(f, "`{attribute}` is `{value}`, which the rule excludes: it is in {found}")
            }
            MismatchReason::Replaced { by } => write!(f, "`{by}` replaces it"),
            MismatchReason::NoKey { attributes, claimed } if claimed.is_empty() => {
                write!(f, "there is no {} to make a key of", listed(attributes))
            }
            MismatchReason::NoKey { claimed, .. } => {
                write!(f, "there is no verified {}", listed(claimed))
            }
            MismatchReason::Claimed { attribute } => {
                write!(f, "`{attribute}` is only claimed, not verified")
            }
        }
    }
}

/// Prints `198.51.100.0/24` of networks `blocked`.
impl fmt::Display for MatchedNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_network(f, &self.network, self.set.as_deref())
    }
}

fn write_network(f: &mut fmt::Formatter<'_>, network: &str, set: Option<&str>) -> fmt::Result {
    write!(f, "`{network}`")?;
    match set {
        Some(set) => write!(f, " of networks `{set}`"),
        None => Ok(()),
    }
}

impl fmt::Display for LimitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitReason::Override => f.write_str("an override for this key"),
            LimitReason::NetworkOverride { network, set } => {
                f.write_str("an override for ")?;
                write_network(f, network, set.as_deref())
            }
            LimitReason::Tier { by, tier } => write!(f, "`{by}` is `{}`", Excerpt::of(tier)),
            LimitReason::NoTier { by, tier: Some(tier) } => {
                write!(f, "the default: `{by}` is `{}`, which is not in `tiers`", Excerpt::of(tier))
            }
            LimitReason::NoTier { by, tier: None } => {
                write!(f, "the default: `{by}` is not known")
            }
            LimitReason::Only => f.write_str("the rule's only limit"),
        }
    }
}

/// Returns `a`, `b` or `c`; of many, the first five.
fn listed(texts: &[String]) -> String {
    const MOST: usize = 5;
    let quoted = texts.iter().take(MOST).map(|text| format!("`{}`", Excerpt::of(text)));
    let mut listed = quoted.collect::<Vec<_>>();
    if texts.len() > MOST {
        listed.push(format!("{} others", texts.len() - MOST));
    }
    match listed.pop() {
        Some(last) if listed.is_empty() => last,
        Some(last) => format!("{} or {last}", listed.join(", ")),
        None => String::new(),
    }
}
