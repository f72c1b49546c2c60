//! The rules, each on its own and in relation to the others.

use std::collections::BTreeMap;

use tollgate_core::{Excerpt, duration_text};
use tollgate_limiter::DEFAULT_HOLD_FOR;

use super::defaults::{self, Defaults};
use super::fields::{Mapping, MappingFields};
use super::lease::ModeOrigin;
use super::limits::LimitsTable;
use super::missing::MissingKeys;
use super::networks::NetworkSets;
use super::replaces::{self, ReplacesField, ReplacingRules};
use super::sources::{AttributeSources, RequestOrigin};
use super::{choice, cost, key, lease, names, overrides, when};
use crate::config::{Costs, DecisionMode, LimitChoice, Override, Replacement, RuleConfig, Spend};
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::YamlNode;

/// The most rules in a file.
const MAX_RULES: usize = 32_768;

/// The most pairs of a rule and a limit that it may spend: each has metrics of its own.
const MAX_PAIRS: usize = 32_768;

const RULE: Mapping = Mapping {
    name: "a rule",
    fields: &[
        "name",
        "domain",
        "when",
        "key",
        "limit",
        "cost",
        "hold_for",
        "shadow",
        "on_store_failure",
        "deadline",
        "mode",
        "lease",
        "overrides",
        "replaces",
    ],
    remedy: super::RULE_REMEDY,
};

/// The state of reading rules, one after the other.
pub(super) struct RulesReader<'n, 'l> {
    defaults: Defaults<'n>,
    limits: &'l mut LimitsTable<'n>,
    networks: &'l mut NetworkSets<'n>,
    /// The attributes that requests have.
    sources: &'l AttributeSources<'l>,
    missing: MissingKeys,
    /// The first position of each name of a domain.
    first: BTreeMap<replaces::RuleId<'n>, Position>,
    replacing: ReplacingRules<'n>,
    count: usize,
    /// The number of rules whose name and domain could be read.
    named: usize,
    pairs: usize,
}

impl<'n, 'l> RulesReader<'n, 'l> {
    pub(super) fn new(
        defaults: Defaults<'n>,
        limits: &'l mut LimitsTable<'n>,
        networks: &'l mut NetworkSets<'n>,
        sources: &'l AttributeSources<'l>,
    ) -> RulesReader<'n, 'l> {
        RulesReader {
            defaults,
            limits,
            networks,
            sources,
            missing: MissingKeys::default(),
            first: BTreeMap::new(),
            replacing: ReplacingRules::default(),
            count: 0,
            named: 0,
            pairs: 0,
        }
    }

    pub(super) fn read(
        &mut self,
        node: &'n YamlNode<'_>,
        report: &mut Report,
    ) -> Option<RuleConfig> {
        self.count(node.at, report)?;
        let fields = MappingFields::read(node, &RULE, report)?;
        let (name, domain) = self.identity(&fields, report);
        let key_node = fields.require("key", key::REMEDY, report);
        let when = fields.get("when").into_iter().flat_map(MappingFields::of);
        let origin = RequestOrigin::of(self.sources, when.map(|(name, _)| name));
        let key = key_node.and_then(|node| key::read(node, origin, report));
        let when =
            fields.or("when", Vec::new(), |node| when::read(node, origin, self.networks, report));
        if let (Some(key), Some(when)) = (&key, &when) {
            key::check_presence(key, when, key_node.map_or(node.at, |node| node.at), report);
        }
        let limit = fields.require("limit", choice::REMEDY, report);
        let limit = limit.and_then(|node| choice::read(node, self.limits, origin, report));
        let cost = fields.or("cost", cost::ONE, |node| cost::read(node, origin, report));
        let hold_for = fields.or("hold_for", None, |node| cost::hold_for(node, report).map(Some));
        let overrides = fields.or("overrides", Vec::new(), |node| {
            let (limits, networks) = (&mut *self.limits, &mut *self.networks);
            let reading = overrides::OverridesReader { parts: key.as_deref(), limits, networks };
            overrides::read(node, reading, report)
        });
        let is_shadow = fields.or("shadow", false, |node| report.truth(node, "`shadow`"));
        let on_store_failure =
            fields.or("on_store_failure", self.defaults.on_store_failure, |node| {
                defaults::on_failure(node, report).map(Some)
            });
        let deadline = fields.or("deadline", self.defaults.deadline, |node| {
            defaults::deadline(node, report).map(Some)
        });
        let lease = lease::read(&fields, report);
        let replaces = self.replaced(&fields, domain.zip(name), report);
        let rule = RuleConfig {
            name: name?.into(),
            domain: domain?.into(),
            when: when?,
            key: key?,
            limit: limit?,
            cost: cost?,
            hold_for: hold_for?,
            is_shadow: is_shadow?,
            on_store_failure: on_store_failure?,
            deadline: deadline?,
            lease,
            overrides: overrides?,
            replaces: replaces?,
        };
        self.count_pairs(&rule, node.at, report);
        let at = |name| fields.get(name).map_or(node.at, |node| node.at);
        self.warn_of_cost(&rule, at("cost"), report);
        self.check_holds(&rule, (at("cost"), at("hold_for")), report);
        self.check_leases(
            &rule,
            LeasePositions { mode: at("mode"), lease: at("lease"), cost: at("cost") },
            report,
        );
        if let Some(key) = key_node {
            self.missing.note(&rule, key, origin);
        }
        Some(rule)
    }

    /// Reads the rules that a rule replaces.
    fn replaced(
        &mut self,
        fields: &MappingFields<'n, '_>,
        rule: Option<replaces::RuleId<'n>>,
        report: &mut Report,
    ) -> Option<Replacement> {
        let none = ReplacesField::Named(Vec::new());
        let replaced = fields.or("replaces", none, |node| replaces::read(node, report))?;
        let replaces = replaced.to_config();
        if let Some(rule) = rule {
            self.replacing.add(rule, replaced);
        }
        Some(replaces)
    }

    /// Checks, once all rules have been read, that rules replace existing rules, and that at least one of them
    /// remains.
    pub(super) fn check_replaced(&self, report: &mut Report) {
        // A rule whose name could not be read may be the rule that is named.
        if self.named == self.count {
            self.replacing.check_names(&self.first, report);
        }
        self.replacing.check_all(report);
        self.replacing.check_circles(report);
    }

    /// Warns of requests that no rule limits because a key is missing, once all rules were read without errors.
    pub(super) fn warn_of_missing(&self, rules: &[RuleConfig], report: &mut Report) {
        self.missing.warn(rules, self.sources, report);
    }

    /// Reports too many rules, once.
    fn count(&mut self, at: Position, report: &mut Report) -> Option<()> {
        self.count += 1;
        if self.count == MAX_RULES + 1 {
            report.error(at, format!("more than {MAX_RULES} rules"), "split the file");
        }
        (self.count <= MAX_RULES).then_some(())
    }

    fn count_pairs(&mut self, rule: &RuleConfig, at: Position, report: &mut Report) {
        // Limits that callers use by name have metrics of their own.
        let before = self.pairs + self.limits.count();
        self.pairs += limits_of(&rule.limit, &rule.overrides).len();
        if before <= MAX_PAIRS && self.pairs + self.limits.count() > MAX_PAIRS {
            let message = format!(
                "the limits, and the pairs of a rule and a limit that it may spend, are together more than {MAX_PAIRS}"
            );
            report.error(at, message, "use fewer tiers and overrides, or split the file");
        }
    }

    fn domain(&self, fields: &MappingFields<'n, '_>, report: &mut Report) -> Option<&'n str> {
        match fields.get("domain") {
            Some(node) => names::DOMAIN.read(node, "`domain`", report),
            None if self.defaults.has_domain => self.defaults.domain,
            None => {
                let remedy = "name it here, or for all rules like `defaults: { domain: api }`";
                fields.require("domain", remedy, report);
                None
            }
        }
    }

    /// Reads the rule's name and domain, which together must be unique.
    fn identity(
        &mut self,
        fields: &MappingFields<'n, '_>,
        report: &mut Report,
    ) -> (Option<&'n str>, Option<&'n str>) {
        let name_node = fields.require("name", "name the rule, like `name: per-client`", report);
        let name = name_node.and_then(|node| names::RULE.read(node, "`name`", report));
        let domain = self.domain(fields, report);
        if let (Some(node), Some(name), Some(domain)) = (name_node, name, domain) {
            self.named += 1;
            self.check_twice(name, domain, node.at, report);
        }
        (name, domain)
    }

    fn check_twice(&mut self, name: &'n str, domain: &'n str, at: Position, report: &mut Report) {
        let Some(first) = self.first.get(&(domain, name)) else {
            self.first.insert((domain, name), at);
            return;
        };
        let (domain, first) = (Excerpt::of(domain), first.line);
        let message =
            format!("rule `{name}` of domain `{domain}` is defined twice (first at line {first})");
        report.error(at, message, "rename one of them");
    }

    /// Checks that the units of a rule can be held if they should be, and notes which front ends cannot end the holds.
    fn check_holds(
        &self,
        rule: &RuleConfig,
        (cost_at, hold_for_at): (Position, Position),
        report: &mut Report,
    ) {
        let limits = limits_of(&rule.limit, &rule.overrides);
        let shaping = limits.iter().find(|&&place| self.limits.is_shaping(place));
        if let Some(&place) = shaping.filter(|_| rule.cost.is_reserved) {
            let name = self.limits.name(place);
            let message =
                format!("limit `{name}` is a shaping leaky bucket, whose units cannot be held");
            let remedy = "use `mode: policing` or a token bucket, or charge the cost at once";
            report.error(cost_at, message, remedy);
        }
        let concurrency = limits.iter().find_map(|&place| self.limits.concurrency_time(place));
        if rule.cost.is_reserved || concurrency.is_some() {
            let time = rule.hold_for.or(concurrency).unwrap_or(DEFAULT_HOLD_FOR);
            let time = duration_text(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
            let at_proxies = match concurrency {
                Some(_) => format!("each hold lasts {time} there"),
                None => format!(
                    "the units are charged at once there, or held for {time} if a concurrency limit applies too"
                ),
            };
            note_hold(rule, &at_proxies, cost_at, report);
        } else if rule.hold_for.is_some() {
            let remedy = "leave it out, or set units aside, like `cost: { reserve: 1000 }`";
            report.error(hold_for_at, "`hold_for` in a rule that holds nothing", remedy);
        }
    }

    /// Checks that a rule with settings of leases can use them. Limits that are leased whatever rule spends them are checked
    /// where they are defined.
    fn check_leases(&self, rule: &RuleConfig, at: LeasePositions, report: &mut Report) {
        let limits = limits_of(&rule.limit, &rule.overrides);
        let is_leased = |&place: &usize| {
            rule.lease.or(self.limits.lease(place)).or(self.defaults.lease).chosen().is_some()
        };
        let is_own = rule.lease.mode == Some(DecisionMode::Leased);
        if !limits.iter().any(is_leased) {
            self.check_unused_lease(rule, is_own, at, report);
        } else if rule.cost.is_reserved {
            let message = format!(
                "rule `{}` is never leased: it reserves, and reservations always go to the store",
                rule.name
            );
            let origin = if is_own { ModeOrigin::Own } else { ModeOrigin::Defaults };
            let at = if is_own { at.mode } else { at.cost };
            lease::warn_never_leased(message, origin, at, report);
        } else if is_own || rule.lease.options.is_some() {
            let (own, defaults) = (rule.lease, self.defaults.lease);
            let leased = limits
                .iter()
                .filter_map(|&place| self.limits.leased(place, own, defaults, at.mode));
            leased.for_each(|leased| leased.warn(report));
        }
    }

    /// Reports settings of leases in a rule that leases nothing.
    fn check_unused_lease(
        &self,
        rule: &RuleConfig,
        is_own: bool,
        at: LeasePositions,
        report: &mut Report,
    ) {
        if is_own {
            let message = format!("rule `{}` is leased and spends no limit", rule.name);
            report.warn(at.mode, message, "leave `mode: leased` out");
        } else if rule.lease.options.is_some() {
            let remedy = "leave it out, or add `mode: leased`";
            report.error(at.lease, "`lease` in a rule that is not leased", remedy);
        }
    }

    /// Warns of a cost above the size of a limit, because such requests would always be refused.
    fn warn_of_cost(&self, rule: &RuleConfig, at: Position, report: &mut Report) {
        let Costs { routes, default, .. } = &rule.cost;
        let most = routes.iter().map(|(_, cost)| *cost).chain([*default]).max();
        let most = most.map_or(0, |cost| cost.units());
        let too_small = |&place: &usize| self.limits.size(place).is_some_and(|size| size < most);
        let limits = limits_of(&rule.limit, &rule.overrides);
        if let Some(place) = limits.into_iter().find(too_small) {
            let name = self.limits.name(place);
            let message = format!("a cost of {most}, above the size of limit `{name}`");
            report.warn(
                at,
                message,
                "such requests are always refused: lower it, or raise the limit",
            );
        }
    }
}

/// Where a rule says how it is leased, and what it costs.
#[derive(Clone, Copy)]
struct LeasePositions {
    mode: Position,
    lease: Position,
    cost: Position,
}

/// Notes that some front ends cannot end the holds of a rule: whether they use its domain is not in the file.
fn note_hold(rule: &RuleConfig, at_proxies: &str, at: Position, report: &mut Report) {
    let message = format!(
        "rule `{}` holds units until the caller ends the hold: Envoy and forward authentication cannot",
        rule.name
    );
    report.note(at, message, format!("if they use domain `{}`, {at_proxies}", rule.domain));
}

/// Returns the limits that a rule may spend, each once.
fn limits_of(choice: &LimitChoice, overrides: &[Override]) -> Vec<usize> {
    let tiers = choice.tiers.iter().flat_map(|tiers| tiers.of.iter().map(|(_, spend)| *spend));
    let overrides = overrides.iter().map(|one| one.spend);
    let mut places: Vec<usize> = [choice.default]
        .into_iter()
        .chain(tiers)
        .chain(overrides)
        .filter_map(|spend| match spend {
            Spend::Limit(place) => Some(place),
            Spend::Allow | Spend::Block => None,
        })
        .collect();
    places.sort_unstable();
    places.dedup();
    places
}
