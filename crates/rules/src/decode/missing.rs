//! Finds requests that a rule does not limit because they lack the attributes of its key.

use std::collections::HashMap;

use super::fields::listed;
use super::sources::{AttributeSources, Availability, RequestOrigin};
use crate::config::{Condition, KeyPart, Requirement, RuleConfig, Spend};
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::{NodeKind, YamlNode};

/// The most other rules that are compared with a rule whose key may be missing. If there are more, requests without the
/// key are assumed to be limited.
///
/// The compared rules are of the same domain. Such a rule has no condition on values, or its first condition on values
/// has the same attribute and the same first value as a condition of the rule whose key may be missing.
const MAX_COMPARED: usize = 1_000;

/// A domain, and the attribute and the first value of a rule's condition; both are empty if the rule has no condition on
/// values.
type RuleHeading<'r> = (&'r str, &'r str, String);

/// The rules whose key can be made from every request, by their headings.
type OtherRules<'r> = HashMap<RuleHeading<'r>, Vec<&'r RuleConfig>>;

/// The parts of keys that some requests do not have.
#[derive(Default)]
pub(super) struct MissingKeys {
    /// The number of rules that were read.
    rules: usize,
    found: Vec<MissingPart>,
}

struct MissingPart {
    rule: usize,
    part: usize,
    at: Position,
}

impl MissingKeys {
    /// Notes the parts of a rule's key, which is at `node`, that some requests do not have.
    pub(super) fn note(
        &mut self,
        rule: &RuleConfig,
        node: &YamlNode<'_>,
        origin: RequestOrigin<'_>,
    ) {
        let place = self.rules;
        self.rules += 1;
        let NodeKind::List(items) = &node.kind else { return };
        if origin.is_envoy || !limits_anything(rule) {
            return;
        }
        let parts = rule.key.iter().zip(items).enumerate();
        let missing = parts.filter(|(_, (part, _))| {
            may_be_missing(part, origin.sources) && !is_wanted(part, &rule.when)
        });
        let found = missing.map(|(part, (_, item))| MissingPart { rule: place, part, at: item.at });
        self.found.extend(found);
    }

    /// Warns of the parts without which no other rule limits a request either.
    pub(super) fn warn(
        &self,
        rules: &[RuleConfig],
        sources: &AttributeSources<'_>,
        report: &mut Report,
    ) {
        if self.found.is_empty() {
            return;
        }
        let mut others = OtherRules::new();
        for rule in rules.iter().filter(|rule| sources.makes_key(&rule.key)) {
            let first = rule.when.iter().find(|condition| condition.wanted != Requirement::Absent);
            others.entry(heading(rule, first)).or_default().push(rule);
        }
        for MissingPart { rule, part, at } in &self.found {
            let Some(rule) = rules.get(*rule) else { continue };
            let Some(part) = rule.key.get(*part) else { continue };
            if !is_limited_without(part, rule, &others) {
                warn(rule, part, *at, report);
            }
        }
    }
}

fn heading<'r>(rule: &'r RuleConfig, condition: Option<&'r Condition>) -> RuleHeading<'r> {
    let value =
        |condition: &Condition| condition.wanted.patterns().first().map(ToString::to_string);
    let attribute = condition.map_or("", |condition| &condition.attribute);
    (&rule.domain, attribute, condition.and_then(value).unwrap_or_default())
}

/// Returns whether another rule limits the requests that `rule` does not limit because they lack a part of its key.
fn is_limited_without(part: &KeyPart, rule: &RuleConfig, others: &OtherRules<'_>) -> bool {
    let headings = rule.when.iter().map(Some).chain([None]).map(|own| heading(rule, own));
    let mut others = headings.filter_map(|heading| others.get(&heading)).flatten();
    let is_found =
        others.by_ref().take(MAX_COMPARED).any(|other| limits_without(other, rule, part));
    is_found || others.next().is_some()
}

fn warn(rule: &RuleConfig, part: &KeyPart, at: Position, report: &mut Report) {
    let names: Vec<&str> = part.first_of.iter().map(|name| &**name).collect();
    let first = names.first().copied().unwrap_or_default();
    let has_ip = rule.key.iter().any(|part| part.first_of.iter().any(|name| **name == *"ip"));
    let remedy = match has_ip {
        false => format!("use `{{ first_of: [{}, ip] }}`", names.join(", ")),
        true => format!("limit them by a rule with `when: {{ {first}: {{ present: false }} }}`"),
    };
    report.warn(
        at,
        format!("requests without a known {} are not limited by this rule", listed(&names)),
        format!("{remedy}; if that is meant, add `when: {{ {first}: {{ present: true }} }}` here"),
    );
}

/// Returns whether a rule limits or refuses any request.
fn limits_anything(rule: &RuleConfig) -> bool {
    rule.limit.default != Spend::Allow || rule.limit.tiers.is_some()
}

/// Returns whether some requests have no attribute of a part, and others have one.
fn may_be_missing(part: &KeyPart, sources: &AttributeSources<'_>) -> bool {
    let available = || part.first_of.iter().map(|name| sources.of(name));
    !available().any(|it| it == Availability::Always)
        && available().any(|it| it == Availability::Sometimes)
}

/// Returns whether `when` holds only for requests that have the part, so that the rule is meant only for them.
fn is_wanted(part: &KeyPart, when: &[Condition]) -> bool {
    when.iter().any(|condition| is_of(part, condition) && condition.wanted != Requirement::Absent)
}

fn is_of(part: &KeyPart, condition: &Condition) -> bool {
    part.first_of.contains(&condition.attribute)
}

/// Returns whether `other` limits the requests that `rule` does not limit because they lack the part. Every request
/// has the key of `other`.
///
/// `other` must require that the part is missing, or limit each client by another key. It must apply to all requests
/// that `rule` is for: each of its other conditions is also a condition of `rule`. A shadow rule counts only if
/// `rule` is a shadow rule too.
fn limits_without(other: &RuleConfig, rule: &RuleConfig, part: &KeyPart) -> bool {
    let is_absence =
        |condition: &Condition| is_of(part, condition) && condition.wanted == Requirement::Absent;
    let says_missing = other.when.iter().any(is_absence);
    let limits_each = !other.key.is_empty() && limits_anything(other);
    (says_missing || limits_each)
        && (rule.is_shadow || !other.is_shadow)
        && other.when.iter().all(|own| is_absence(own) || rule.when.contains(own))
}
