//! The overrides of single keys. Their values may be secrets: no message shows them.

use std::collections::HashMap;

use tollgate_core::Excerpt;

use super::fields::{Mapping, MappingFields, NameTable, Naming, TableRow};
use super::limits::LimitsTable;
use super::networks::{NetworkSets, NetworkText};
use crate::config::{KeyPart, KeyValue, Override};
use crate::networks::UNKNOWN_ADDRESS;
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::{NodeKind, YamlNode};

const REMEDY: &str =
    "write each after a dash, like `- { key: { api_key: k_partner }, limit: partner }`";

const OVERRIDE: Mapping =
    Mapping { name: "an override", fields: &["key", "limit"], remedy: REMEDY };

const KEY_REMEDY: &str =
    "give the attributes that make the key and what they are, like `key: { api_key: k_partner }`";

const KEY: NameTable =
    NameTable { name: "`key`", item: "attribute", remedy: KEY_REMEDY, naming: Naming::Hidden };

const ONE_OF_EACH: &str = "use one attribute of each part of the rule's key";

const VALUE: Mapping = Mapping {
    name: "an attribute's value",
    fields: &["network", "networks"],
    remedy: "use a text, or one of `{ network: … }` and `{ networks: … }`",
};

/// The attributes that make a key, and their values.
type OverrideKey = Vec<(Box<str>, KeyValue)>;

/// The context of a rule's overrides.
pub(super) struct OverridesReader<'r, 'n> {
    /// The rule's key, if that could be read.
    pub(super) parts: Option<&'r [KeyPart]>,
    pub(super) limits: &'r mut LimitsTable<'n>,
    pub(super) networks: &'r mut NetworkSets<'n>,
}

/// Reads the overrides of a rule.
pub(super) fn read(
    node: &YamlNode<'_>,
    mut reading: OverridesReader<'_, '_>,
    report: &mut Report,
) -> Option<Vec<Override>> {
    let parts = reading.parts;
    let items = report.list(node, "`overrides`", REMEDY)?;
    if parts.is_some_and(<[KeyPart]>::is_empty) && !items.is_empty() {
        let message = "overrides of a rule that has one key for all requests";
        report.error(
            node.at,
            message,
            "remove them, or give the rule a key, like `key: [api_key]`",
        );
        return None;
    }
    let mut first: HashMap<OverrideKey, Position> = HashMap::new();
    let mut overrides = Vec::with_capacity(items.len());
    for item in items {
        let Some(one) = reading.one(item, report) else { continue };
        match first.get(&one.key) {
            Some(before) => {
                let message = format!("an override of the same key as at line {}", before.line);
                report.error(item.at, message, "keep one of them");
            }
            None => {
                first.insert(one.key.clone(), item.at);
                overrides.push(one);
            }
        }
    }
    Some(overrides)
}

impl OverridesReader<'_, '_> {
    fn one(&mut self, node: &YamlNode<'_>, report: &mut Report) -> Option<Override> {
        let fields = MappingFields::read(node, &OVERRIDE, report)?;
        let key = fields.require("key", KEY_REMEDY, report);
        let key = key.and_then(|node| self.key(node, report));
        let limit = fields.require("limit", "name a limit, or use `allow` or `block`", report);
        let spend = limit.and_then(|node| self.limits.spend(node, "`limit`", report));
        Some(Override { key: key?, spend: spend? })
    }

    /// Reads one attribute for each part of the rule's key, in the order of the parts.
    fn key(&mut self, node: &YamlNode<'_>, report: &mut Report) -> Option<OverrideKey> {
        let rows = KEY.rows(node, report)?;
        let mut values: Vec<(&str, Option<KeyValue>)> = Vec::with_capacity(rows.len());
        for TableRow { name, at, value } in &rows {
            let is_known = |parts: &[KeyPart]| {
                parts.iter().any(|part| part.first_of.iter().any(|known| **known == **name))
            };
            if self.parts.is_some_and(|parts| !is_known(parts)) {
                // The name is not shown: a secret value may have been written in its place.
                report.error(*at, "the rule's key has no such attribute", ONE_OF_EACH);
                return None;
            }
            values.push((name, self.value(name, value, report)));
        }
        let mut key = Vec::new();
        for part in self.parts? {
            key.push(one_of(part, &values, node.at, report)?);
        }
        if key.iter().filter(|(_, value)| matches!(value, KeyValue::In(_))).count() > 1 {
            let remedy = "keep one of them, and give the other attributes as text";
            report.error(node.at, "an override's key has more than one network", remedy);
            return None;
        }
        Some(key)
    }

    /// Reads the value of one attribute: a text, a network or a set of networks.
    fn value(&mut self, name: &str, node: &YamlNode<'_>, report: &mut Report) -> Option<KeyValue> {
        let fields = match &node.kind {
            NodeKind::Map(_) => MappingFields::read(node, &VALUE, report)?,
            _ => {
                let text = report.text(node, VALUE.name, "use a text")?;
                return match name {
                    "ip" if text != UNKNOWN_ADDRESS => self.network(text, node.at, report),
                    _ => Some(KeyValue::Text(text.into())),
                };
            }
        };
        match (fields.get("network"), fields.get("networks")) {
            (Some(node), None) => {
                let text = report.text(node, "`network`", "use a text")?;
                self.network(text, node.at, report)
            }
            (None, Some(node)) => self.networks.named(node, report).map(KeyValue::In),
            (Some(_), Some(_)) => {
                report.error(node.at, "`network` beside `networks`", "keep one of them");
                None
            }
            (None, None) => {
                if fields.is_empty_mapping() {
                    report.error(node.at, "an attribute's value is empty", VALUE.remedy);
                }
                None
            }
        }
    }

    fn network(&self, text: &str, at: Position, report: &mut Report) -> Option<KeyValue> {
        let value = NetworkText { text, at, naming: Naming::Hidden };
        self.networks.network(&value, report).map(KeyValue::In)
    }
}

/// Returns the one value for a part of the rule's key.
fn one_of(
    part: &KeyPart,
    values: &[(&str, Option<KeyValue>)],
    at: Position,
    report: &mut Report,
) -> Option<(Box<str>, KeyValue)> {
    let is_part = |(name, _): &&(&str, Option<KeyValue>)| {
        part.first_of.iter().any(|attribute| **attribute == **name)
    };
    let mut given = values.iter().filter(is_part);
    match (given.next(), given.next()) {
        (Some((name, value)), None) => Some(((*name).into(), value.clone()?)),
        (None, _) => {
            let names: Vec<&str> = part.first_of.iter().map(|name| &**name).collect();
            let message = format!("{} is missing in the key", super::fields::listed(&names));
            report.error(at, message, ONE_OF_EACH);
            None
        }
        (Some((one, _)), Some((other, _))) => {
            let (one, other) = (Excerpt::of(one), Excerpt::of(other));
            let message = format!("`{one}` and `{other}` are the same part of the key");
            report.error(at, message, "keep one of them: the key of a request has only one");
            None
        }
    }
}
