//! The source of an issuer's key set: a file, or a URL.

use std::borrow::Cow;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::decode::fields::{Mapping, MappingFields};
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::YamlNode;
use tollgate_identity::config::{JWKS_MAX_AGE, JwksConfig};

const JWKS: Mapping = Mapping {
    name: "`jwks`",
    fields: &["file", "url", "max_age", "max_stale"],
    remedy: "write it like `jwks: { url: https://issuer.example/.well-known/jwks.json }` or `jwks: { file: jwks.json }`",
};

const URL_REMEDY: &str = "use one that begins with `https://`, without user name and password, like \
     `https://issuer.example/.well-known/jwks.json`";

const MAX_URL_CHARS: usize = 2_048;

/// The shortest time after which a key set is fetched again: an issuer should not be queried more often.
const SHORTEST_AGE: Duration = Duration::from_secs(10);
const LONGEST_AGE: Duration = Duration::from_secs(24 * 60 * 60);
const LONGEST_STALE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The problem, which follows the name of the field in the message, and its remedy.
type JwksFault = (Cow<'static, str>, &'static str);

/// A key set, as far as the rules file has it.
pub(super) enum JwksSource {
    Known(JwksConfig),
    File(JwksFile),
}

/// A file with a key set, which is still to be read.
pub(crate) struct JwksFile {
    path: PathBuf,
    at: Position,
}

pub(super) fn read(node: &YamlNode<'_>, report: &mut Report) -> Option<JwksSource> {
    let fields = MappingFields::read(node, &JWKS, report)?;
    let max_age = fields.get("max_age").map(|node| (node.at, age(node, "max_age", report)));
    let max_stale = fields.get("max_stale").map(|node| (node.at, age(node, "max_stale", report)));
    match (fields.get("file"), fields.get("url")) {
        (Some(file), Some(url)) => {
            let remedy = "keep one of them; keys of another issuer go under `keys`";
            report.error(file.at.max(url.at), "`file` and `url` in one key set", remedy);
            None
        }
        (None, None) => {
            if !fields.may_have("file") && !fields.may_have("url") {
                report.error(fields.at, "a key set without `file` or `url`", JWKS.remedy);
            }
            None
        }
        (Some(file), None) => {
            for (name, age) in [("max_age", max_age), ("max_stale", max_stale)] {
                if let Some((at, _)) = age {
                    let message = format!("`{name}` has no effect for a file");
                    report.error(at, message, "remove it: the file is read again when it changes");
                }
            }
            let path = report.text(file, "`file`", JWKS.remedy)?;
            if path.is_empty() {
                report.error(file.at, "`file` is empty", JWKS.remedy);
                return None;
            }
            Some(JwksSource::File(JwksFile { path: path.into(), at: file.at }))
        }
        (None, Some(node)) => {
            let url = url(node, report)?;
            let (max_age, max_stale) = ages(max_age, max_stale, report)?;
            Some(JwksSource::Known(JwksConfig::Url { url: url.into(), max_age, max_stale }))
        }
    }
}

/// Reads a URL, which no message shows, because it may contain a secret.
fn url<'n>(node: &'n YamlNode<'_>, report: &mut Report) -> Option<&'n str> {
    let url = report.text(node, "`url`", URL_REMEDY)?;
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let is_plain = |letter: char| !letter.is_whitespace() && !letter.is_control() && letter != '#';
    let is_url = matches!(scheme, "https" | "http")
        && !authority.is_empty()
        && !authority.contains('@')
        && url.len() <= MAX_URL_CHARS
        && url.chars().all(is_plain);
    if !is_url || !is_usable(url) {
        report.error(node.at, "`url` is not a URL that keys can be fetched from", URL_REMEDY);
        return None;
    }
    if scheme == "http" && !is_here(authority) {
        let message = "`url` is not encrypted: an attacker on the network can replace the keys";
        report.warn(node.at, message, "use `https://`");
    }
    Some(url)
}

// Parsing keys and URLs needs the features `jwt` and `jwks`; without them, no token is verified anyway.
#[cfg(feature = "jwks")]
fn is_usable(url: &str) -> bool {
    tollgate_identity::Jwks::url(url).is_ok()
}

#[cfg(not(feature = "jwks"))]
fn is_usable(_: &str) -> bool {
    true
}

/// Returns whether the authority is this machine.
fn is_here(authority: &str) -> bool {
    let is_loopback = |host: &str| match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host == "localhost",
    };
    // With or without a port.
    is_loopback(authority) || authority.rsplit_once(':').is_some_and(|(host, _)| is_loopback(host))
}

fn age(node: &YamlNode<'_>, name: &'static str, report: &mut Report) -> Option<Duration> {
    let age = report.duration(node, name)?;
    let fault = match name {
        _ if age < SHORTEST_AGE => "is below 10s",
        "max_age" if age > LONGEST_AGE => "is above 1d",
        _ if age > LONGEST_STALE => "is above 30d",
        _ => return Some(age),
    };
    let remedy = match name {
        "max_age" => {
            "use 10s to 1d; a key that the issuer withdraws stays valid for up to this long"
        }
        _ => "use 10s to 30d; keys stay valid for this long while the issuer does not answer",
    };
    report.error(node.at, format!("`{name}` {fault}"), remedy);
    None
}

/// A field that is present, and its value if that is valid.
type AgeField = Option<(Position, Option<Duration>)>;

fn ages(
    max_age: AgeField,
    max_stale: AgeField,
    report: &mut Report,
) -> Option<(Option<Duration>, Option<Duration>)> {
    let read = |given: AgeField| match given {
        None => Some(None),
        Some((_, age)) => age.map(Some),
    };
    let (age, stale) = (read(max_age)?, read(max_stale)?);
    if let (Some(stale), Some((at, _))) = (stale, max_stale)
        && stale < age.unwrap_or(JWKS_MAX_AGE)
    {
        let remedy = "use a longer one: keys are fetched again before they are `max_age` old";
        report.error(at, "`max_stale` is below `max_age`, which is 10m by default", remedy);
        return None;
    }
    Some((age, stale))
}

impl JwksFile {
    /// Reads the set. `read` returns the contents of a file by its path as written.
    pub(crate) fn fetch(
        self,
        read: impl FnOnce(&Path) -> io::Result<Vec<u8>>,
        report: &mut Report,
    ) -> Option<JwksConfig> {
        let JwksFile { path, at } = self;
        match read(&path) {
            Ok(json) => match check(&json, at, report) {
                Ok(()) => Some(JwksConfig::File(json)),
                Err((fault, remedy)) => {
                    report.error(at, format!("`file` {fault}"), remedy);
                    None
                }
            },
            Err(error) => {
                report.error(at, format!("`file` cannot be read: {error}"), remedy(&error));
                None
            }
        }
    }
}

#[cfg(feature = "jwt")]
fn check(json: &[u8], at: Position, report: &mut Report) -> Result<(), JwksFault> {
    use tollgate_identity::{JwksError, KeySet};

    let private =
        "publish the public keys alone; a secret is a key of `keys`, with `algorithm: HS256`";
    let set = KeySet::parse(json).map_err(|error| match error {
        JwksError::SymmetricKey => ("has a symmetric key (`oct`)".into(), private),
        JwksError::PrivateKey => ("has a private key".into(), private),
        JwksError::TooManyKeys { keys, most } => {
            let fault = format!("has {keys} keys, above the maximum of {most}");
            (fault.into(), "remove those that no token is signed with any more")
        }
        _ => {
            let remedy = "use a JSON object with a list `keys`, as issuers publish it (RFC 7517)";
            ("has no key set".into(), remedy)
        }
    })?;
    let skipped = set.skipped();
    let remedy = "use keys for signatures: RSA of 2048 to 8192 bits, on the curve P-256 or P-384, or Ed25519";
    if set.keys().is_empty() {
        return Err(("has no key that can be used".into(), remedy));
    }
    if skipped > 0 {
        let message = match skipped {
            1 => "a key of `file` is not used".into(),
            _ => format!("{skipped} keys of `file` are not used"),
        };
        report.warn(at, message, remedy);
    }
    Ok(())
}

#[cfg(not(feature = "jwt"))]
fn check(_: &[u8], _: Position, _: &mut Report) -> Result<(), JwksFault> {
    Ok(())
}

/// Returns the remedy for a file that cannot be read.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied => "let this user read it",
        ErrorKind::FileTooLarge => "name the file of the key set alone",
        ErrorKind::Unsupported => "use `Config::load`, or `url`",
        _ => "name a file that has the key set, relative to this one",
    }
}
