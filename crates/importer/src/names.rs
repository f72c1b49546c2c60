//! The names of rules.

use std::collections::HashMap;

use super::read::{ConfigDescriptor, DescriptorValue};

const MAX_NAME_CHARS: usize = 64;

/// Leaves room for a number at the end.
const MAX_BASE_CHARS: usize = MAX_NAME_CHARS - 8;

/// The names of a domain, each used by one rule.
#[derive(Default)]
pub(super) struct RuleNames {
    /// Each name in use, with the last number that was tried after it.
    taken: HashMap<String, u32>,
}

impl RuleNames {
    /// Returns the name, or the next free one: `users`, `users-2`.
    pub(super) fn unique(&mut self, wanted: &str) -> String {
        let fitting = fitting(wanted);
        let base = if fitting.is_empty() { "rule" } else { &*fitting };
        let base: String = base.chars().take(MAX_BASE_CHARS).collect();
        let mut name = base.clone();
        while self.taken.contains_key(&name) {
            let asked = self.taken.entry(base.clone()).or_default();
            *asked = asked.saturating_add(1);
            name = format!("{base}-{asked}");
        }
        self.taken.insert(name.clone(), 1);
        name
    }
}

/// Returns the name in envoyproxy/ratelimit's statistics: `message_type_marketing.to_number`.
pub(super) fn of_path<'t>(path: impl Iterator<Item = &'t ConfigDescriptor>) -> String {
    let steps = path.map(|ConfigDescriptor { key, value, .. }| {
        let value = match value {
            DescriptorValue::Any => "",
            DescriptorValue::Exact(value)
            | DescriptorValue::Prefix(value)
            | DescriptorValue::Glob(value) => value,
        };
        let parts = [fitting(key), fitting(value)];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("_")
    });
    steps.collect::<Vec<_>>().join(".")
}

/// Returns a name of letters, digits, `-`, `_` and `.`, with a `-` for every run of other characters.
fn fitting(text: &str) -> String {
    let is_fit = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let parts = text.split(|letter| !is_fit(letter)).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-")
}
