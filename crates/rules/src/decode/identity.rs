//! How clients are identified: which proxies and headers are trusted, and which keys verify tokens.

mod jwks;
mod jwt;
mod key;
mod nets;

use tollgate_core::Excerpt;

use super::fields::{Mapping, MappingFields, listed};
use super::names;
use crate::nearest::nearest;
use crate::problem::Report;
use crate::yaml::YamlNode;
use jwks::JwksFile;
use key::KeySource;
pub(crate) use key::MAX_KEY_FILE_BYTES;
use tollgate_identity::config::{ForwardingHeader, IdentityConfig};

/// The most headers that may be trusted: each is looked up in every request.
const MAX_HEADERS: usize = 64;

const IDENTITY: Mapping = Mapping {
    name: "`identity`",
    fields: &[
        "trusted_proxies",
        "forwarding_header",
        "trusted_headers",
        "ipv6_prefix",
        "api_key_header",
        "jwt",
    ],
    remedy: "write it like `identity: { trusted_proxies: [10.0.0.0/8] }`",
};

const FORWARDING: [(&str, ForwardingHeader); 3] = [
    ("x-forwarded-for", ForwardingHeader::XForwardedFor),
    ("forwarded", ForwardingHeader::Forwarded),
    ("x-real-ip", ForwardingHeader::XRealIp),
];

const HEADERS_REMEDY: &str = "list the headers that the proxies set or remove, like `[x-tenant]`";

/// The keys that verify tokens, which are still to be read from their sources.
#[derive(Default)]
pub(crate) struct TokenKeys {
    pub(crate) keys: Vec<KeySource>,
    pub(crate) jwks: Option<JwksFile>,
}

/// The section `identity` of a file.
pub(super) struct IdentitySection {
    pub(super) identity: IdentityConfig,
    /// The keys of its `jwt`, whose own list is still empty.
    pub(super) keys: TokenKeys,
    /// Whether `jwt` is given; one that was refused is not reported as missing.
    has_jwt: bool,
}

pub(super) fn read(node: &YamlNode<'_>, report: &mut Report) -> Option<IdentitySection> {
    let fields = MappingFields::read(node, &IDENTITY, report)?;
    let trusted_proxies = fields.get("trusted_proxies").and_then(|node| nets::read(node, report));
    for name in ["forwarding_header", "trusted_headers"] {
        refuse_without_proxies(name, &fields, report);
    }
    let forwarding_header =
        fields.get("forwarding_header").and_then(|node| forwarding(node, report));
    let trusted_headers = fields.get("trusted_headers").and_then(|node| headers(node, report));
    let ipv6_prefix = fields.get("ipv6_prefix").and_then(|node| prefix(node, report));
    let api_key_header = fields
        .get("api_key_header")
        .and_then(|node| names::HEADER_OF_KEY.read(node, "`api_key_header`", report))
        .map(lower_case);
    let jwt = fields.get("jwt").and_then(|node| jwt::read(node, report));
    let (jwt, keys) = jwt.unzip();
    let identity = IdentityConfig {
        trusted_proxies: trusted_proxies.unwrap_or_default(),
        forwarding_header: forwarding_header.unwrap_or_default(),
        trusted_headers: trusted_headers.unwrap_or_default(),
        ipv6_prefix,
        api_key_header,
        jwt,
    };
    let has_jwt = fields.get("jwt").is_some() || fields.may_have("jwt");
    Some(IdentitySection { identity, keys: keys.unwrap_or_default(), has_jwt })
}

/// Refuses a field about headers of proxies if no proxy is trusted to write them.
fn refuse_without_proxies(name: &str, fields: &MappingFields<'_, '_>, report: &mut Report) {
    let has_proxies = fields.get("trusted_proxies").is_some() || fields.may_have("trusted_proxies");
    if let Some(node) = fields.get(name).filter(|_| !has_proxies) {
        let message = format!("`{name}` has no effect without `trusted_proxies`");
        let remedy = "list the proxies whose headers count, like `trusted_proxies: [10.0.0.0/8]`";
        report.error(node.at, message, remedy);
    }
}

fn forwarding(node: &YamlNode<'_>, report: &mut Report) -> Option<ForwardingHeader> {
    let names = FORWARDING.map(|(name, _)| name);
    let remedy = format!("use {}", listed(&names));
    let text = report.text(node, "`forwarding_header`", &remedy)?;
    let found = FORWARDING.iter().find(|(name, _)| *name == text).map(|(_, header)| *header);
    if found.is_none() {
        let message = format!("`forwarding_header: {}` is unknown", Excerpt::of(text));
        let remedy = nearest(text, names).map_or(remedy, |it| format!("did you mean `{it}`?"));
        report.error(node.at, message, remedy);
    }
    found
}

fn headers(node: &YamlNode<'_>, report: &mut Report) -> Option<Vec<Box<str>>> {
    let items = report.list(node, "`trusted_headers`", HEADERS_REMEDY)?;
    if items.len() > MAX_HEADERS {
        let message = format!("{} headers, above the maximum of {MAX_HEADERS}", items.len());
        report.error(node.at, message, "keep those that rules use");
        return None;
    }
    let mut headers: Vec<Box<str>> = Vec::with_capacity(items.len());
    for item in items {
        let name = names::HEADER.read(item, "a trusted header", report).map(lower_case);
        let Some(name) = name else { continue };
        if headers.contains(&name) {
            report.error(item.at, format!("header `{name}` is listed twice"), "keep one of them");
        }
        headers.push(name);
    }
    Some(headers)
}

/// Returns the name of a header in lower case, which is the same header in HTTP.
fn lower_case(header: &str) -> Box<str> {
    header.to_ascii_lowercase().into()
}

fn prefix(node: &YamlNode<'_>, report: &mut Report) -> Option<u8> {
    let bits = report.number(node, "`ipv6_prefix`")?;
    let prefix = u8::try_from(bits).ok().filter(|&bits| bits <= 128);
    if prefix.is_none() {
        let remedy = "use 1 to 128: the bits that one client's addresses share, like 56";
        report.error(node.at, "`ipv6_prefix` is above 128", remedy);
    }
    prefix
}

impl IdentitySection {
    pub(super) fn ipv6_prefix(&self) -> Option<u8> {
        self.identity.ipv6_prefix
    }

    /// Returns whether a header is known if a trusted proxy sent it.
    pub(super) fn is_trusted(&self, header: &str) -> bool {
        self.identity.trusted_headers.iter().any(|trusted| **trusted == *header)
    }

    /// Returns whether the file configures how tokens are verified.
    pub(super) fn has_jwt(&self) -> bool {
        self.has_jwt
    }
}
