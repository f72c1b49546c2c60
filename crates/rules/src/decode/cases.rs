//! The tests in a file: requests, and the expected effects of its rules.

use std::collections::{BTreeSet, HashMap};

use tollgate_core::Excerpt;

use super::fields::{Mapping, MappingFields, NameTable, Naming, TableRow};
use super::limits::LimitsTable;
use super::names;
use crate::attributes::TrustLevel;
use crate::cases::{CaseAttribute, Expectation, FileTest};
use crate::config::RuleConfig;
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::{NodeKind, YamlNode};

/// The most tests in a file: they run each time the file is read.
const MAX_TESTS: usize = 1_000;

/// The most attributes of a test's request.
const MAX_ATTRIBUTES: usize = 256;

const REMEDY: &str = "write each test after a dash, like `- name: logins`";

const TEST: Mapping = Mapping {
    name: "a test",
    fields: &["name", "domain", "attributes", "said", "claims", "expect"],
    remedy: REMEDY,
};

const EXPECT_REMEDY: &str =
    "name each rule that applies and its limit, like `{ per-client: free }`; `{}` if none applies";

const EXPECT: NameTable =
    NameTable { name: "`expect`", item: "rule", remedy: EXPECT_REMEDY, naming: Naming::Shown };

const EXPECTED: Mapping = Mapping {
    name: "what a test expects of a rule",
    fields: &["limit", "key", "cost", "reserve"],
    remedy: "use a limit's name, or a mapping like `{ limit: free, cost: 1 }`",
};

const KEY: NameTable = NameTable {
    name: "`key`",
    item: "attribute",
    remedy: "give the attributes of the key and their values, like `key: { ip: 203.0.113.9 }`",
    naming: Naming::Hidden,
};

/// The fields of a test that make its request, and how far the attributes in each are trusted.
const PARTS: [(&str, NameTable, TrustLevel); 3] = [
    ("attributes", attributes_in("`attributes`"), TrustLevel::Known),
    ("said", attributes_in("`said`"), TrustLevel::Said),
    ("claims", attributes_in("`claims`"), TrustLevel::Claimed),
];

const fn attributes_in(name: &'static str) -> NameTable {
    let remedy = "give each attribute its value, like `{ method: POST, path: /login }`";
    NameTable { name, item: "attribute", remedy, naming: Naming::Hidden }
}

/// Reads the tests of a file, which name its rules and limits.
pub(super) struct CaseReader<'r, 'l, 'n> {
    rules: HashMap<(&'r str, &'r str), &'r RuleConfig>,
    domains: BTreeSet<&'r str>,
    default: Option<&'r str>,
    limits: &'l mut LimitsTable<'n>,
}

impl<'r, 'l, 'n> CaseReader<'r, 'l, 'n> {
    /// Returns a reader for tests of these rules, which have no errors. A test without a domain has the default one.
    pub(super) fn new(
        rules: &'r [RuleConfig],
        default: Option<&'r str>,
        limits: &'l mut LimitsTable<'n>,
    ) -> CaseReader<'r, 'l, 'n> {
        let named = |rule: &'r RuleConfig| ((&*rule.domain, &*rule.name), rule);
        let domains = rules.iter().map(|rule| &*rule.domain).collect();
        CaseReader { rules: rules.iter().map(named).collect(), domains, default, limits }
    }

    /// Reads the tests of a file.
    pub(super) fn read(&mut self, node: &YamlNode<'_>, report: &mut Report) -> Vec<FileTest> {
        let items = report.list(node, "`tests`", REMEDY).unwrap_or_default();
        if items.len() > MAX_TESTS {
            let message = format!("{} tests, above the maximum of {MAX_TESTS}", items.len());
            report.error(node.at, message, "keep the most important ones, or split the file");
            return Vec::new();
        }
        items.iter().filter_map(|item| self.case(item, report)).collect()
    }

    fn case(&mut self, node: &YamlNode<'_>, report: &mut Report) -> Option<FileTest> {
        let fields = MappingFields::read(node, &TEST, report)?;
        let name = fields.require("name", "name the test, like `name: logins`", report);
        let name = name.and_then(|node| report.text(node, "`name`", "use a text"));
        let domain = self.domain(&fields, report);
        let sent = sent(&fields, report);
        let expect = fields.require("expect", EXPECT_REMEDY, report);
        let rows = expect.and_then(|node| EXPECT.rows(node, report));
        let domain = domain?;
        let expected = rows?.into_iter().map(|row| self.expected(&row, domain, report));
        // Collected first, so that each is read even if another has errors.
        let expected: Vec<Option<Expectation>> = expected.collect();
        Some(FileTest {
            name: name?.into(),
            at: node.at,
            domain: domain.into(),
            sent: sent?,
            expected: expected.into_iter().collect::<Option<_>>()?,
        })
    }

    /// Returns the domain that a test names, or the only domain of the rules.
    fn domain(&self, fields: &MappingFields<'_, '_>, report: &mut Report) -> Option<&'r str> {
        if let Some(node) = fields.get("domain") {
            let text = names::DOMAIN.read(node, "`domain`", report)?;
            let found = self.domains.get(text).copied();
            if found.is_none() {
                let message = format!("no rule has the domain `{}`", Excerpt::of(text));
                let remedy = match report.meant(text, self.domains.iter().copied()) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None => "name a domain that rules have".into(),
                };
                report.error(node.at, message, remedy);
            }
            return found;
        }
        let only = || self.domains.first().copied().filter(|_| self.domains.len() == 1);
        let found =
            self.default.and_then(|default| self.domains.get(default).copied()).or_else(only);
        if found.is_none() {
            let remedy = "name the domain whose rules are tested, like `domain: api`";
            fields.require("domain", remedy, report);
        }
        found
    }

    fn expected(
        &mut self,
        row: &TableRow<'_, '_>,
        domain: &str,
        report: &mut Report,
    ) -> Option<Expectation> {
        let TableRow { name, at, value } = *row;
        let rule = self.rule(domain, name, at, report);
        let fields = match value.kind {
            NodeKind::Map(_) => Some(MappingFields::read(value, &EXPECTED, report)?),
            _ => None,
        };
        let field = |name| fields.as_ref().and_then(|fields| fields.get(name));
        let limit = if fields.is_none() { Some(value) } else { field("limit") };
        let spend = match limit {
            Some(node) => Some(self.limits.spend(node, "the limit that a test expects", report)?),
            None => None,
        };
        let key = match field("key") {
            Some(node) => Some(key(node, rule, report)?),
            None => None,
        };
        let cost = match field("cost") {
            Some(node) => Some(report.number(node, "`cost`")?),
            None => None,
        };
        let reserve = match field("reserve") {
            Some(node) => Some(report.number(node, "`reserve`")?),
            None => None,
        };
        Some(Expectation { rule: rule?.name.clone(), at, spend, key, cost, reserve })
    }

    fn rule(
        &self,
        domain: &str,
        name: &str,
        at: Position,
        report: &mut Report,
    ) -> Option<&'r RuleConfig> {
        let found = self.rules.get(&(domain, name)).copied();
        if found.is_none() {
            let of_domain = self.rules.keys().filter(|(own, _)| *own == domain);
            let remedy = match report.meant(name, of_domain.map(|(_, name)| *name)) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => "name a rule of the test's domain".into(),
            };
            let (domain, name) = (Excerpt::of(domain), Excerpt::of(name));
            report.error(at, format!("domain `{domain}` has no rule `{name}`"), remedy);
        }
        found
    }
}

/// Reads the attributes of a test's request.
fn sent(fields: &MappingFields<'_, '_>, report: &mut Report) -> Option<Vec<CaseAttribute>> {
    let mut sent = Vec::new();
    let mut is_whole = true;
    for (field, table, trust) in PARTS {
        let Some(node) = fields.get(field) else { continue };
        let rows = table.rows(node, report);
        is_whole &= rows.is_some();
        for TableRow { name, at, value } in rows.unwrap_or_default() {
            let name = names::ATTRIBUTE.check(name, at, report);
            let value = report.text(value, "an attribute's value", "use a text");
            is_whole &= name.is_some() && value.is_some();
            sent.extend(name.zip(value).map(|(name, value)| CaseAttribute {
                name: name.into(),
                value: value.into(),
                trust,
            }));
        }
    }
    if sent.len() > MAX_ATTRIBUTES {
        let message = format!("a test of more than {MAX_ATTRIBUTES} attributes");
        report.error(fields.at, message, "keep those that rules use");
        return None;
    }
    is_whole.then_some(sent)
}

/// Reads the attributes of a key, in the order of the rule's key.
fn key(
    node: &YamlNode<'_>,
    rule: Option<&RuleConfig>,
    report: &mut Report,
) -> Option<Vec<(Box<str>, Box<str>)>> {
    let rows = KEY.rows(node, report)?;
    let mut key = Vec::with_capacity(rows.len());
    for TableRow { name, at, value } in rows {
        let is_part = |rule: &RuleConfig| {
            rule.key.iter().position(|part| part.first_of.iter().any(|own| **own == *name))
        };
        let value = report.text(value, "an attribute's value", "use a text")?;
        match is_part(rule?) {
            Some(part) => key.push((part, name, value)),
            None => {
                // The name is not shown: a secret value may have been written in its place.
                let remedy = "use the attributes that the rule names under `key`";
                report.error(at, "the rule's key has no such attribute", remedy);
                return None;
            }
        }
    }
    key.sort_by_key(|(part, ..)| *part);
    Some(key.into_iter().map(|(_, name, value)| (name.into(), value.into())).collect())
}
