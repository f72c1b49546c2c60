//! The key of a rule.

use tollgate_core::Excerpt;

use super::fields::{Mapping, MappingFields};
use super::names;
use super::sources::RequestOrigin;
use crate::config::{Condition, KeyPart, Requirement};
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::{NodeKind, YamlNode};

/// The most attributes of a key, all parts together.
const MAX_ATTRIBUTES: usize = 16;

pub(super) const REMEDY: &str =
    "list the attributes it is made of, like `key: [ip]`; `key: []` is one key for all requests";

const PART: Mapping = Mapping {
    name: "a part of `key`",
    fields: &["first_of"],
    remedy: "name an attribute, or several like `{ first_of: [api_key, ip] }`",
};

pub(super) fn read(
    node: &YamlNode<'_>,
    origin: RequestOrigin<'_>,
    report: &mut Report,
) -> Option<Vec<KeyPart>> {
    let items = report.list(node, "`key`", REMEDY)?;
    let mut attributes: Vec<&str> = Vec::new();
    let mut parts = Vec::new();
    for item in items {
        let first_of = match &item.kind {
            NodeKind::Map(_) => first_of(item, report),
            _ => Some(std::slice::from_ref(item)),
        };
        let mut part = KeyPart { first_of: Vec::new() };
        for node in first_of.into_iter().flatten() {
            let Some(name) = attribute(node, origin, report) else { continue };
            if attributes.contains(&name) {
                let message = format!("attribute `{}` is in the key twice", Excerpt::of(name));
                report.error(node.at, message, "keep one of them");
            }
            attributes.push(name);
            if attributes.len() > MAX_ATTRIBUTES {
                let message = format!("a key of more than {MAX_ATTRIBUTES} attributes");
                report.error(node.at, message, "use fewer");
                return None;
            }
            part.first_of.push(name.into());
        }
        origin.sources.warn_of_key_part(&part, item.at, report);
        parts.push(part);
    }
    Some(parts)
}

fn attribute<'n>(
    node: &'n YamlNode<'_>,
    origin: RequestOrigin<'_>,
    report: &mut Report,
) -> Option<&'n str> {
    let text = report.text(node, PART.name, PART.remedy)?;
    let name = names::ATTRIBUTE.check(text, node.at, report)?;
    origin.warn_of_name(name, node.at, report);
    Some(name)
}

fn first_of<'n, 't>(node: &'n YamlNode<'t>, report: &mut Report) -> Option<&'n [YamlNode<'t>]> {
    let fields = MappingFields::read(node, &PART, report)?;
    let node = match fields.get("first_of") {
        None if !fields.is_empty_mapping() => return None,
        _ => fields.require("first_of", PART.remedy, report)?,
    };
    let items = report.list(node, "`first_of`", PART.remedy)?;
    if items.is_empty() {
        report.error(node.at, "`first_of` without attributes", PART.remedy);
        return None;
    }
    Some(items)
}

/// Reports a part of the key that `when` requires to be absent: the rule would never apply.
pub(super) fn check_presence(
    key: &[KeyPart],
    when: &[Condition],
    at: Position,
    report: &mut Report,
) {
    let is_absent = |attribute: &str| {
        when.iter().any(|condition| {
            *condition.attribute == *attribute && condition.wanted == Requirement::Absent
        })
    };
    for part in key {
        if let Some(first) = part.first_of.first()
            && part.first_of.iter().all(|attribute| is_absent(attribute))
        {
            let name = Excerpt::of(first);
            let message = format!("the key needs `{name}`, and `when` requires its absence");
            report.error(at, message, "the rule would never apply; change one of them");
        }
    }
}
