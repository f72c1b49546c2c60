//! How tokens are verified.

use std::time::Duration;

use tollgate_core::Excerpt;

use super::TokenKeys;
use super::jwks::{self, JwksSource};
use super::key::{self, KeySource};
use crate::decode::fields::{Mapping, MappingFields};
use crate::decode::limits::{self, Wording};
use crate::nearest::nearest;
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::YamlNode;
use tollgate_identity::config::{JwtConfig, MAX_WITHOUT_ID, OnInvalid};

/// The most keys: enough for several issuers that are rotating theirs.
const MAX_KEYS: usize = 64;

const LONGEST_LEEWAY: Duration = Duration::from_secs(3_600);

const JWT: Mapping = Mapping {
    name: "`jwt`",
    fields: &["keys", "jwks", "issuer", "audience", "leeway", "invalid", "verifications"],
    remedy: "give it keys, like `jwt: { keys: [{ algorithm: RS256, public_key_file: rsa.pem }] }`",
};

const KEYS_REMEDY: &str =
    "list the keys of the tokens, like `[{ algorithm: RS256, public_key_file: rsa.pem }]`";

const KEYS_OR_JWKS_REMEDY: &str = "list the keys of the tokens, like `[{ algorithm: RS256, public_key_file: rsa.pem }]`, \
     or name a key set, like `jwks: { url: https://issuer.example/.well-known/jwks.json }`";

const INVALID_REMEDY: &str = "use `by_ip` or `unauthorized`";

const VERIFICATIONS: Wording = Wording {
    name: "`verifications`",
    remedy: "write it like `verifications: token-bucket capacity=20 refill=5/s`",
};

/// Reads the section without its keys, and the sources of the keys.
pub(super) fn read(node: &YamlNode<'_>, report: &mut Report) -> Option<(JwtConfig, TokenKeys)> {
    let fields = MappingFields::read(node, &JWT, report)?;
    let has_jwks = fields.get("jwks").is_some() || fields.may_have("jwks");
    let keys_node = match has_jwks {
        true => fields.get("keys"),
        false => fields.require("keys", KEYS_OR_JWKS_REMEDY, report),
    };
    let keys = keys_node.and_then(|node| keys(node, report)).unwrap_or_default();
    let (jwks, jwks_file) = match fields.get("jwks").and_then(|node| jwks::read(node, report)) {
        None => (None, None),
        Some(JwksSource::Known(jwks)) => (Some(jwks), None),
        Some(JwksSource::File(file)) => (None, Some(file)),
    };
    let jwt = JwtConfig {
        keys: Vec::new(),
        jwks,
        issuer: fields
            .get("issuer")
            .and_then(|node| claim(node, "`issuer`", "use what tokens have as `iss`", report)),
        audience: fields
            .get("audience")
            .and_then(|node| claim(node, "`audience`", "use what tokens have as `aud`", report)),
        leeway: fields.get("leeway").and_then(|node| leeway(node, report)),
        on_invalid: fields
            .get("invalid")
            .and_then(|node| invalid(node, report))
            .unwrap_or_default(),
        verifications: fields
            .get("verifications")
            .and_then(|node| limits::read_limit(node, &VERIFICATIONS, report)),
    };
    Some((jwt, TokenKeys { keys, jwks: jwks_file }))
}

fn keys(node: &YamlNode<'_>, report: &mut Report) -> Option<Vec<KeySource>> {
    let items = report.list(node, "`keys`", KEYS_REMEDY)?;
    if items.is_empty() {
        report.error(node.at, "`keys` is an empty list", KEYS_REMEDY);
        return None;
    }
    if items.len() > MAX_KEYS {
        let message = format!("{} keys, above the maximum of {MAX_KEYS}", items.len());
        report.error(node.at, message, "remove those that no token is signed with any more");
        return None;
    }
    let mut keys = Vec::with_capacity(items.len());
    let mut ids: Vec<(&str, Position)> = Vec::new();
    for item in items {
        let Some((key, id)) = key::read(item, report) else { continue };
        if let Some((id, at)) = id {
            refuse_twice(id, at, &ids, report);
            ids.push((id, at));
        }
        if let Some(key) = key {
            refuse_too_many(&key, item.at, &keys, report);
            keys.push(key);
        }
    }
    Some(keys)
}

/// Reports too many keys without an id, once, at the first that exceeds the bound.
fn refuse_too_many(key: &KeySource, at: Position, before: &[KeySource], report: &mut Report) {
    let Some(algorithm) = key.without_id() else { return };
    let alike = before.iter().filter(|other| other.without_id() == Some(algorithm));
    if alike.count() == MAX_WITHOUT_ID {
        let message = format!("more than {MAX_WITHOUT_ID} keys of one algorithm have no `id`");
        report.error(at, message, "give them the ids that tokens have as `kid`");
    }
}

fn refuse_twice(id: &str, at: Position, before: &[(&str, Position)], report: &mut Report) {
    if let Some((_, first)) = before.iter().find(|(one, _)| *one == id) {
        let (id, line) = (Excerpt::of(id), first.line);
        let message = format!("key `{id}` is defined twice (first at line {line})");
        report.error(at, message, "give each key an id of its own: a token names it");
    }
}

/// Reads the value that a claim of the token must have.
fn claim(node: &YamlNode<'_>, name: &str, remedy: &str, report: &mut Report) -> Option<Box<str>> {
    let text = report.text(node, name, remedy)?;
    if text.is_empty() {
        report.error(node.at, format!("{name} is an empty text"), remedy);
        return None;
    }
    Some(text.into())
}

fn leeway(node: &YamlNode<'_>, report: &mut Report) -> Option<Duration> {
    let leeway = report.duration(node, "leeway")?;
    if leeway > LONGEST_LEEWAY {
        let remedy = "use at most 1h: every token stays valid this much longer";
        report.error(node.at, "`leeway` is above 1h", remedy);
        return None;
    }
    Some(leeway)
}

fn invalid(node: &YamlNode<'_>, report: &mut Report) -> Option<OnInvalid> {
    match report.text(node, "`invalid`", INVALID_REMEDY)? {
        "by_ip" => Some(OnInvalid::ByIp),
        "unauthorized" => Some(OnInvalid::Unauthorized),
        other => {
            let message = format!("`invalid: {}` is unknown", Excerpt::of(other));
            let remedy = match nearest(other, ["by_ip", "unauthorized"]) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => INVALID_REMEDY.into(),
            };
            report.error(node.at, message, remedy);
            None
        }
    }
}
