//! The merged descriptor trees of a domain.

use std::collections::{BTreeSet, HashMap};

use tollgate::rules::reading::Report;
use tollgate_core::Excerpt;

use super::read::{ConfigDescriptor, ConfigFile, DescriptorValue};
use super::source::{ImportSource, SourcePosition};

/// The most values with a star on one level. envoyproxy/ratelimit compares every request with all of them.
const MAX_STARS: usize = 1_000;

/// The descriptors of a domain, which may come from several files.
pub(super) struct ImportedDomain {
    pub(super) name: String,
    place: SourcePosition,
    pub(super) descriptors: Vec<ConfigDescriptor>,
}

/// Adds the descriptors of a file to its domain.
pub(super) fn add(
    domains: &mut Vec<ImportedDomain>,
    root: ConfigFile,
    sources: &[ImportSource],
    reports: &mut [Report],
) {
    let ConfigFile { domain: name, place, mut descriptors } = root;
    for descriptor in &descriptors {
        check_level(&descriptor.below, sources, reports);
    }
    let Some(domain) = domains.iter_mut().find(|domain| domain.name == name) else {
        check_siblings(&descriptors, sources, reports);
        domains.push(ImportedDomain { name, place, descriptors });
        return;
    };
    let first = name_of(domain.place, sources);
    let message = format!(
        "domain `{}` is also in {}: the two are merged",
        Excerpt::of(&name),
        Excerpt::of(first)
    );
    place.warn(
        reports,
        message,
        "MERGE_DOMAIN_CONFIG=true does the same there; if they are separate, rename one",
    );
    domain.descriptors.append(&mut descriptors);
    check_siblings(&domain.descriptors, sources, reports);
}

/// Checks a level and the levels below it, which are few.
fn check_level(level: &[ConfigDescriptor], sources: &[ImportSource], reports: &mut [Report]) {
    check_siblings(level, sources, reports);
    for descriptor in level {
        check_level(&descriptor.below, sources, reports);
    }
}

/// Reports siblings that cannot be combined, and siblings that rules treat differently.
fn check_siblings(level: &[ConfigDescriptor], sources: &[ImportSource], reports: &mut [Report]) {
    check_twice(level, sources, reports);
    let stars = |value: &DescriptorValue| {
        matches!(value, DescriptorValue::Prefix(_) | DescriptorValue::Glob(_))
    };
    if let Some(over) = level.iter().filter(|it| stars(&it.value)).nth(MAX_STARS) {
        let message = format!("more than {MAX_STARS} values with a star on one level");
        over.place.error(reports, message, "use fewer, or keys without a value");
    }
    let keys: BTreeSet<&str> = level.iter().map(|it| &*it.key).collect();
    for descriptor in level {
        warn_of_taken(descriptor, &keys, reports);
    }
}

/// Reports descriptors that are the same key to envoyproxy/ratelimit, which joins a key and its value by `_`.
fn check_twice(level: &[ConfigDescriptor], sources: &[ImportSource], reports: &mut [Report]) {
    let mut first: HashMap<String, SourcePosition> = HashMap::with_capacity(level.len());
    for descriptor in level {
        let joined = joined(descriptor);
        let Some(before) = first.get(&joined) else {
            first.insert(joined, descriptor.place);
            continue;
        };
        let first = match before.file == descriptor.place.file {
            true => format!("at line {}", before.at.line),
            false => format!("in {}:{}", Excerpt::of(name_of(*before, sources)), before.at.line),
        };
        let message =
            format!("descriptor `{}` is defined twice (first {first})", Excerpt::of(&joined));
        descriptor.place.error(reports, message, "merge the two into one");
    }
}

fn name_of(place: SourcePosition, sources: &[ImportSource]) -> &str {
    sources.get(place.file).map_or("", |source| &source.name)
}

fn joined(ConfigDescriptor { key, value, .. }: &ConfigDescriptor) -> String {
    match value {
        DescriptorValue::Any => key.clone(),
        DescriptorValue::Exact(value) | DescriptorValue::Glob(value) => format!("{key}_{value}"),
        DescriptorValue::Prefix(start) => format!("{key}_{start}*"),
    }
}

/// The longest key, in bytes.
const MAX_KEY_BYTES: usize = 512;

/// Warns of an entry of another key that envoyproxy/ratelimit takes for this one: `user_id` with the value
/// `5` for `user` with the value `id_5`.
fn warn_of_taken(descriptor: &ConfigDescriptor, keys: &BTreeSet<&str>, reports: &mut [Report]) {
    let ConfigDescriptor { key, value, .. } = descriptor;
    let start = match value {
        DescriptorValue::Any => return,
        DescriptorValue::Exact(text) | DescriptorValue::Prefix(text) => text,
        DescriptorValue::Glob(text) => text.split('*').next().unwrap_or_default(),
    };
    let joined = format!("{key}_{start}");
    let ends = joined.match_indices('_').map(|(end, _)| end).filter(|end| *end > key.len());
    let mut others = ends.take_while(|end| *end <= MAX_KEY_BYTES).map(|end| &joined[..end]);
    let longer = match value {
        DescriptorValue::Exact(_) => None,
        // With a `_` after it, the other key begins with the text before the star.
        _ => keys.range(&*joined..).next().copied().filter(|other| other.starts_with(&joined)),
    };
    if let Some(other) = others.find(|other| keys.contains(other)).or(longer) {
        let message = format!(
            "envoyproxy/ratelimit joins a key and its value by `_`, and matches some entries `{}` with \
             this one; rules do not",
            Excerpt::of(other)
        );
        descriptor.place.warn(reports, message, "nothing to do, unless you rely on such matches");
    }
}
