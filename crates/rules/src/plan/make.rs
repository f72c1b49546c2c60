//! Compiles a configuration into a plan.

use std::sync::Arc;

use tollgate_limiter::{Error, Limiter, Scope};

use super::ConfiguredIdentity;
use super::index::RuleIndex;
use super::overrides::{NetworkOverride, Overrides};
use super::request_limits::RequestLimits;
use super::values::ValueTable;
use super::{
    DomainRules, Map, NamedScope, Plan, PlannedRule, RareParts, ReplacedRules, RuleName,
    SpendTarget, SpendTargetId, TierLimits, with_leases, with_terms,
};
use crate::config::{self, Config, KeyValue, Requirement, Spend};
use crate::domains::{DomainUse, UnknownDomains};
use crate::key::push_part;
use crate::names::{AttributeId, AttributeNames};
use crate::tally::RuleTally;

impl Plan {
    /// Compiles the rules. A rule keeps the counts of the earlier rule of the same name.
    pub(crate) fn new(
        limiter: &Limiter,
        config: &Config,
        before: Option<&Plan>,
    ) -> Result<Plan, Error> {
        let api_keys = config.api_keys.iter().map(|(key, tier)| (&**key, &**tier));
        let mut names = AttributeNames::new(api_keys);
        let tallies: Map<&RuleName, &Arc<RuleTally>> = before
            .iter()
            .flat_map(|plan| &plan.rules)
            .map(|rule| (&rule.name, &rule.tally))
            .collect();
        let mut spends = Vec::new();
        let places = config.rules.iter().enumerate();
        let mut making = PlanBuilder {
            limiter,
            config,
            names: &mut names,
            domains: Map::default(),
            places: places.map(|(at, rule)| ((&*rule.domain, &*rule.name), at)).collect(),
            spends: &mut spends,
        };
        let rules = config
            .rules
            .iter()
            .enumerate()
            .map(|(at, rule)| {
                making.rule(at, rule, |name| tallies.get(name).map(|&tally| Arc::clone(tally)))
            })
            .collect::<Result<Vec<Arc<PlannedRule>>, Error>>()?;
        let mut domains: Map<Box<str>, DomainRules> = Map::default();
        for (at, rule) in rules.iter().enumerate() {
            domains.entry(rule.name.domain().into()).or_default().rules.push(at);
        }
        for (name, domain) in &mut domains {
            domain.index = RuleIndex::new(domain.rules.iter().map(|&at| (at, &*rules[at])));
            let before = before.and_then(|plan| plan.domains.get(name));
            domain.usage = DomainUse::new(before.is_some_and(|domain| domain.usage.is_set()));
        }
        let mut scopes = Map::default();
        for (id, scope) in spends.iter().map(|spent| spent.scope()).enumerate() {
            if let Some(scope) = scope {
                scopes.entry(scope.name().into()).or_insert(id);
            }
        }
        let scope = |limit: &config::LimitConfig| {
            let scope = limiter.scope(&limit.name, limit.limit)?;
            let scope = with_terms(scope, config.on_store_failure, config.deadline);
            let lease = config.leasing_by_name(limit);
            let scope = with_leases(scope, lease)?;
            Ok((limit.name.clone(), NamedScope { scope, lease }))
        };
        let limits = config.limits.iter().map(scope).collect::<Result<_, Error>>()?;
        let identity = {
            let before = before.and_then(|plan| plan.identity.as_ref());
            let made =
                config.identity.as_ref().map(|said| ConfiguredIdentity::new(said, limiter, before));
            made.transpose()?
        };
        let generation = before.map_or(1, |plan| plan.generation + 1);
        Ok(Plan {
            generation,
            wanted_attributes: names.wanted_attributes(),
            identity,
            is_shaping: spends.iter().any(|spent| spent.is_shaping()),
            is_reserving: spends.iter().any(|spent| spent.scope().is_some_and(Scope::only_holds))
                || rules.iter().any(|rule| rule.is_reserved()),
            names,
            rules,
            spends,
            scopes,
            domains,
            retired_domains: config.retired_domains.clone(),
            unknown_domains: UnknownDomains::default(),
            limits,
            request_limits: RequestLimits::default(),
        })
    }
}

/// The state of compiling rules.
struct PlanBuilder<'a> {
    limiter: &'a Limiter,
    config: &'a Config,
    names: &'a mut AttributeNames,
    domains: Map<&'a str, Arc<str>>,
    /// The indices of the rules, by their domains and names.
    places: Map<(&'a str, &'a str), usize>,
    spends: &'a mut Vec<Arc<SpendTarget>>,
}

impl<'a> PlanBuilder<'a> {
    fn rule(
        &mut self,
        at: usize,
        rule: &'a config::RuleConfig,
        tally: impl FnOnce(&RuleName) -> Option<Arc<RuleTally>>,
    ) -> Result<Arc<PlannedRule>, Error> {
        let domain = self.domains.entry(&rule.domain).or_insert_with(|| (&*rule.domain).into());
        let name = RuleName { domain: Arc::clone(domain), name: (&*rule.name).into() };
        let when = rule
            .when
            .iter()
            .map(|condition| (self.names.add(&condition.attribute), condition.wanted.clone()));
        let when: Vec<(AttributeId, Requirement)> = when.collect();
        let mut part = |part: &config::KeyPart| {
            part.first_of.iter().map(|name| (self.names.add(name), name.clone())).collect()
        };
        let key = rule.key.iter().map(&mut part).collect();
        let mut scopes = RuleScopes { making: self, rule, name: &name, made: Map::default() };
        let tiers = match &rule.limit.tiers {
            Some(tiers) => Some(scopes.tiers(tiers)?),
            None => None,
        };
        let default = scopes.id(rule.limit.default)?;
        let overrides = scopes.overrides()?;
        let values: Map<usize, ValueTable> = rule
            .when
            .iter()
            .enumerate()
            .filter_map(|(at, own)| Some((at, ValueTable::of(&own.wanted)?)))
            .collect();
        for (at, _) in values.iter().filter(|(_, values)| values.has_networks()) {
            // OK because it is the index of a condition.
            self.names.add_address(when[*at].0);
        }
        let measure = rule.cost.attribute.as_ref().map(|name| self.names.add(name));
        let rare = RareParts {
            measure,
            is_reserved: rule.cost.is_reserved,
            hold_for: rule.hold_for,
            values,
            tiers,
            overrides,
        };
        Ok(Arc::new(PlannedRule {
            when,
            key,
            default,
            rare: (!rare.is_empty()).then(|| Box::new(rare)),
            cost: rule.cost.clone(),
            is_shadow: rule.is_shadow,
            on_store_failure: rule.on_store_failure,
            deadline: rule.deadline,
            tally: tally(&name).unwrap_or_default(),
            name,
            at,
            replaces: self.replaced(rule),
        }))
    }

    fn replaced(&self, rule: &config::RuleConfig) -> ReplacedRules {
        let config::Replacement::Named(names) = &rule.replaces else { return ReplacedRules::All };
        let names = names.iter().map(|name| (&*rule.domain, &**name));
        let mut places: Vec<usize> =
            names.filter_map(|name| self.places.get(&name).copied()).collect();
        places.sort_unstable();
        ReplacedRules::At(places)
    }
}

/// The scopes of one rule: all have its name, and there is one for each limit that it may spend.
struct RuleScopes<'m, 'a> {
    making: &'m mut PlanBuilder<'a>,
    rule: &'m config::RuleConfig,
    name: &'m RuleName,
    made: Map<Spend, SpendTargetId>,
}

impl RuleScopes<'_, '_> {
    fn id(&mut self, spend: Spend) -> Result<SpendTargetId, Error> {
        if let Some(made) = self.made.get(&spend) {
            return Ok(*made);
        }
        let spent = match spend {
            Spend::Allow => SpendTarget::Allow,
            Spend::Block => SpendTarget::Block,
            Spend::Limit(at) => self.limit(&self.making.config.limits[at])?,
        };
        let id = self.making.spends.len();
        self.making.spends.push(Arc::new(spent));
        self.made.insert(spend, id);
        Ok(id)
    }

    fn limit(&self, own: &config::LimitConfig) -> Result<SpendTarget, Error> {
        let scope = self.making.limiter.scope(&self.name.to_string(), own.limit)?;
        let scope = with_terms(scope, self.rule.on_store_failure, self.rule.deadline);
        let lease = self.making.config.leasing(self.rule, own);
        let scope = with_leases(scope, lease)?;
        Ok(SpendTarget::Limit { name: (&*own.name).into(), scope, lease })
    }

    fn tiers(&mut self, tiers: &config::TierConfig) -> Result<TierLimits, Error> {
        let by = self.making.names.add(&tiers.by);
        let tier = |(name, spend): &(Box<str>, Spend)| Ok((name.clone(), self.id(*spend)?));
        let of = tiers.of.iter().map(tier).collect::<Result<_, Error>>()?;
        Ok(TierLimits { by, of })
    }

    fn overrides(&mut self) -> Result<Overrides, Error> {
        let (mut exact, mut in_networks) = (Map::default(), Vec::new());
        for own in &self.rule.overrides {
            let spent = self.id(own.spend)?;
            let (mut texts, mut found) = (Vec::new(), None);
            for (part, (name, value)) in own.key.iter().enumerate() {
                match value {
                    KeyValue::Text(text) => push_part(&mut texts, 0, name, text),
                    KeyValue::In(networks) => found = Some((part, name, networks)),
                }
            }
            let Some((part, name, networks)) = found else {
                exact.insert(texts, spent);
                continue;
            };
            let attribute = self.making.names.add(name);
            self.making.names.add_address(attribute);
            let others = texts;
            in_networks.push(NetworkOverride { part, attribute, networks, others, spent });
        }
        Ok(Overrides::new(exact, in_networks))
    }
}
