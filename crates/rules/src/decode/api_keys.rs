//! The tiers of API keys, in the rules file and in a file of their own. The keys are secrets: no message shows them,
//! nor the tiers next to them, because the two may have been swapped.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tollgate_core::Excerpt;

use super::fields::{NameTable, Naming, TableRow, listed};
use super::names;
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::YamlNode;

/// The longest API key. It is the name of a field in YAML, which has at most this many bytes.
const MAX_KEY_BYTES: usize = 1_024;

/// The most tiers that a remedy lists.
const MAX_LISTED: usize = 8;

const API_KEYS: NameTable = NameTable {
    name: "the table of API keys",
    item: "API key",
    remedy: "give each key its tier on a line of its own, indented under `api_keys`",
    naming: Naming::Hidden,
};

/// The table of API keys, from one file or two.
pub(crate) struct ApiKeys {
    rows: HashMap<Box<str>, KeyTier>,
    /// The tiers that rules name, if there are rules.
    named: Option<HashSet<Box<str>>>,
    /// The tiers that no rule names, of which the file was warned.
    unnamed: HashSet<Box<str>>,
}

/// A key's tier, and its position.
struct KeyTier {
    name: Box<str>,
    file: Arc<str>,
    line: u32,
}

/// The file that has further keys.
pub(crate) struct KeysFile {
    pub(crate) path: PathBuf,
    pub(crate) at: Position,
}

impl ApiKeys {
    pub(super) fn new(named: Option<HashSet<Box<str>>>) -> ApiKeys {
        ApiKeys { rows: HashMap::new(), named, unnamed: HashSet::new() }
    }

    /// Adds the keys of a table.
    pub(crate) fn read(&mut self, node: &YamlNode<'_>, report: &mut Report) {
        for TableRow { name, at, value } in API_KEYS.rows(node, report).unwrap_or_default() {
            if name.is_empty() || name.len() > MAX_KEY_BYTES {
                let remedy = format!("use 1 to {MAX_KEY_BYTES} bytes");
                report.error(at, "an API key that is empty or too long", remedy);
                continue;
            }
            let Some(tier) = names::TIER_OF_KEY.read(value, "an API key's tier", report) else {
                continue;
            };
            self.warn_if_unnamed(tier, value.at, report);
            match self.rows.entry(name.into()) {
                Entry::Vacant(entry) => {
                    let file = report.file().clone();
                    entry.insert(KeyTier { name: tier.into(), file, line: at.line });
                }
                Entry::Occupied(entry) => {
                    let KeyTier { file, line, .. } = entry.get();
                    let message = format!("this API key is defined twice (first at {file}:{line})");
                    report.error(at, message, "keep one of them");
                }
            }
        }
    }

    fn warn_if_unnamed(&mut self, tier: &str, at: Position, report: &mut Report) {
        let Some(named) = &self.named else { return };
        if named.contains(tier) || !self.unnamed.insert(tier.into()) {
            return;
        }
        let mut names: Vec<&str> = named.iter().map(|name| &**name).collect();
        names.sort_unstable();
        names.truncate(MAX_LISTED);
        let remedy = match listed(&names) {
            none if none.is_empty() => "choose a limit by tier in a rule".into(),
            names => format!("name it in a rule's `tiers`, or use one that is, like {names}"),
        };
        report.warn(at, "a tier that no rule names", remedy);
    }

    pub(crate) fn into_tiers(self) -> HashMap<Box<str>, Box<str>> {
        self.rows.into_iter().map(|(key, tier)| (key, tier.name)).collect()
    }
}

impl KeysFile {
    pub(super) fn read(node: &YamlNode<'_>, report: &mut Report) -> Option<KeysFile> {
        let remedy = "name a file, like `keys.yaml`";
        let text = report.text(node, "`api_keys_file`", remedy)?;
        if text.is_empty() {
            report.error(node.at, "`api_keys_file` is empty", remedy);
            return None;
        }
        Some(KeysFile { path: text.into(), at: node.at })
    }

    pub(crate) fn unreadable(&self, error: &io::Error, remedy: &str, report: &mut Report) {
        let name = Excerpt::of(&self.path.to_string_lossy());
        report.error(self.at, format!("`{name}` cannot be read: {error}"), remedy);
    }
}

/// Reports a file of API keys that is empty.
pub(crate) fn nothing(at: Position, report: &mut Report) {
    report.error(at, "no API keys", "give each key its tier, or write `{}` if there are none");
}
