//! Makes a rule of each limit in a tree.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;

use tollgate::http::{ClientAddress, Ipv6Prefix, UNKNOWN_ADDRESS};
use tollgate::rules::Config;
use tollgate::rules::reading::{ATTRIBUTE, Report};
use tollgate_core::Excerpt;

use super::domain::ImportedDomain;
use super::names::{self, RuleNames};
use super::read::{ConfigDescriptor, DescriptorLimit, DescriptorValue};
use super::replacing::ImportedReplacements;
use super::siblings::{MatchingValues, SiblingLevel};
use super::source::SourcePosition;

/// The attribute that every descriptor has: the keys of its entries, in order.
pub(super) const KEYS: &str = "descriptor_keys";

/// The most values of an attribute in a rule's `when`.
const MAX_VALUES: usize = 10_000;

/// The most excluded values and replaced rules, together: each takes at least three bytes in a file.
const MAX_LISTED: usize = Config::MAX_BYTES / 3;

/// A rule to be written.
pub(super) struct ImportedRule<'t> {
    pub(super) place: SourcePosition,
    /// The number of the domain.
    pub(super) domain: usize,
    pub(super) name: String,
    pub(super) steps: Vec<RuleStep<'t>>,
    pub(super) limit: &'t DescriptorLimit,
    /// The names of the rules that this one replaces.
    pub(super) replaces: Vec<String>,
}

/// One entry of the descriptor that a rule applies to.
#[derive(Clone)]
pub(super) struct RuleStep<'t> {
    pub(super) descriptor: &'t ConfigDescriptor,
    /// `user`, or `user#2` if it is the second entry with that key.
    pub(super) attribute: Rc<str>,
    pub(super) values: Rc<MatchingValues<'t>>,
}

pub(super) fn make<'t>(
    domains: &'t [ImportedDomain],
    reports: &mut [Report],
) -> Vec<ImportedRule<'t>> {
    let mut maker = RuleMaker { rules: Vec::new(), listed: 0, warned: HashSet::new(), reports };
    for (number, domain) in domains.iter().enumerate() {
        let first = maker.rules.len();
        maker.level(number, &domain.descriptors, &mut Vec::new());
        maker.name(first);
        maker.replace(first);
    }
    maker.rules
}

struct RuleMaker<'t, 'r> {
    rules: Vec<ImportedRule<'t>>,
    listed: usize,
    /// The files and keys for which a warning was given.
    warned: HashSet<(usize, &'t str)>,
    reports: &'r mut [Report],
}

impl<'t> RuleMaker<'t, '_> {
    /// Makes the rules of a level and of the levels below it. The recursion is as deep as files may be.
    fn level(
        &mut self,
        domain: usize,
        level: &'t [ConfigDescriptor],
        path: &mut Vec<RuleStep<'t>>,
    ) {
        let beside = SiblingLevel::new(level);
        for descriptor in level.iter().filter(|descriptor| has_limit(descriptor)) {
            let Some(step) = self.step(descriptor, &beside, path) else { continue };
            path.push(step);
            if let Some(limit) = &descriptor.limit {
                let (place, steps) = (descriptor.place, path.clone());
                let (name, replaces) = (String::new(), Vec::new());
                self.rules.push(ImportedRule { place, domain, name, steps, limit, replaces });
            }
            self.level(domain, &descriptor.below, path);
            path.pop();
        }
    }

    fn step(
        &mut self,
        descriptor: &'t ConfigDescriptor,
        beside: &SiblingLevel<'t>,
        path: &[RuleStep<'t>],
    ) -> Option<RuleStep<'t>> {
        let place = descriptor.place;
        let attribute = self.attribute(descriptor, path)?;
        let Some(values) = beside.values_of(descriptor, MAX_VALUES) else {
            let message = "never reached: an earlier value with a star matches all of its values";
            let remedy =
                "remove it, as the rules do, or move it up; it is not reached there either";
            place.warn(self.reports, message.into(), remedy);
            return None;
        };
        if values.none_of.len() > MAX_VALUES {
            let message = format!("more than {MAX_VALUES} values on its level take precedence");
            place.error(self.reports, message, "use a star for some of them");
            return None;
        }
        self.list(values.none_of.len(), place)?;
        self.warn_of_key(descriptor);
        self.warn_of_address(descriptor, &attribute);
        Some(RuleStep { descriptor, attribute: attribute.into(), values: Rc::new(values) })
    }

    /// Counts listed values and names, and reports once that there are too many.
    fn list(&mut self, more: usize, place: SourcePosition) -> Option<()> {
        let before = self.listed;
        self.listed = before.saturating_add(more);
        if before <= MAX_LISTED && self.listed > MAX_LISTED {
            let message = "too many values and names for one file of rules".to_owned();
            place.error(self.reports, message, "import fewer descriptors at a time");
        }
        (self.listed <= MAX_LISTED).then_some(())
    }

    /// Returns the attribute of the entry in rules.
    fn attribute(
        &mut self,
        descriptor: &ConfigDescriptor,
        path: &[RuleStep<'t>],
    ) -> Option<String> {
        let ConfigDescriptor { key, place, .. } = descriptor;
        let before = path.iter().filter(|step| step.descriptor.key == *key).count();
        let name = match before {
            0 => key.clone(),
            // OK because a path has few steps.
            _ => format!("{key}#{}", before + 1),
        };
        let is_taken = name == KEYS || path.iter().any(|step| *step.attribute == name);
        if is_taken {
            let message = format!("`{}` means something else in rules", Excerpt::of(&name));
            place.error(self.reports, message, "rename the entry, here and in Envoy");
            return None;
        }
        let report = self.reports.get_mut(place.file)?;
        ATTRIBUTE.check(&name, place.at, report).map(str::to_owned)
    }

    /// Warns of keys that have another meaning in rules, once per file and key.
    fn warn_of_key(&mut self, descriptor: &'t ConfigDescriptor) {
        let ConfigDescriptor { key, place, .. } = descriptor;
        let (message, remedy) = match &**key {
            "api_key" => (
                "`api_key` is a claim in rules: unless `api_keys` has the key, no rule limits by it",
                "rename the entry in Envoy and here, or list the keys",
            ),
            key if key.starts_with("jwt.") => (
                "`jwt.…` is a claim in rules: no rule limits by a claim that was not verified",
                "rename the entry in Envoy and here",
            ),
            key if key.starts_with("header.") => (
                "`header.…` is set by the client: no rule limits by it",
                "rename the entry in Envoy and here",
            ),
            "path" => (
                "`path` ends before a `?` in rules: queries do not have counters of their own",
                "rename the entry in Envoy and here if they should",
            ),
            "ip" => (
                "`ip` is a client in rules: an IPv6 address counts as its /56, other text as `unknown`",
                "rename the entry in Envoy and here if each should have a counter",
            ),
            "method" => (
                "`method` in a rule's key is `other` unless it is one of the nine standard methods",
                "rename the entry in Envoy and here if each should have a counter",
            ),
            _ => return,
        };
        if self.warned.insert((place.file, key)) {
            place.warn(self.reports, message.into(), remedy);
        }
    }

    /// Warns of a value of `ip` that no client has. An address is compared with the full addresses of
    /// clients. Other texts, and all texts of a second `ip`, are compared with a client's text in keys.
    fn warn_of_address(&mut self, descriptor: &ConfigDescriptor, attribute: &str) {
        let ConfigDescriptor { key, value, place, .. } = descriptor;
        let (DescriptorValue::Exact(text) | DescriptorValue::Prefix(text)) = value else { return };
        let is_address =
            || matches!(value, DescriptorValue::Exact(_)) && text.parse::<IpAddr>().is_ok();
        if key != "ip" || (attribute == "ip" && is_address()) {
            return;
        }
        let client = client(text);
        let (is, may_be) = match (value, &client) {
            (DescriptorValue::Exact(_), Some(client)) => ("is", client.as_str() == text),
            (DescriptorValue::Exact(_), None) => ("is", text == UNKNOWN_ADDRESS),
            (_, Some(client)) => ("begins with", client.as_str().starts_with(text)),
            // It may be a part of an address.
            (_, None) => return,
        };
        if !may_be {
            let message = format!("never matches: no client's `ip` {is} `{}`", Excerpt::of(text));
            let remedy = client.map_or_else(
                || "use an address, or rename the entry in Envoy and here".into(),
                |client| format!("use `{client}`, the form of that address in rules"),
            );
            place.warn(self.reports, message, &remedy);
        }
    }

    /// Names the rules of a domain; rules with a name in the file come first.
    fn name(&mut self, first: usize) {
        let mut names = RuleNames::default();
        let rules = self.rules.get_mut(first..).unwrap_or_default();
        for rule in rules.iter_mut() {
            if let Some(given) = &rule.limit.name {
                rule.name = names.unique(given);
            }
        }
        for rule in rules.iter_mut().filter(|rule| rule.limit.name.is_none()) {
            let path = names::of_path(rule.steps.iter().map(|step| step.descriptor));
            rule.name = names.unique(&path);
        }
    }

    /// Resolves `replaces` in a domain by the names in the files; several limits may have the same name.
    fn replace(&mut self, first: usize) {
        let rules = self.rules.get(first..).unwrap_or_default();
        let mut given: HashMap<&str, Vec<usize>> = HashMap::new();
        for (number, rule) in rules.iter().enumerate() {
            if let Some(name) = &rule.limit.name {
                given.entry(name).or_default().push(number);
            }
        }
        let limits: Vec<&DescriptorLimit> = rules.iter().map(|rule| rule.limit).collect();
        let mut replacing = ImportedReplacements::new(limits.len());
        for (number, limit) in limits.iter().enumerate() {
            for (name, place) in &limit.replaces {
                let named = given.get(&**name).map_or(&[][..], Vec::as_slice);
                if self.list(named.len(), *place).is_none() {
                    return;
                }
                // OK because each of them is the number of a limit.
                let is_replaced = |target: &&usize| !limit.is_shadow || limits[**target].is_shadow;
                let targets: Vec<usize> = named.iter().filter(is_replaced).copied().collect();
                if named.is_empty() {
                    let message =
                        format!("no limit of the domain is called `{}`", Excerpt::of(name));
                    let remedy = "nothing is replaced, there or here; name an existing limit, or remove this";
                    place.warn(self.reports, message, remedy);
                } else if targets.len() < named.len() {
                    let message = "a shadow rule does not replace an enforced rule: both apply";
                    let remedy = "leave `shadow_mode` out, or leave the other limit out";
                    place.warn(self.reports, message.into(), remedy);
                }
                replacing.add(number, &targets, *place);
            }
        }
        let names: Vec<String> = self.rules.iter().skip(first).map(|it| it.name.clone()).collect();
        let replaced = replacing.without_circles(self.reports);
        for (rule, targets) in self.rules.iter_mut().skip(first).zip(replaced) {
            rule.replaces = targets.iter().filter_map(|at| names.get(*at).cloned()).collect();
        }
    }
}

/// Whether the descriptor or one below it has a limit.
fn has_limit(descriptor: &ConfigDescriptor) -> bool {
    descriptor.limit.is_some() || descriptor.below.iter().any(has_limit)
}

/// Returns the client that rules make of an address, or of an IPv6 prefix: `2001:db8::1` is `2001:db8::/56`.
fn client(text: &str) -> Option<ClientAddress> {
    let ip: IpAddr = match text.split_once('/') {
        None => text.parse().ok()?,
        Some((start, _)) => start.parse::<Ipv6Addr>().ok()?.into(),
    };
    Some(ClientAddress::of(ip, Ipv6Prefix::default()))
}
