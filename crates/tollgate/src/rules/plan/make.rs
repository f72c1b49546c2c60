//! From what a file says to rules made ready.

use std::sync::Arc;

#[cfg(feature = "tower")]
use super::Configured;
use super::{
    Domain, Many, Map, Plan, ReplacedRules, Rule, RuleName, Seldom, Spent, SpentId, Tiers, on_terms,
};
use crate::error::Error;
use crate::limiter::Limiter;
use crate::rules::config::{self, Config, Spend, Wanted};
use crate::rules::index::Index;
use crate::rules::key::push_part;
use crate::rules::limited::Limited;
use crate::rules::names::Names;
use crate::rules::pattern::Pattern;
use crate::rules::tally::Tally;

impl Plan {
    /// Makes rules ready. What was counted for a rule of the same name before goes on.
    pub(in crate::rules) fn new(
        limiter: &Limiter,
        config: &Config,
        before: Option<&Plan>,
    ) -> Result<Plan, Error> {
        let api_keys = config.api_keys.iter().map(|(key, tier)| (&**key, &**tier));
        let mut names = Names::new(api_keys);
        let tallies: Map<&RuleName, &Arc<Tally>> = before
            .iter()
            .flat_map(|plan| &plan.rules)
            .map(|rule| (&rule.name, &rule.tally))
            .collect();
        let mut spends = Vec::new();
        let places = config.rules.iter().enumerate();
        let mut making = Making {
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
            .collect::<Result<Vec<Arc<Rule>>, Error>>()?;
        let mut domains: Map<Box<str>, Domain> = Map::default();
        for (at, rule) in rules.iter().enumerate() {
            domains.entry(rule.name.domain().into()).or_default().rules.push(at);
        }
        for domain in domains.values_mut() {
            domain.index = Index::new(domain.rules.iter().map(|&at| (at, &*rules[at])));
        }
        let mut scopes = Map::default();
        for (id, scope) in spends.iter().map(|spent| spent.scope()).enumerate() {
            if let Some(scope) = scope {
                scopes.entry(scope.name().into()).or_insert(id);
            }
        }
        let scope = |limit: &config::NamedLimit| {
            let scope = limiter.scope(&limit.name, limit.limit)?;
            let scope = on_terms(scope, config.on_store_failure, config.deadline);
            Ok((limit.name.clone(), scope))
        };
        let limits = config.limits.iter().map(scope).collect::<Result<_, Error>>()?;
        #[cfg(feature = "tower")]
        let identity = {
            let before = before.and_then(|plan| plan.identity.as_ref());
            let made = config.identity.as_ref().map(|said| Configured::new(said, limiter, before));
            made.transpose()?
        };
        let generation = before.map_or(1, |plan| plan.generation + 1);
        Ok(Plan {
            generation,
            #[cfg(feature = "tower")]
            asked: names.asked(),
            #[cfg(feature = "tower")]
            identity,
            #[cfg(feature = "tower")]
            is_shaping: spends.iter().any(|spent| spent.is_shaping()),
            names,
            rules,
            spends,
            scopes,
            domains,
            limits,
            limited: Limited::default(),
        })
    }
}

/// What is needed to make rules ready.
struct Making<'a> {
    limiter: &'a Limiter,
    config: &'a Config,
    names: &'a mut Names,
    domains: Map<&'a str, Arc<str>>,
    /// Where the rules are, by their domains and names.
    places: Map<(&'a str, &'a str), usize>,
    spends: &'a mut Vec<Arc<Spent>>,
}

impl<'a> Making<'a> {
    fn rule(
        &mut self,
        at: usize,
        rule: &'a config::Rule,
        tally: impl FnOnce(&RuleName) -> Option<Arc<Tally>>,
    ) -> Result<Arc<Rule>, Error> {
        let domain = self.domains.entry(&rule.domain).or_insert_with(|| (&*rule.domain).into());
        let name = RuleName { domain: Arc::clone(domain), name: (&*rule.name).into() };
        let when = rule
            .when
            .iter()
            .map(|condition| (self.names.add(&condition.attribute), condition.wanted.clone()));
        let when = when.collect();
        let mut part = |part: &config::KeyPart| {
            part.first_of.iter().map(|name| (self.names.add(name), name.clone())).collect()
        };
        let key = rule.key.iter().map(&mut part).collect();
        let mut scopes = Scopes { making: self, rule, name: &name, made: Map::default() };
        let tiers = match &rule.limit.tiers {
            Some(tiers) => Some(scopes.tiers(tiers)?),
            None => None,
        };
        let default = scopes.id(rule.limit.default)?;
        let overrides = scopes.overrides()?;
        let many = rule.when.iter().enumerate().filter_map(|(at, own)| many(at, &own.wanted));
        let seldom = Seldom { many: many.collect(), tiers, overrides };
        Ok(Arc::new(Rule {
            when,
            key,
            default,
            seldom: (!seldom.is_empty()).then(|| Box::new(seldom)),
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

    fn replaced(&self, rule: &config::Rule) -> ReplacedRules {
        let config::Replaces::Named(names) = &rule.replaces else { return ReplacedRules::All };
        let names = names.iter().map(|name| (&*rule.domain, &**name));
        let mut places: Vec<usize> =
            names.filter_map(|name| self.places.get(&name).copied()).collect();
        places.sort_unstable();
        ReplacedRules::At(places)
    }
}

/// What a condition wants that is about many values, and its place; few are as quickly compared.
fn many(at: usize, wanted: &Wanted) -> Option<(usize, Many)> {
    const FEW: usize = 8;
    let patterns = wanted.patterns();
    if patterns.len() <= FEW {
        return None;
    }
    let exact = patterns.iter().filter_map(|pattern| match pattern {
        Pattern::Exact(value) => Some(value.clone()),
        Pattern::Prefix(_) | Pattern::Glob(_) => None,
    });
    let others = patterns.iter().filter(|pattern| !matches!(pattern, Pattern::Exact(_)));
    Some((at, Many { exact: exact.collect(), others: others.cloned().collect() }))
}

/// The scopes of one rule: all of its name, one for each limit that it may spend.
struct Scopes<'m, 'a> {
    making: &'m mut Making<'a>,
    rule: &'m config::Rule,
    name: &'m RuleName,
    made: Map<Spend, SpentId>,
}

impl Scopes<'_, '_> {
    fn id(&mut self, spend: Spend) -> Result<SpentId, Error> {
        if let Some(made) = self.made.get(&spend) {
            return Ok(*made);
        }
        let spent = match spend {
            Spend::Allow => Spent::Nothing,
            Spend::Block => Spent::Blocked,
            Spend::Limit(at) => self.limit(&self.making.config.limits[at])?,
        };
        let id = self.making.spends.len();
        self.making.spends.push(Arc::new(spent));
        self.made.insert(spend, id);
        Ok(id)
    }

    fn limit(&self, own: &config::NamedLimit) -> Result<Spent, Error> {
        let scope = self.making.limiter.scope(&self.name.to_string(), own.limit)?;
        let scope = on_terms(scope, self.rule.on_store_failure, self.rule.deadline);
        Ok(Spent::Limit { name: (&*own.name).into(), scope })
    }

    fn tiers(&mut self, tiers: &config::Tiers) -> Result<Tiers, Error> {
        let by = self.making.names.add(&tiers.by);
        let tier = |(name, spend): &(Box<str>, Spend)| Ok((name.clone(), self.id(*spend)?));
        let of = tiers.of.iter().map(tier).collect::<Result<_, Error>>()?;
        Ok(Tiers { by, of })
    }

    fn overrides(&mut self) -> Result<Map<Vec<u8>, SpentId>, Error> {
        let rule = self.rule;
        let own = |own: &config::Override| {
            let mut key = Vec::new();
            own.key.iter().for_each(|(name, value)| push_part(&mut key, 0, name, value));
            Ok((key, self.id(own.spend)?))
        };
        rule.overrides.iter().map(own).collect()
    }
}
