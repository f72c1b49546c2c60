//! What is different for single keys. Their values may be secrets: no message shows them.

use std::collections::HashMap;

use tollgate_core::Excerpt;

use super::fields::{Fields, Mapping, Naming, Row, Table};
use super::limits::Limits;
use crate::rules::config::{KeyPart, Override};
use crate::rules::problem::{Position, Report};
use crate::rules::yaml::Node;

const REMEDY: &str =
    "write each after a dash, like `- { key: { api_key: k_partner }, limit: partner }`";

const OVERRIDE: Mapping =
    Mapping { name: "an override", fields: &["key", "limit"], remedy: REMEDY };

const KEY_REMEDY: &str =
    "give the attributes that make the key and what they are, like `key: { api_key: k_partner }`";

const KEY: Table =
    Table { name: "`key`", item: "attribute", remedy: KEY_REMEDY, naming: Naming::Hidden };

const ONE_OF_EACH: &str = "use one attribute of each part of the rule's key";

/// The attributes that make a key, and what they are.
type Key = Vec<(Box<str>, Box<str>)>;

/// Reads the overrides of a rule whose key is `parts`, if that could be read.
pub(super) fn read(
    node: &Node<'_>,
    parts: Option<&[KeyPart]>,
    limits: &mut Limits<'_>,
    report: &mut Report,
) -> Option<Vec<Override>> {
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
    let mut first: HashMap<Key, Position> = HashMap::new();
    let mut overrides = Vec::with_capacity(items.len());
    for item in items {
        let Some(one) = read_one(item, parts, limits, report) else { continue };
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

fn read_one(
    node: &Node<'_>,
    parts: Option<&[KeyPart]>,
    limits: &mut Limits<'_>,
    report: &mut Report,
) -> Option<Override> {
    let fields = Fields::read(node, &OVERRIDE, report)?;
    let key = fields.require("key", KEY_REMEDY, report);
    let key = key.and_then(|node| read_key(node, parts, report));
    let limit = fields.require("limit", "name a limit, or use `allow` or `block`", report);
    let spend = limit.and_then(|node| limits.spend(node, "`limit`", report));
    Some(Override { key: key?, spend: spend? })
}

/// One attribute of each part, in the parts' order.
fn read_key(node: &Node<'_>, parts: Option<&[KeyPart]>, report: &mut Report) -> Option<Key> {
    let rows = KEY.rows(node, report)?;
    let mut values: Vec<(&str, Option<&str>)> = Vec::with_capacity(rows.len());
    for Row { name, at, value } in &rows {
        let is_known = |parts: &[KeyPart]| {
            parts.iter().any(|part| part.first_of.iter().any(|known| **known == **name))
        };
        if parts.is_some_and(|parts| !is_known(parts)) {
            // Not shown: the value may stand in its place.
            report.error(*at, "the rule's key has no such attribute", ONE_OF_EACH);
            return None;
        }
        values.push((name, report.text(value, "an attribute's value", "use a text")));
    }
    let mut key = Vec::new();
    for part in parts? {
        let is_part = |(name, _): &&(&str, Option<&str>)| {
            part.first_of.iter().any(|attribute| **attribute == **name)
        };
        let mut given = values.iter().filter(is_part);
        match (given.next(), given.next()) {
            (Some((name, value)), None) => key.push(((*name).into(), (*value)?.into())),
            (None, _) => {
                let names: Vec<&str> = part.first_of.iter().map(|name| &**name).collect();
                let message = format!("{} is missing in the key", super::fields::listed(&names));
                report.error(node.at, message, ONE_OF_EACH);
                return None;
            }
            (Some((one, _)), Some((other, _))) => {
                let (one, other) = (Excerpt::of(one), Excerpt::of(other));
                let message = format!("`{one}` and `{other}` are the same part of the key");
                report.error(node.at, message, "a request's key has one of them; keep that");
                return None;
            }
        }
    }
    Some(key)
}
