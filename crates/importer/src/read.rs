//! Reads a file of envoyproxy/ratelimit as a tree of descriptors, and reports every error in it.

use tollgate::rules::Config;
use tollgate::rules::reading::{
    ATTRIBUTE, DOMAIN, FileContents, Mapping, MappingFields, NodeKind, Position, Report, YamlNode,
};
use tollgate_core::Excerpt;

use super::source::{ImportSource, SourcePosition};
use super::unit::Unit;

/// Sixteen nested descriptors, which is as many as a rule's key can have, and a limit with `replaces` in the
/// innermost.
const MAX_DEPTH: usize = 36;

const MAX_WINDOW_SECONDS: u64 = 366 * 86_400;

const FILE: Mapping = Mapping {
    name: "the file",
    fields: &["domain", "descriptors"],
    remedy: "begin it with `domain:`, and `descriptors:` after it",
};

const DESCRIPTOR: Mapping = Mapping {
    name: "a descriptor",
    fields: &[
        "key",
        "value",
        "rate_limit",
        "descriptors",
        "shadow_mode",
        "detailed_metric",
        "value_to_metric",
        "share_threshold",
        "quota_mode",
        "metadata",
    ],
    remedy: "write each after a dash, like `- key: user`",
};

const RATE_LIMIT: Mapping = Mapping {
    name: "`rate_limit`",
    fields: &["unit", "requests_per_unit", "unlimited", "name", "replaces", "unit_multiplier"],
    remedy: "write it like `rate_limit: { unit: minute, requests_per_unit: 10 }`",
};

const REPLACES: Mapping = Mapping {
    name: "an item of `replaces`",
    fields: &["name"],
    remedy: "write each after a dash, like `- name: per-user`",
};

/// The content of a file.
pub(super) struct ConfigFile {
    pub(super) domain: String,
    pub(super) place: SourcePosition,
    pub(super) descriptors: Vec<ConfigDescriptor>,
}

/// A descriptor, and the descriptors nested in it.
pub(super) struct ConfigDescriptor {
    pub(super) place: SourcePosition,
    pub(super) key: String,
    pub(super) value: DescriptorValue,
    pub(super) limit: Option<DescriptorLimit>,
    /// Whether all values that match share one counter.
    pub(super) is_shared: bool,
    pub(super) below: Vec<ConfigDescriptor>,
}

/// The values that a descriptor applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DescriptorValue {
    /// All values that no sibling applies to.
    Any,
    Exact(String),
    /// `foo*`: values that begin with this.
    Prefix(String),
    /// A value with a star elsewhere; each star matches any text.
    Glob(String),
}

#[derive(Clone, Debug)]
pub(super) struct DescriptorLimit {
    pub(super) name: Option<String>,
    pub(super) quota: Quota,
    pub(super) is_shadow: bool,
    /// The names of other limits, and their positions.
    pub(super) replaces: Vec<(String, SourcePosition)>,
}

/// How many requests are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Quota {
    Unlimited,
    Nothing,
    Requests { requests: u32, units: u32, unit: Unit },
}

/// Reads a file, and adds its errors to its report.
pub(super) fn file(
    file: usize,
    source: &ImportSource,
    reports: &mut [Report],
) -> Option<ConfigFile> {
    let report = reports.get_mut(file)?;
    let bytes = match &source.bytes {
        Ok(bytes) => bytes,
        Err(error) => {
            let remedy = "name a YAML file of envoyproxy/ratelimit";
            report.unreadable(format!("cannot be read: {error}"), remedy);
            return None;
        }
    };
    let max_bytes = Config::MAX_BYTES;
    let document = FileContents { bytes, max_bytes, max_depth: MAX_DEPTH, smaller: "split it" };
    let nothing = |at, report: &mut Report| {
        report.error(at, "neither a domain nor descriptors", FILE.remedy);
    };
    document
        .read(nothing, report, |node, report| ConfigReader { file, report }.root(node))
        .flatten()
}

struct ConfigReader<'r> {
    file: usize,
    report: &'r mut Report,
}

impl ConfigReader<'_> {
    fn root(&mut self, node: &YamlNode<'_>) -> Option<ConfigFile> {
        let fields = MappingFields::read(node, &FILE, self.report)?;
        let domain = fields.require("domain", "name it, like `domain: api`", self.report);
        let domain = domain.and_then(|node| {
            let text = self.report.text(node, "`domain`", "name it, like `domain: api`")?;
            let text = DOMAIN.check(text, node.at, self.report)?;
            Some((text.to_owned(), self.place(node.at)))
        });
        let descriptors = self.descriptors(&fields);
        let (domain, place) = domain?;
        Some(ConfigFile { domain, place, descriptors })
    }

    fn place(&self, at: Position) -> SourcePosition {
        SourcePosition { file: self.file, at }
    }

    fn descriptors(&mut self, fields: &MappingFields<'_, '_>) -> Vec<ConfigDescriptor> {
        let Some(node) = set(fields, "descriptors") else { return Vec::new() };
        let items = self.report.list(node, "`descriptors`", DESCRIPTOR.remedy).unwrap_or_default();
        items.iter().filter_map(|item| self.descriptor(item)).collect()
    }

    fn descriptor(&mut self, node: &YamlNode<'_>) -> Option<ConfigDescriptor> {
        let fields = MappingFields::read(node, &DESCRIPTOR, self.report)?;
        let remedy = "name the entry's key, like `key: user`";
        let key = fields.require("key", remedy, self.report);
        let value = self.value(node, &fields);
        let key = key.and_then(|node| {
            let text = self.report.text(node, "`key`", remedy)?;
            if value == Some(DescriptorValue::Any) && text.ends_with('*') {
                let message = "a key that ends with a star, without a value: to \
                               envoyproxy/ratelimit it matches all keys with that prefix";
                let remedy = "write a descriptor for each key that is meant, without the star";
                self.report.error(node.at, message, remedy);
            }
            ATTRIBUTE.check(text, node.at, self.report)
        });
        let is_shared = self.truth(&fields, "share_threshold");
        if is_shared && matches!(value, Some(DescriptorValue::Any | DescriptorValue::Exact(_))) {
            let remedy = "end the value with `*`, or leave `share_threshold` out";
            self.report.error(fields.at, "`share_threshold` without a star in `value`", remedy);
        }
        let is_shadow = self.truth(&fields, "shadow_mode") | self.quota_mode(&fields);
        self.warn_of_the_rest(&fields);
        let limit = set(&fields, "rate_limit").and_then(|node| self.rate_limit(node, is_shadow));
        let below = self.descriptors(&fields);
        let place = self.place(node.at);
        Some(ConfigDescriptor {
            place,
            key: key?.to_owned(),
            value: value?,
            limit,
            is_shared,
            below,
        })
    }

    /// Warns of fields that rules have no equivalent for.
    fn warn_of_the_rest(&mut self, fields: &MappingFields<'_, '_>) {
        for name in ["detailed_metric", "value_to_metric"] {
            if self.truth(fields, name) {
                let message = format!("`{name}` has no equivalent: metrics name rules, not values");
                let remedy =
                    "give each value that you monitor its own descriptor, and so its own rule";
                self.warn(fields, name, message, remedy);
            }
        }
        if set(fields, "metadata").is_some() {
            let message = "`metadata` has no equivalent: the answer names the rules that applied";
            let remedy = "make Envoy use the rule names in its dynamic metadata";
            self.warn(fields, "metadata", message.into(), remedy);
        }
    }

    fn quota_mode(&mut self, fields: &MappingFields<'_, '_>) -> bool {
        let is_soft = self.truth(fields, "quota_mode");
        if is_soft {
            let message = "`quota_mode` becomes `shadow`: the dynamic metadata has other names";
            let remedy = "make Envoy use the rule names there";
            self.warn(fields, "quota_mode", message.into(), remedy);
        }
        is_soft
    }

    fn warn(&mut self, fields: &MappingFields<'_, '_>, name: &str, message: String, remedy: &str) {
        let at = fields.get(name).map_or(fields.at, |node| node.at);
        self.report.warn(at, message, remedy);
    }

    fn value(
        &mut self,
        of: &YamlNode<'_>,
        fields: &MappingFields<'_, '_>,
    ) -> Option<DescriptorValue> {
        let Some(node) = set(fields, "value") else {
            return is_whole(of).then_some(DescriptorValue::Any);
        };
        let text =
            self.report.text(node, "`value`", "use a text, or leave it out for any value")?;
        if text.strip_suffix('*').unwrap_or(text).contains('*') {
            let message = format!(
                "`{}` has a star before its end, which matches any text in the newest \
                 envoyproxy/ratelimit, and itself in older ones; the rule matches any text",
                Excerpt::of(text)
            );
            let remedy = "if the star itself is meant, write `{ exact: … }` in the rule";
            self.report.warn(node.at, message, remedy);
        }
        let start = text.trim_end_matches('*');
        Some(match start {
            "" if text.is_empty() => DescriptorValue::Any,
            _ if start.contains('*') => DescriptorValue::Glob(text.to_owned()),
            _ if start.len() < text.len() => DescriptorValue::Prefix(start.to_owned()),
            _ => DescriptorValue::Exact(text.to_owned()),
        })
    }

    fn rate_limit(&mut self, node: &YamlNode<'_>, is_shadow: bool) -> Option<DescriptorLimit> {
        let fields = MappingFields::read(node, &RATE_LIMIT, self.report)?;
        let quota = self.quota(node, &fields);
        let name = set(&fields, "name")
            .and_then(|node| self.report.text(node, "`name`", "use a text").map(str::to_owned));
        let name = name.filter(|name| !name.is_empty());
        let replaces = self.replaces(&fields, name.as_deref());
        Some(DescriptorLimit { name, quota: quota?, is_shadow, replaces })
    }

    fn quota(&mut self, of: &YamlNode<'_>, fields: &MappingFields<'_, '_>) -> Option<Quota> {
        let unit = set(fields, "unit");
        if self.truth(fields, "unlimited") {
            if let Some(node) = unit {
                let remedy = "leave out `unit`, or `unlimited`";
                self.report.error(node.at, "an unlimited descriptor with a `unit`", remedy);
            }
            return Some(Quota::Unlimited);
        }
        let remedy = "use second, minute, hour, day, week, month or year";
        if unit.is_none() && is_whole(of) {
            self.report.error(fields.at, "`unit` is missing", remedy);
        }
        let requests = match set(fields, "requests_per_unit") {
            Some(node) => self.number(node, "`requests_per_unit`"),
            None if !is_whole(of) => None,
            None => {
                let message =
                    "`requests_per_unit` is missing and counts as 0: everything is refused";
                self.report.warn(fields.at, message, "set the number of requests");
                Some(0)
            }
        };
        let units = match set(fields, "unit_multiplier") {
            Some(node) => self.number(node, "`unit_multiplier`").filter(|units| {
                if *units == 0 {
                    self.report.error(node.at, "`unit_multiplier` is 0", "use at least 1");
                }
                *units > 0
            }),
            None => Some(1),
        };
        let unit = self.unit(unit?, remedy)?;
        let (requests, units) = (requests?, units?);
        if unit.seconds().saturating_mul(u64::from(units)) > MAX_WINDOW_SECONDS {
            self.report.error(fields.at, "a window of more than 366 days", "use a shorter one");
        }
        Some(match requests {
            0 => Quota::Nothing,
            _ => Quota::Requests { requests, units, unit },
        })
    }

    fn unit(&mut self, node: &YamlNode<'_>, remedy: &str) -> Option<Unit> {
        let text = self.report.text(node, "`unit`", remedy)?;
        let unit = Unit::ALL.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        if unit.is_none() {
            let message = format!("`unit` is `{}`", Excerpt::of(text));
            self.report.error(node.at, message, remedy);
        }
        unit.map(|(_, unit)| *unit)
    }

    fn replaces(
        &mut self,
        fields: &MappingFields<'_, '_>,
        own: Option<&str>,
    ) -> Vec<(String, SourcePosition)> {
        let Some(node) = set(fields, "replaces") else { return Vec::new() };
        let items = self.report.list(node, "`replaces`", REPLACES.remedy).unwrap_or_default();
        items.iter().filter_map(|item| self.replaced(item, own)).collect()
    }

    fn replaced(
        &mut self,
        item: &YamlNode<'_>,
        own: Option<&str>,
    ) -> Option<(String, SourcePosition)> {
        let fields = MappingFields::read(item, &REPLACES, self.report)?;
        let node = fields.require("name", REPLACES.remedy, self.report)?;
        let name = self.report.text(node, "`name`", REPLACES.remedy)?;
        let problem = match () {
            () if name.is_empty() => "an empty name in `replaces`",
            () if Some(name) == own => "a limit that replaces itself",
            () => return Some((name.to_owned(), self.place(node.at))),
        };
        self.report.error(node.at, problem, "name another limit, or leave this out");
        None
    }

    /// Reads a whole number of 32 bits, in digits only: envoyproxy/ratelimit reads YAML 1.1, in which `010`
    /// is 8.
    fn number(&mut self, node: &YamlNode<'_>, name: &str) -> Option<u32> {
        const REMEDY: &str = "use a whole number up to 4294967295, like 10";
        const NOTATION: &str = "use digits alone, and no zero before them: envoyproxy/ratelimit \
                                takes 010 for 8, 0x10 for 16 and 1_0 for 10";
        let text = self.report.text(node, name, REMEDY)?;
        let has_digits_alone = text.bytes().all(|byte| byte.is_ascii_digit());
        let is_decimal = text == "0" || (has_digits_alone && !text.starts_with('0'));
        let number = text.parse().ok().filter(|_| is_decimal);
        if number.is_none() {
            let message = format!("{name} is `{}`", Excerpt::of(text));
            let is_notation = text.starts_with('0') || text.contains('_');
            self.report.error(node.at, message, if is_notation { NOTATION } else { REMEDY });
        }
        number
    }

    /// Reads `true` or another word of YAML 1.1 for it; `false` if the field is missing.
    fn truth(&mut self, fields: &MappingFields<'_, '_>, name: &str) -> bool {
        const REMEDY: &str = "use `true` or `false`";
        let Some(node) = set(fields, name) else { return false };
        let Some(text) = self.report.text(node, &format!("`{name}`"), REMEDY) else { return false };
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "y" => true,
            "false" | "no" | "off" | "n" => false,
            _ => {
                let message = format!("`{name}` is `{}`", Excerpt::of(text));
                self.report.error(node.at, message, REMEDY);
                false
            }
        }
    }
}

/// Returns a field that has a value: to envoyproxy/ratelimit, `null` is the same as a missing field.
fn set<'n, 't>(fields: &MappingFields<'n, 't>, name: &str) -> Option<&'n YamlNode<'t>> {
    fields.get(name).filter(|node| !node.is_null() && !matches!(node.kind, NodeKind::Refused))
}

/// Whether nothing in a mapping was refused: then a field that is not there is missing.
fn is_whole(mapping: &YamlNode<'_>) -> bool {
    let is_refused = |node: &YamlNode<'_>| matches!(node.kind, NodeKind::Refused);
    match &mapping.kind {
        NodeKind::Map(entries) => {
            !entries.iter().any(|(key, value)| is_refused(key) || is_refused(value))
        }
        _ => true,
    }
}
