//! Mappings: those whose fields are known, and tables of names that the file chooses.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use tollgate_core::Excerpt;

use crate::nearest::nearest;
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::{Kind, Node};

/// The longest unknown field whose name messages show.
const MAX_PLAIN_CHARS: usize = 32;

/// A mapping whose fields are known.
pub struct Mapping {
    /// What messages call it.
    pub name: &'static str,
    /// Their names.
    pub fields: &'static [&'static str],
    /// What to write if it is something else.
    pub remedy: &'static str,
}

/// A mapping of names that the file chooses.
pub(super) struct Table {
    /// What messages call it.
    pub(super) name: &'static str,
    /// What it is a table of: `limit`.
    pub(super) item: &'static str,
    /// What to write if it is something else.
    pub(super) remedy: &'static str,
    pub(super) naming: Naming,
}

/// Whether messages show the names in a mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Naming {
    Shown,
    /// They are secrets.
    Hidden,
}

/// The fields of a mapping, each one that is known, and once.
pub struct Fields<'n, 't> {
    /// Where the mapping begins.
    pub at: Position,
    known: Vec<(&'static str, &'n Node<'t>)>,
    /// What someone meant who wrote another name: it is not missing.
    meant: Vec<&'static str>,
    /// A field was refused whose name says nothing: nothing is missing for certain.
    has_refused: bool,
    is_empty: bool,
}

/// A row of a table.
pub(super) struct Row<'n, 't> {
    pub(super) name: &'n str,
    pub(super) at: Position,
    pub(super) value: &'n Node<'t>,
}

impl<'n, 't> Fields<'n, 't> {
    /// Those of a node; `None` if it is no mapping. What is wrong is reported.
    pub fn read(
        node: &'n Node<'t>,
        mapping: &Mapping,
        report: &mut Report,
    ) -> Option<Fields<'n, 't>> {
        let Kind::Map(entries) = &node.kind else {
            report.unfit(node, mapping.name, "a mapping", mapping.remedy);
            return None;
        };
        let mut seen: Vec<(&'static str, Position)> = Vec::new();
        let mut known = Vec::new();
        let mut meant = Vec::new();
        let mut has_refused = false;
        for (key, value) in entries {
            let Kind::Text { text, .. } = &key.kind else {
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
        Some(Fields { at: node.at, known, meant, has_refused, is_empty: entries.is_empty() })
    }

    /// A field, if it is there.
    pub fn get(&self, name: &str) -> Option<&'n Node<'t>> {
        self.known.iter().find(|(field, _)| *field == name).map(|(_, node)| *node)
    }

    /// Those that are there.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.known.iter().map(|(name, _)| *name)
    }

    /// There is nothing in the mapping, not even what is unknown.
    pub(super) fn is_empty_mapping(&self) -> bool {
        self.is_empty
    }

    /// A field that has to be there.
    pub fn require(&self, name: &str, remedy: &str, report: &mut Report) -> Option<&'n Node<'t>> {
        let found = self.get(name);
        if found.is_none() && !self.may_have(name) {
            report.error(self.at, format!("`{name}` is missing"), remedy);
        }
        found
    }

    /// What a field says that need not be there; `otherwise` if it is not.
    pub(super) fn or<T>(
        &self,
        name: &str,
        otherwise: T,
        read: impl FnOnce(&'n Node<'t>) -> Option<T>,
    ) -> Option<T> {
        self.get(name).map_or(Some(otherwise), read)
    }

    /// A field is not there, and one that was reported may be meant for it.
    pub(super) fn may_have(&self, name: &str) -> bool {
        self.has_refused || self.meant.contains(&name)
    }

    /// What is in a mapping, as it stands there.
    pub(super) fn of(node: &'n Node<'t>) -> impl Iterator<Item = (&'n str, &'n Node<'t>)> {
        let entries = match &node.kind {
            Kind::Map(entries) => entries.as_slice(),
            _ => &[],
        };
        entries.iter().filter_map(|(key, value)| match &key.kind {
            Kind::Text { text, .. } => Some((&**text, value)),
            _ => None,
        })
    }
}

/// Reports an unknown field; returns the field that was probably meant.
///
/// The message shows a name that looks like a field's or is nearly one. Any other name may be an API key
/// that is indented wrongly, and stays hidden.
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

/// Whether a name has the form of a field's name: up to 32 lower-case letters and underscores.
fn is_plain(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    (1..=MAX_PLAIN_CHARS).contains(&name.len()) && name.bytes().all(fits)
}

/// The field at the beginning of `capacity:60`, which is one text to YAML.
pub(super) fn unspaced(text: &str, fields: &[&'static str]) -> Option<&'static str> {
    let (name, _) = text.split_once(':')?;
    fields.iter().copied().find(|field| *field == name)
}

/// `a, b or c`, each in backticks.
pub(super) fn listed(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

/// Where names stand in the rows of a table.
enum Seen<'n> {
    /// In most tables they are few, and quicker compared than hashed.
    Few,
    Many(HashMap<&'n str, usize>),
}

impl<'n> Seen<'n> {
    const FEW: usize = 8;

    fn of(entries: usize) -> Seen<'n> {
        match entries {
            0..=Seen::FEW => Seen::Few,
            _ => Seen::Many(HashMap::with_capacity(entries)),
        }
    }

    /// The row that has the name; if none has, the next one will.
    fn place_of(&mut self, name: &'n str, rows: &[Row<'n, '_>]) -> Option<usize> {
        match self {
            Seen::Few => rows.iter().position(|row| row.name == name),
            Seen::Many(places) => match places.entry(name) {
                Entry::Occupied(entry) => Some(*entry.get()),
                Entry::Vacant(entry) => {
                    entry.insert(rows.len());
                    None
                }
            },
        }
    }
}

impl Table {
    /// The rows, without those whose name has come before.
    pub(super) fn rows<'n, 't>(
        &self,
        node: &'n Node<'t>,
        report: &mut Report,
    ) -> Option<Vec<Row<'n, 't>>> {
        let Kind::Map(entries) = &node.kind else {
            report.unfit(node, self.name, "a mapping", self.remedy);
            return None;
        };
        let mut seen = Seen::of(entries.len());
        let mut rows: Vec<Row<'_, '_>> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let Kind::Text { text, .. } = &key.kind else { continue };
            match seen.place_of(text, &rows) {
                None => rows.push(Row { name: text, at: key.at, value }),
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
