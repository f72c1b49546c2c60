//! Limits and rules as YAML.

use std::collections::HashSet;
use std::fmt::Write;
use std::net::IpAddr;

use tollgate::rules::Config;

use super::domain::ImportedDomain;
use super::read::Quota;
use super::rules::{ImportedRule, KEYS};
use super::siblings::{MatchingValues, ValuePattern};
use super::source::ImportSource;

/// A longer list is written with a line for each item.
const MAX_LINE_CHARS: usize = 100;

const HEAD: &str = "\
# Made by `tollgate import envoy-ratelimit`. Each rule is for descriptors with exactly its keys
# (`descriptor_keys`), and with the values that no other rule is more specific for (`none_of`).
";

/// Writes the file; `None` if it is too large.
pub(super) fn yaml(
    domains: &[ImportedDomain],
    rules: &[ImportedRule<'_>],
    sources: &[ImportSource],
) -> Option<String> {
    let mut yaml = HEAD.to_owned();
    // A single domain is written once, instead of in every rule.
    let shared = match domains {
        [domain] if !rules.is_empty() => Some(domain),
        _ => None,
    };
    if let Some(domain) = shared {
        line(&mut yaml, 0, &format!("defaults: {{ domain: {} }}", text(&domain.name)));
    }
    limits(&mut yaml, rules);
    line(&mut yaml, 0, if rules.is_empty() { "rules: []" } else { "rules:" });
    for rule in rules {
        let domain = domains.get(rule.domain).filter(|_| shared.is_none());
        one(&mut yaml, rule, domain.map(|domain| &*domain.name), sources);
        if yaml.len() > Config::MAX_BYTES {
            return None;
        }
    }
    Some(yaml)
}

fn line(yaml: &mut String, indent: usize, text: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(yaml, "{:indent$}{text}", "");
}

/// Writes each limit once, however many rules use it.
fn limits(yaml: &mut String, rules: &[ImportedRule<'_>]) {
    let mut seen: HashSet<Quota> = HashSet::new();
    for rule in rules {
        let quota = rule.limit.quota;
        let Quota::Requests { requests, units, unit } = quota else { continue };
        if !seen.insert(quota) {
            continue;
        }
        if seen.len() == 1 {
            line(yaml, 0, "limits:");
        }
        let (count, of_ours) = unit.length();
        let window = count * u64::from(units);
        let limit = format!("limit: {requests}, window: {window}{of_ours}");
        line(yaml, 2, &format!("{}: {{ algorithm: fixed-window, {limit} }}", spent(quota)));
    }
}

/// Returns the name of the limit that a rule spends: `10-per-minute`, `20-per-5-minutes`.
fn spent(quota: Quota) -> String {
    match quota {
        Quota::Unlimited => "allow".into(),
        Quota::Nothing => "block".into(),
        Quota::Requests { requests, units: 1, unit } => format!("{requests}-per-{}", unit.name()),
        Quota::Requests { requests, units, unit } => {
            format!("{requests}-per-{units}-{}s", unit.name())
        }
    }
}

fn one(yaml: &mut String, rule: &ImportedRule<'_>, domain: Option<&str>, sources: &[ImportSource]) {
    let file = sources.get(rule.place.file).map_or("", |source| &source.name);
    line(yaml, 2, &format!("# {}:{}", file.escape_debug(), rule.place.at.line));
    line(yaml, 2, &format!("- name: {}", text(&rule.name)));
    if let Some(domain) = domain {
        line(yaml, 4, &format!("domain: {}", text(domain)));
    }
    let keys: Vec<String> = rule.steps.iter().map(|step| escaped(&step.descriptor.key)).collect();
    let keys = format!("{KEYS}: {}", text(&keys.join(",")));
    match rule.steps.iter().all(|step| step.values.is_any()) {
        true => line(yaml, 4, &format!("when: {{ {keys} }}")),
        false => {
            line(yaml, 4, "when:");
            line(yaml, 6, &keys);
        }
    }
    for step in &rule.steps {
        condition(yaml, &text(&step.attribute), &step.values);
    }
    let key = rule.steps.iter().filter(|step| !step.descriptor.is_shared);
    list(yaml, 4, "key", key.map(|step| text(&step.attribute)).collect());
    line(yaml, 4, &format!("limit: {}", spent(rule.limit.quota)));
    if rule.limit.is_shadow {
        line(yaml, 4, "shadow: true");
    }
    if !rule.replaces.is_empty() {
        list(yaml, 4, "replaces", rule.replaces.iter().map(|name| text(name)).collect());
    }
}

/// Escapes a key for [`KEYS`], where a comma separates two keys.
fn escaped(key: &str) -> String {
    key.replace('\\', r"\\").replace(',', r"\,")
}

fn condition(yaml: &mut String, attribute: &str, values: &MatchingValues<'_>) {
    let none_of: Vec<String> =
        values.none_of.iter().map(|like| pattern(attribute, *like)).collect();
    let like = values.like.map(|like| match like {
        ValuePattern::Exact(value) => ("exact", value.to_owned()),
        ValuePattern::Prefix(start) => ("prefix", start.to_owned()),
        ValuePattern::Glob(value) => ("glob", any_text(value)),
    });
    match (like, none_of.is_empty()) {
        (None, true) => {}
        (Some(("exact", value)), _) => {
            line(yaml, 6, &format!("{attribute}: {}", self::value(attribute, "exact", &value)));
        }
        (Some((how, value)), true) => {
            line(yaml, 6, &format!("{attribute}: {{ {how}: {} }}", text(&value)));
        }
        (like, false) => {
            line(yaml, 6, &format!("{attribute}:"));
            if let Some((how, value)) = like {
                line(yaml, 8, &format!("{how}: {}", text(&value)));
            }
            list(yaml, 8, "none_of", none_of);
        }
    }
}

/// Writes a value, which is compared as text. In `ip`, a plain text must be an address.
fn value(attribute: &str, how: &str, value: &str) -> String {
    match attribute {
        "ip" if value.parse::<IpAddr>().is_err() => format!("{{ {how}: {} }}", text(value)),
        _ => text(value),
    }
}

fn pattern(attribute: &str, like: ValuePattern<'_>) -> String {
    match like {
        ValuePattern::Exact(exact) => value(attribute, "exact", exact),
        ValuePattern::Prefix(start) => format!("{{ prefix: {} }}", text(start)),
        ValuePattern::Glob(glob) => value(attribute, "glob", &any_text(glob)),
    }
}

/// Writes a glob whose stars match any text: `/api**v1`.
fn any_text(value: &str) -> String {
    let parts: Vec<&str> = value.split('*').collect();
    let last = parts.len().saturating_sub(1);
    let is_kept = |(at, part): &(usize, &&str)| *at == 0 || *at == last || !part.is_empty();
    let kept: Vec<&str> = parts.iter().enumerate().filter(is_kept).map(|(_, part)| *part).collect();
    kept.join("**")
}

/// Writes a list on one line, or with a line for each item.
fn list(yaml: &mut String, indent: usize, name: &str, items: Vec<String>) {
    let inline = format!("{name}: [{}]", items.join(", "));
    if indent + inline.chars().count() <= MAX_LINE_CHARS {
        return line(yaml, indent, &inline);
    }
    line(yaml, indent, &format!("{name}:"));
    for item in items {
        line(yaml, indent + 2, &format!("- {item}"));
    }
}

/// Returns a text as YAML, in quotes if it needs them.
fn text(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_./-".contains(letter);
    let begins_plain = |letter: char| letter.is_ascii_alphanumeric() || "_./".contains(letter);
    let is_word = text.starts_with(begins_plain) && text.chars().all(is_plain);
    let is_null = text.eq_ignore_ascii_case("null");
    if is_word && !is_null && !text.starts_with("...") {
        return text.to_owned();
    }
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            _ if letter == ' ' || prints(letter) => quoted.push(letter),
            _ => {
                // Writing to a string does not fail.
                let _ = write!(quoted, "\\U{:08X}", u32::from(letter));
            }
        }
    }
    quoted.push('"');
    quoted
}

/// Whether a character prints. Others are escaped: a reader would not see them, and YAML does not allow them.
fn prints(letter: char) -> bool {
    !letter.is_whitespace() && (letter.escape_debug().len() == 1 || letter == '\'')
}
