//! Domains that once had rules, and whose requests are deliberately not limited.

use std::collections::HashSet;

use tollgate_core::Excerpt;

use super::names;
use crate::config::RuleConfig;
use crate::problem::Report;
use crate::yaml::YamlNode;

/// The most domains that may be retired.
const MAX_RETIRED: usize = 1_000;

const REMEDY: &str = "list the domains, like `retired_domains: [web]`";

/// Reads the list. A domain that has `rules` cannot be retired.
pub(super) fn read(
    node: &YamlNode<'_>,
    rules: &[RuleConfig],
    report: &mut Report,
) -> HashSet<Box<str>> {
    let items = report.list(node, "`retired_domains`", REMEDY).unwrap_or_default();
    if items.len() > MAX_RETIRED {
        let message =
            format!("{} retired domains, above the maximum of {MAX_RETIRED}", items.len());
        report.error(node.at, message, "remove those that are no longer used");
        return HashSet::new();
    }
    let with_rules: HashSet<&str> = rules.iter().map(|rule| &*rule.domain).collect();
    let mut seen = HashSet::new();
    for item in items {
        let Some(name) = names::DOMAIN.read(item, "a retired domain", report) else { continue };
        let shown = Excerpt::of(name);
        if with_rules.contains(name) {
            let message = format!("domain `{shown}` is retired, and has rules");
            report.error(item.at, message, "remove it from `retired_domains`, or remove its rules");
        } else if !seen.insert(name) {
            report.error(item.at, format!("domain `{shown}` is retired twice"), "keep one of them");
        }
    }
    seen.into_iter().map(Box::from).collect()
}
