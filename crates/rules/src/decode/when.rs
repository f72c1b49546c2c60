//! The conditions of a rule.

use ipnet::IpNet;
use tollgate_core::Excerpt;
use tollgate_limiter::Ipv6Prefix;

use super::fields::{Mapping, MappingFields, NameTable, Naming, TableRow};
use super::names;
use super::networks::{NetworkSets, NetworkText};
use super::sources::RequestOrigin;
use crate::config::{Condition, Requirement};
use crate::networks::{self, UNKNOWN_ADDRESS};
use crate::pattern::Pattern;
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::{NodeKind, YamlNode};

/// The most values that one attribute may have.
const MAX_VALUES: usize = 10_000;

const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"];

const REMEDY: &str = "use a value, a list of values, or one of `{ exact: … }`, `{ prefix: … }`, \
     `{ glob: … }`, `{ network: … }`, `{ networks: … }`, `{ any_of: […] }`, `{ none_of: […] }` and \
     `{ present: true }`";

const WHEN: NameTable = NameTable {
    name: "`when`",
    item: "attribute",
    remedy: "write it like `when: { method: POST, path: /v1/** }`",
    naming: Naming::Shown,
};

const CONDITION: Mapping = Mapping {
    name: "a condition",
    fields: &["exact", "prefix", "glob", "network", "networks", "any_of", "none_of", "present"],
    remedy: REMEDY,
};

const PATTERN: Mapping = Mapping {
    name: "a value",
    fields: &["exact", "prefix", "glob", "network", "networks"],
    remedy: "use a text, or one of `{ exact: … }`, `{ prefix: … }`, `{ glob: … }`, \
             `{ network: … }` and `{ networks: … }`",
};

/// The context of one attribute's values.
struct ConditionReader<'s, 'n> {
    attribute: &'s str,
    networks: &'s mut NetworkSets<'n>,
    /// The length of the prefix that the IPv6 addresses of one client share.
    ipv6_prefix: u8,
}

/// Reads the condition on every attribute.
pub(super) fn read(
    node: &YamlNode<'_>,
    origin: RequestOrigin<'_>,
    networks: &mut NetworkSets<'_>,
    report: &mut Report,
) -> Option<Vec<Condition>> {
    let ipv6_prefix = origin.sources.ipv6_prefix().unwrap_or(Ipv6Prefix::default().bits());
    let rows = WHEN.rows(node, report)?;
    let mut conditions = Vec::with_capacity(rows.len());
    for TableRow { name, at, value } in rows {
        let attribute = names::ATTRIBUTE.check(name, at, report);
        let mut reading = ConditionReader { attribute: name, networks, ipv6_prefix };
        for wanted in reading.wanted(value, report).into_iter().flatten() {
            if origin.is_http(name) {
                warn_of_values(name, wanted.patterns(), value.at, report);
            }
            if name == "path" {
                origin.warn_of_query(wanted.patterns().iter(), value.at, report);
            }
            conditions.extend(attribute.map(|name| Condition { attribute: name.into(), wanted }));
        }
        if let Some(name) = attribute {
            origin.warn_of_condition(name, at, report);
        }
    }
    Some(conditions)
}

/// Warns of values that no HTTP request has.
fn warn_of_values(name: &str, patterns: &[Pattern], at: Position, report: &mut Report) {
    let is_method = |text: &str| {
        let capitals = text.to_ascii_uppercase();
        *text != capitals && METHODS.contains(&&*capitals)
    };
    let is_no_path = |pattern: &Pattern| match pattern {
        Pattern::Glob(_) if pattern.literal_prefix().is_empty() => false,
        _ => !pattern.literal_prefix().starts_with('/'),
    };
    let odd = |pattern: &&Pattern| match name {
        "method" => matches!(pattern, Pattern::Exact(text) if is_method(text)),
        "path" => is_no_path(pattern),
        _ => false,
    };
    if let Some(pattern) = patterns.iter().find(odd) {
        let found = pattern.to_string();
        let (which, remedy) = match name {
            "method" => ("method", format!("write it as `{}`", found.to_ascii_uppercase())),
            _ => (
                "path",
                "begin it with `/`, or with `**` for every path that ends in this text".into(),
            ),
        };
        let message = format!("no request over HTTP has the {which} `{}`", Excerpt::of(&found));
        report.warn(at, message, remedy);
    }
}

impl ConditionReader<'_, '_> {
    /// Reads a condition: one pattern or list, and the patterns that `none_of` excludes.
    fn wanted(&mut self, node: &YamlNode<'_>, report: &mut Report) -> Option<Vec<Requirement>> {
        match &node.kind {
            NodeKind::Text { .. } => {
                Some(vec![Requirement::AnyOf(vec![self.pattern(node, report)?])])
            }
            NodeKind::List(items) => {
                Some(vec![Requirement::AnyOf(self.any_of(items, node.at, report)?)])
            }
            NodeKind::Map(_) => {
                let fields = MappingFields::read(node, &CONDITION, report)?;
                let like = only_field(&fields, report)?;
                let mut wanted = Vec::new();
                if let Some(like) = like {
                    wanted.push(self.condition_field(like, &fields, report)?);
                }
                if let Some(node) = fields.get("none_of") {
                    let items = report.list(node, "`none_of`", "use a list, like `[GET, HEAD]`")?;
                    wanted.push(Requirement::NoneOf(self.none_of(items, node.at, report)?));
                }
                Some(wanted)
            }
            NodeKind::Refused => None,
        }
    }

    /// Reads the field of this name, which is any field of a condition except `none_of`.
    fn condition_field(
        &mut self,
        name: &str,
        fields: &MappingFields<'_, '_>,
        report: &mut Report,
    ) -> Option<Requirement> {
        match (name, fields.get(name)) {
            ("any_of", Some(node)) => {
                let items = report.list(node, "`any_of`", "use a list, like `[GET, HEAD]`")?;
                Some(Requirement::AnyOf(self.any_of(items, node.at, report)?))
            }
            ("present", Some(node)) => {
                let is_present = report.truth(node, "`present`")?;
                Some(if is_present { Requirement::Present } else { Requirement::Absent })
            }
            _ => Some(Requirement::AnyOf(vec![self.pattern_of_fields(fields, report)?])),
        }
    }

    fn any_of(
        &mut self,
        items: &[YamlNode<'_>],
        at: Position,
        report: &mut Report,
    ) -> Option<Vec<Pattern>> {
        if items.is_empty() {
            report.error(at, "an empty list, which matches no request", NAME_ONE);
            return None;
        }
        self.patterns(items, at, report)
    }

    fn none_of(
        &mut self,
        items: &[YamlNode<'_>],
        at: Position,
        report: &mut Report,
    ) -> Option<Vec<Pattern>> {
        if items.is_empty() {
            report.error(at, "`none_of` without values, which excludes nothing", NAME_ONE);
            return None;
        }
        let patterns = self.patterns(items, at, report)?;
        if let Some(all) = patterns.iter().find(|pattern| pattern.is_like_all()) {
            let message = format!("`none_of` has `{all}`, which matches every value");
            let remedy = "use `{ present: false }` if the attribute must be absent";
            report.error(at, message, remedy);
            return None;
        }
        Some(patterns)
    }

    fn patterns(
        &mut self,
        items: &[YamlNode<'_>],
        at: Position,
        report: &mut Report,
    ) -> Option<Vec<Pattern>> {
        if items.len() > MAX_VALUES {
            let message = format!("{} values, above the maximum of {MAX_VALUES}", items.len());
            let remedy = match self.is_address() {
                true => "put them into a file, like `networks: { blocked: { file: blocked.txt } }`",
                false => "use a prefix or a glob for them",
            };
            report.error(at, message, remedy);
            return None;
        }
        Some(items.iter().filter_map(|item| self.pattern(item, report)).collect())
    }

    /// Reads one pattern: a text, or a mapping that says how the text is compared.
    fn pattern(&mut self, node: &YamlNode<'_>, report: &mut Report) -> Option<Pattern> {
        if let NodeKind::Map(_) = node.kind {
            let fields = MappingFields::read(node, &PATTERN, report)?;
            only_field(&fields, report)?;
            return self.pattern_of_fields(&fields, report);
        }
        let text = report.text(node, PATTERN.name, PATTERN.remedy)?;
        match self.is_address() {
            true => self.address(text, node.at, report),
            false => {
                self.warn_of_network(text, node.at, report);
                Some(Pattern::of(text))
            }
        }
    }

    /// Returns whether the attribute is a client's address, whose values are addresses and networks.
    fn is_address(&self) -> bool {
        self.attribute == "ip"
    }

    /// Reads a value of `ip`.
    fn address(&self, text: &str, at: Position, report: &mut Report) -> Option<Pattern> {
        if text == UNKNOWN_ADDRESS {
            return Some(Pattern::Exact(text.into()));
        }
        if text.contains('*') {
            let message =
                format!("`{}` is compared with the text of an address", Excerpt::of(text));
            let remedy = "use a network, like `10.0.0.0/8`; if text is meant, `{ glob: … }`";
            report.warn(at, message, remedy);
            return Some(Pattern::of(text));
        }
        let value = NetworkText { text, at, naming: Naming::Shown };
        self.networks.network(&value, report).map(Pattern::In)
    }

    /// Warns of a network that is compared as text. The exception is one attribute of Envoy, which masks addresses to
    /// networks.
    fn warn_of_network(&self, text: &str, at: Position, report: &mut Report) {
        let is_text = self.attribute == "masked_remote_address" || !text.contains('/');
        if !is_text && networks::known_of(text).is_some() {
            let name = Excerpt::of(self.attribute);
            let message =
                format!("`{name}` is compared with the text `{text}`, not with a network");
            let remedy = format!(
                "write `{{ network: {text} }}`; if the text is meant, `{{ exact: {text} }}`"
            );
            report.warn(at, message, remedy);
        }
    }

    /// Warns of a text that is never a client's `ip`, because IPv6 clients have the text of their group.
    fn warn_of_exact_address(&self, text: &str, at: Position, report: &mut Report) {
        let is_client =
            |known: IpNet| networks::client_text(known.addr(), self.ipv6_prefix) == text;
        if text != UNKNOWN_ADDRESS && !networks::known_of(text).is_some_and(is_client) {
            let message = format!("no client's `ip` has exactly the text `{}`", Excerpt::of(text));
            report.warn(at, message, "leave `exact` out: `ip` takes addresses and networks");
        }
    }

    fn pattern_of_fields(
        &mut self,
        fields: &MappingFields<'_, '_>,
        report: &mut Report,
    ) -> Option<Pattern> {
        if let Some(node) = fields.get("networks") {
            return self.networks.named(node, report).map(Pattern::In);
        }
        let mut text = |name: &str| {
            let node = fields.get(name)?;
            Some((node.at, report.text(node, &format!("`{name}`"), "use a text")?))
        };
        if let Some((at, text)) = text("network") {
            let value = NetworkText { text, at, naming: Naming::Shown };
            return self.networks.network(&value, report).map(Pattern::In);
        }
        if let Some((at, exact)) = text("exact") {
            if self.is_address() {
                self.warn_of_exact_address(exact, at, report);
            }
            return Some(Pattern::Exact(exact.into()));
        }
        if let Some((_, glob)) = text("glob") {
            return Some(Pattern::of(glob));
        }
        let (at, prefix) = text("prefix")?;
        if prefix.is_empty() {
            report.error(at, "every text begins with this prefix", "use `{ present: true }`");
            return None;
        }
        if prefix.contains('*') {
            let message =
                format!("a star in the prefix `{}` stands for itself", Excerpt::of(prefix));
            report.error(at, message, "use `{ glob: … }`, or leave the star out");
            return None;
        }
        Some(Pattern::Prefix(prefix.into()))
    }
}

const NAME_ONE: &str = "name a value, or use `{ present: true }` for any";

/// Returns the only field besides `none_of`. `none_of` may stand next to some fields, and then excludes some of the
/// values that the field matches.
fn only_field(fields: &MappingFields<'_, '_>, report: &mut Report) -> Option<Option<&'static str>> {
    let others: Vec<_> = fields.names().filter(|name| *name != "none_of").collect();
    match (&others[..], fields.get("none_of").is_some()) {
        ([], true) => return Some(None),
        ([like], false) | ([like @ ("prefix" | "glob" | "network" | "networks")], true) => {
            return Some(Some(like));
        }
        // Unknown fields in its place have been reported.
        ([], false) if !fields.is_empty_mapping() => {}
        ([], false) => report.error(fields.at, "an empty condition", REMEDY),
        _ => {
            let remedy = "keep one of them; several values go into `any_of`";
            report.error(fields.at, "more than one condition on an attribute", remedy);
        }
    }
    None
}
