//! The attributes that requests have, and warnings about names and values that no request has.
//!
//! - `lookalikes`: finds the attribute that was probably meant by a name that no HTTP request has

mod lookalikes;

use tollgate_core::Excerpt;

use super::fields::MappingFields;
use super::identity::IdentitySection;
use super::names;
use crate::config::KeyPart;
use crate::pattern::Pattern;
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::YamlNode;

/// The most attributes that a file may declare.
const MAX_DECLARED: usize = 256;

const DECLARED: &str = "caller_attributes";

const REMEDY: &str = "list the attributes that callers send with every request, like `[tenant]`";

/// The attributes that requests have: attributes of HTTP, as far as `identity` makes them known, and attributes that
/// the file declares.
pub(super) struct AttributeSources<'n> {
    declared: Vec<&'n str>,
    section: Option<&'n IdentitySection>,
    /// Whether `identity` or `caller_attributes` was refused, so that missing attributes cannot be detected.
    is_lost: bool,
}

/// How often requests have an attribute in a form that keys and tiers can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Availability {
    /// Every request has it, as far as the file shows.
    Always,
    /// Some clients do not send it, or send a value that is not verified.
    Sometimes,
    /// A header that the file does not trust.
    Untrusted,
    /// A claim of tokens, and the file does not verify tokens.
    Unverified,
}

impl<'n> AttributeSources<'n> {
    /// Reads the attributes that the file declares. `section` is the file's `identity`, as far as it could be read.
    pub(super) fn read(
        file: &MappingFields<'n, '_>,
        section: Option<&'n IdentitySection>,
        report: &mut Report,
    ) -> AttributeSources<'n> {
        let declared = file.or(DECLARED, Vec::new(), |node| declared(node, report));
        let is_refused = file.get("identity").is_some() && section.is_none();
        let is_lost = is_refused
            || declared.is_none()
            || ["identity", DECLARED].into_iter().any(|name| file.may_have(name));
        AttributeSources { declared: declared.unwrap_or_default(), section, is_lost }
    }

    /// Returns the length of the prefix that the IPv6 addresses of one client share, if the file gives it.
    pub(super) fn ipv6_prefix(&self) -> Option<u8> {
        self.section.and_then(IdentitySection::ipv6_prefix)
    }

    fn is_declared(&self, name: &str) -> bool {
        self.declared.contains(&name)
    }

    /// Returns how often requests have an attribute. An attribute that is neither declared nor of HTTP counts as
    /// always present, because callers decide what they send.
    pub(super) fn of(&self, name: &str) -> Availability {
        if self.is_declared(name) {
            return Availability::Always;
        }
        if let Some(header) = name.strip_prefix("header.") {
            let is_trusted = self.section.is_some_and(|section| section.is_trusted(header));
            return if is_trusted || self.is_lost {
                Availability::Sometimes
            } else {
                Availability::Untrusted
            };
        }
        if name.starts_with("jwt.") {
            let has_jwt = self.section.is_some_and(IdentitySection::has_jwt);
            return if has_jwt || self.is_lost {
                Availability::Sometimes
            } else {
                Availability::Unverified
            };
        }
        if matches!(name, "api_key" | "tier") {
            Availability::Sometimes
        } else {
            Availability::Always
        }
    }

    /// Returns whether every request has an attribute for each part of a key.
    pub(super) fn makes_key(&self, key: &[KeyPart]) -> bool {
        key.iter()
            .all(|part| part.first_of.iter().any(|name| self.of(name) == Availability::Always))
    }

    /// Warns of attributes in a part of a key that are never known, so that the key is never made of them.
    pub(super) fn warn_of_key_part(&self, part: &KeyPart, at: Position, report: &mut Report) {
        let names = || part.first_of.iter().map(|name| &**name);
        let mut never = names().filter(|name| self.of(name).is_never());
        let Some(first) = never.next() else { return };
        if names().all(|name| self.of(name).is_never()) {
            self.warn_if_never(first, ": the rule never applies", at, report);
            return;
        }
        for name in [first].into_iter().chain(never) {
            self.warn_if_never(name, ": the key is made without it", at, report);
        }
    }

    /// Warns of an attribute that is never known. `so` is the part of the message that names the consequence.
    pub(super) fn warn_if_never(&self, name: &str, so: &str, at: Position, report: &mut Report) {
        let shown = Excerpt::of(name);
        let (because, remedy) = match self.of(name) {
            Availability::Always | Availability::Sometimes => return,
            Availability::Untrusted => (
                "`identity.trusted_headers` does not list it",
                "list it there if trusted proxies set it, or",
            ),
            Availability::Unverified => (
                "the file has no `identity.jwt`",
                "say under `identity.jwt` what tokens are verified with, or",
            ),
        };
        let message = format!("`{shown}` is never known, because {because}{so}");
        let remedy = format!("{remedy} list `{shown}` in `caller_attributes` if callers verify it");
        report.warn(at, message, remedy);
    }
}

impl Availability {
    fn is_never(self) -> bool {
        matches!(self, Availability::Untrusted | Availability::Unverified)
    }
}

fn declared<'n>(node: &'n YamlNode<'_>, report: &mut Report) -> Option<Vec<&'n str>> {
    let items = report.list(node, "`caller_attributes`", REMEDY)?;
    if items.len() > MAX_DECLARED {
        let message = format!("{} attributes, above the maximum of {MAX_DECLARED}", items.len());
        report.error(node.at, message, "keep those that rules use");
        return None;
    }
    let name = |item| names::ATTRIBUTE.read(item, "an attribute of `caller_attributes`", report);
    Some(items.iter().filter_map(name).collect())
}

/// The kind of requests that a rule is for.
#[derive(Clone, Copy)]
pub(super) struct RequestOrigin<'s> {
    pub(super) sources: &'s AttributeSources<'s>,
    /// Whether the requests are Envoy's descriptors: only these have `descriptor_keys`, and their entries may have
    /// any name.
    pub(super) is_envoy: bool,
}

impl<'s> RequestOrigin<'s> {
    pub(super) fn of<'n>(
        sources: &'s AttributeSources<'s>,
        mut attributes: impl Iterator<Item = &'n str>,
    ) -> RequestOrigin<'s> {
        RequestOrigin { sources, is_envoy: attributes.any(|name| name == "descriptor_keys") }
    }

    /// Returns whether a name should be an attribute of HTTP.
    pub(super) fn is_http(self, name: &str) -> bool {
        !self.is_envoy && !self.sources.is_declared(name)
    }

    /// Warns of an attribute that HTTP requests have under another name.
    pub(super) fn warn_of_name(self, name: &str, at: Position, report: &mut Report) {
        let Some(meant) = lookalikes::meant(name).filter(|_| self.is_http(name)) else { return };
        let (shown, meant) = (Excerpt::of(name), Excerpt::of(&meant));
        let message = format!("requests over HTTP have no attribute `{shown}`");
        let remedy = format!(
            "did you mean `{meant}`? If callers send `{shown}`, list it in `caller_attributes`"
        );
        report.warn(at, message, remedy);
    }

    /// Warns of an attribute of `when` that requests do not have.
    pub(super) fn warn_of_condition(self, name: &str, at: Position, report: &mut Report) {
        self.warn_of_name(name, at, report);
        // A condition may use a header that is not trusted.
        if self.sources.of(name) == Availability::Unverified {
            self.sources.warn_if_never(name, "", at, report);
        }
    }

    /// Warns of the first path with a query, because a request's path ends before its `?`.
    pub(super) fn warn_of_query<'p>(
        self,
        mut paths: impl Iterator<Item = &'p Pattern>,
        at: Position,
        report: &mut Report,
    ) {
        let with_query = paths.find_map(|path| {
            let text = path.to_string();
            text.contains('?').then_some(text)
        });
        // Also for Envoy's entry `path`, from which the server removes the query.
        if let Some(text) = with_query.filter(|_| !self.sources.is_declared("path")) {
            let message = format!("no request over HTTP has the path `{}`", Excerpt::of(&text));
            report.warn(at, message, "leave out the query: a path ends before its `?`");
        }
    }
}
