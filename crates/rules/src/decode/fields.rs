//! Mappings with known fields, and tables of names that the file chooses.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use tollgate_core::Excerpt;

use crate::nearest::nearest;
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::{NodeKind, YamlNode};

/// The longest unknown field whose name messages show.
const MAX_PLAIN_CHARS: usize = 32;

/// A mapping whose fields are known.
pub struct Mapping {
    /// The mapping's name in messages.
    pub name: &'static str,
    /// The names of the fields.
    pub fields: &'static [&'static str],
    /// The remedy if the node is not a mapping.
    pub remedy: &'static str,
}

/// A mapping of names that the file chooses.
pub(super) struct NameTable {
    /// The table's name in messages.
    pub(super) name: &'static str,
    /// The kind of its items: `limit`.
    pub(super) item: &'static str,
    /// The remedy if the node is not a mapping.
    pub(super) remedy: &'static str,
    pub(super) naming: Naming,
}

/// Whether messages show the names in a mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Naming {
    Shown,
    /// The names are secrets.
    Hidden,
}

/// The known fields of a mapping, each once.
pub struct MappingFields<'n, 't> {
    /// Where the mapping begins.
    pub at: Position,
    known: Vec<(&'static str, &'n YamlNode<'t>)>,
    /// The known fields that unknown names probably stand for. They do not count as missing.
    meant: Vec<&'static str>,
    /// Whether a field was refused because its name cannot be used. It may stand for any of the known fields.
    has_refused: bool,
    is_empty: bool,
}

/// A row of a table.
pub(super) struct TableRow<'n, 't> {
    pub(super) name: &'n str,
    pub(super) at: Position,
    pub(super) value: &'n YamlNode<'t>,
}

impl<'n, 't> MappingFields<'n, 't> {
    /// Reads the fields of a node; `None` if it is not a mapping. Problems are reported.
    pub fn read(
        node: &'n YamlNode<'t>,
        mapping: &Mapping,
        report: &mut Report,
    ) -> Option<MappingFields<'n, 't>> {
        let NodeKind::Map(entries) = &node.kind else {
            report.unfit(node, mapping.name, "a mapping", mapping.remedy);
            return None;
        };
        let mut seen: Vec<(&'static str, Position)> = Vec::new();
        let mut known = Vec::new();
        let mut meant = Vec::new();
        let mut has_refused = false;
        for (key, value) in entries {
            let NodeKind::Text { text, .. } = &key.kind else {
                has_refused = true;
                continue;
            };
            let Some(&name) = mapping.fields.iter().find(|name| ***name == **text) else {
                meant.extend(unknown_field(text, key.at, mapping, report));
                continue;
            };
            match seen.iter().find(|(field, _)| *field == name) {
                Some((_, first)) => {
                    let message = format!("`{name}` is given twice (first at line {})", first.line);
                    report.error(key.at, message, "keep one of them");
                }
                None => {
                    seen.push((name, key.at));
                    known.push((name, value));
                }
            }
        }
        Some(MappingFields { at: node.at, known, meant, has_refused, is_empty: entries.is_empty() })
    }

    /// Returns a field, if it is present.
    pub fn get(&self, name: &str) -> Option<&'n YamlNode<'t>> {
        self.known.iter().find(|(field, _)| *field == name).map(|(_, node)| *node)
    }

    /// Returns the names of the fields that are present.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.known.iter().map(|(name, _)| *name)
    }

    /// Returns whether the mapping is empty, without even unknown fields.
    pub(super) fn is_empty_mapping(&self) -> bool {
        self.is_empty
    }

    /// Returns a required field; reports it if it is missing.
    pub fn require(
        &self,
        name: &str,
        remedy: &str,
        report: &mut Report,
    ) -> Option<&'n YamlNode<'t>> {
        let found = self.get(name);
        if found.is_none() && !self.may_have(name) {
            report.error(self.at, format!("`{name}` is missing"), remedy);
        }
        found
    }

    /// Reads an optional field; returns `otherwise` if it is missing.
    pub(super) fn or<T>(
        &self,
        name: &str,
        otherwise: T,
        read: impl FnOnce(&'n YamlNode<'t>) -> Option<T>,
    ) -> Option<T> {
        self.get(name).map_or(Some(otherwise), read)
    }

    /// Returns whether a field that was reported may have been meant to be this one.
    pub(super) fn may_have(&self, name: &str) -> bool {
        self.has_refused || self.meant.contains(&name)
    }

    /// Returns the entries of a mapping, unchecked.
    pub(super) fn of(node: &'n YamlNode<'t>) -> impl Iterator<Item = (&'n str, &'n YamlNode<'t>)> {
        let entries = match &node.kind {
            NodeKind::Map(entries) => entries.as_slice(),
            _ => &[],
        };
        entries.iter().filter_map(|(key, value)| match &key.kind {
            NodeKind::Text { text, .. } => Some((&**text, value)),
            _ => None,
        })
    }
}

/// Reports an unknown field; returns the field that was probably meant.
///
/// The message shows a name that has the form of a field's name or is nearly one. Any other name may be an API key
/// with wrong indentation, and stays hidden.
fn unknown_field(
    text: &str,
    at: Position,
    mapping: &Mapping,
    report: &mut Report,
) -> Option<&'static str> {
    let Mapping { name, fields, .. } = mapping;
    if let Some(meant) = unspaced(text, fields) {
        report.no_space(at, meant);
        return Some(meant);
    }
    let meant = nearest(text, fields.iter().copied());
    let (message, remedy) = match meant {
        Some(meant) => {
            let message = format!("{name} has no field `{}`", Excerpt::of(text));
            (message, format!("did you mean `{meant}`?"))
        }
        None if is_plain(text) => {
            (format!("{name} has no field `{text}`"), format!("use {}", listed(fields)))
        }
        None => (format!("{name} has no such field"), format!("use {}", listed(fields))),
    };
    report.error(at, message, remedy);
    meant
}

/// Returns whether a name has the form of a field's name: up to 32 lower-case letters and underscores.
fn is_plain(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    (1..=MAX_PLAIN_CHARS).contains(&name.len()) && name.bytes().all(fits)
}

/// Returns the field at the beginning of `capacity:60`, which YAML reads as one text.
pub(super) fn unspaced(text: &str, fields: &[&'static str]) -> Option<&'static str> {
    let (name, _) = text.split_once(':')?;
    fields.iter().copied().find(|field| *field == name)
}

/// Returns `a, b or c`, each in backticks.
pub(super) fn listed(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

/// The rows of a table by name.
enum RowLookup<'n> {
    /// Most tables have few names, which are compared faster than they are hashed.
    Few,
    Many(HashMap<&'n str, usize>),
}

impl<'n> RowLookup<'n> {
    const FEW: usize = 8;

    fn of(entries: usize) -> RowLookup<'n> {
        match entries {
            0..=RowLookup::FEW => RowLookup::Few,
            _ => RowLookup::Many(HashMap::with_capacity(entries)),
        }
    }

    /// Returns the index of the row that has the name; otherwise notes that the next row will have it.
    fn place_of(&mut self, name: &'n str, rows: &[TableRow<'n, '_>]) -> Option<usize> {
        match self {
            RowLookup::Few => rows.iter().position(|row| row.name == name),
            RowLookup::Many(places) => match places.entry(name) {
                Entry::Occupied(entry) => Some(*entry.get()),
                Entry::Vacant(entry) => {
                    entry.insert(rows.len());
                    None
                }
            },
        }
    }
}

impl NameTable {
    /// Returns the rows. A name that occurs again is reported and left out.
    pub(super) fn rows<'n, 't>(
        &self,
        node: &'n YamlNode<'t>,
        report: &mut Report,
    ) -> Option<Vec<TableRow<'n, 't>>> {
        let NodeKind::Map(entries) = &node.kind else {
            report.unfit(node, self.name, "a mapping", self.remedy);
            return None;
        };
        let mut seen = RowLookup::of(entries.len());
        let mut rows: Vec<TableRow<'_, '_>> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let NodeKind::Text { text, .. } = &key.kind else { continue };
            match seen.place_of(text, &rows) {
                None => rows.push(TableRow { name: text, at: key.at, value }),
                Some(first) => self.twice(text, key.at, rows[first].at, report),
            }
        }
        Some(rows)
    }

    fn twice(&self, name: &str, at: Position, first: Position, report: &mut Report) {
        let subject = match self.naming {
            Naming::Shown => format!("{} `{}`", self.item, Excerpt::of(name)),
            Naming::Hidden => format!("this {}", self.item),
        };
        let message = format!("{subject} is defined twice (first at line {})", first.line);
        report.error(at, message, "keep one of them");
    }
}
