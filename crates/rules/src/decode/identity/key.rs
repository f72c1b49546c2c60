//! The keys that verify tokens, and their sources. Keys are secrets: no message shows them, nor a text in the place where a
//! file or a variable should be named.

// Parsing a key needs the cryptography of the feature `jwt`.
#[cfg(feature = "jwt")]
mod usable;

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use tollgate_core::Excerpt;

use super::super::fields::{Mapping, MappingFields, listed};
use crate::nearest::nearest;
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::YamlNode;
use tollgate_identity::config::{JwtAlgorithm, JwtKeyConfig, MIN_SECRET_BYTES};

/// The largest file of a key: a PEM of 16384 bits has less than 4 KiB.
pub(crate) const MAX_KEY_FILE_BYTES: usize = 64 << 10;

const MAX_ID_CHARS: usize = 256;

const KEY: Mapping = Mapping {
    name: "a key of `jwt`",
    fields: &["algorithm", "id", "secret_file", "secret_env", "public_key", "public_key_file"],
    remedy: "write it like `{ algorithm: RS256, public_key_file: rsa.pem }`",
};

const ALGORITHMS: [(&str, JwtAlgorithm); 5] = [
    ("HS256", JwtAlgorithm::Hs256),
    ("RS256", JwtAlgorithm::Rs256),
    ("ES256", JwtAlgorithm::Es256),
    ("ES384", JwtAlgorithm::Es384),
    ("EdDSA", JwtAlgorithm::EdDsa),
];

/// Algorithms that other software uses, and that are not supported.
const UNSUPPORTED: [&str; 9] =
    ["HS384", "HS512", "RS384", "RS512", "ES512", "ES256K", "PS256", "PS384", "PS512"];

/// The fields that give a key; a key has one of them.
const MATERIALS: [&str; 4] = ["secret_file", "secret_env", "public_key", "public_key_file"];

const SECRET_REMEDY: &str = "name the file or the variable that has it, like `secret_file: jwt.secret` or \
     `secret_env: JWT_SECRET`";

const PUBLIC_REMEDY: &str =
    "name its file, like `public_key_file: rsa.pem`, or put the PEM under `public_key`";

/// A key without its material, which is still to be read.
pub(crate) struct KeySource {
    algorithm: JwtAlgorithm,
    id: Option<Box<str>>,
    /// The field that names the source.
    field: &'static str,
    at: Position,
    origin: KeyOrigin,
}

enum KeyOrigin {
    Given(Vec<u8>),
    File(PathBuf),
    Variable(Box<str>),
}

/// The problem, which follows the name of the field in the message, and its remedy.
type KeyFault = (Cow<'static, str>, &'static str);

/// An id, and its position.
type KeyId<'n> = (&'n str, Position);

/// Reads a key and its id. If the key has errors, the id is returned without it.
pub(super) fn read<'n>(
    node: &'n YamlNode<'_>,
    report: &mut Report,
) -> Option<(Option<KeySource>, Option<KeyId<'n>>)> {
    if let Some((_, value)) = MappingFields::of(node).find(|(name, _)| *name == "secret") {
        report.error(value.at, "a secret does not belong in this file", SECRET_REMEDY);
        return None;
    }
    let fields = MappingFields::read(node, &KEY, report)?;
    let remedy = format!("use {}", listed(&ALGORITHMS.map(|(name, _)| name)));
    let algorithm = fields.require("algorithm", &remedy, report);
    let algorithm = algorithm.and_then(|node| read_algorithm(node, &remedy, report));
    let id = fields.or("id", None, |node| read_id(node, report).map(Some));
    let material = material(&fields, algorithm, report);
    let origin = material.and_then(|(field, node)| origin(field, node, report));
    let key = || {
        let (field, node) = material?;
        let (algorithm, id, origin) = (algorithm?, id?.map(|(id, _)| id.into()), origin?);
        let key = KeySource { algorithm, id, field, at: node.at, origin };
        key.check_given(report)
    };
    Some((key(), id.flatten()))
}

fn read_algorithm(node: &YamlNode<'_>, remedy: &str, report: &mut Report) -> Option<JwtAlgorithm> {
    let text = report.text(node, "`algorithm`", remedy)?;
    if let Some((_, algorithm)) = ALGORITHMS.iter().find(|(name, _)| *name == text) {
        return Some(*algorithm);
    }
    let found = Excerpt::of(text);
    let (message, remedy) = match nearest(text, ALGORITHMS.map(|(name, _)| name)) {
        _ if text.eq_ignore_ascii_case("none") => {
            (format!("`algorithm: {found}` lets anyone make tokens"), remedy.into())
        }
        _ if UNSUPPORTED.contains(&text) => {
            (format!("`algorithm: {found}` is not supported"), remedy.into())
        }
        Some(meant) => {
            (format!("`algorithm: {found}` is unknown"), format!("did you mean `{meant}`?"))
        }
        None => (format!("`algorithm: {found}` is unknown"), remedy.into()),
    };
    report.error(node.at, message, remedy);
    None
}

fn read_id<'n>(node: &'n YamlNode<'_>, report: &mut Report) -> Option<KeyId<'n>> {
    let remedy = "use what tokens have as `kid`, 1 to 256 characters";
    let text = report.text(node, "`id`", remedy)?;
    if text.is_empty() || text.chars().nth(MAX_ID_CHARS).is_some() {
        report.error(node.at, "an id that is empty or too long", remedy);
        return None;
    }
    Some((text, node.at))
}

/// Returns the one field that gives the key.
fn material<'n, 't>(
    fields: &MappingFields<'n, 't>,
    algorithm: Option<JwtAlgorithm>,
    report: &mut Report,
) -> Option<(&'static str, &'n YamlNode<'t>)> {
    let given = |field: &'static str| fields.get(field).map(|node| (field, node));
    let mut all = MATERIALS.into_iter().filter_map(given);
    let Some((field, node)) = all.next() else {
        if !MATERIALS.iter().any(|field| fields.may_have(field)) {
            let (message, remedy) = match algorithm {
                Some(JwtAlgorithm::Hs256) => ("a key without its secret", SECRET_REMEDY),
                Some(_) => ("a key without its public key", PUBLIC_REMEDY),
                None => ("a key without a secret or a public key", KEY.remedy),
            };
            report.error(fields.at, message, remedy);
        }
        return None;
    };
    if let Some((other, other_node)) = all.next() {
        let message = format!("`{field}` and `{other}` in one key");
        let remedy = "keep one of them; another key goes after a dash of its own";
        report.error(node.at.max(other_node.at), message, remedy);
        return None;
    }
    match (algorithm, field) {
        (Some(JwtAlgorithm::Hs256), "public_key" | "public_key_file") => {
            let message = format!("`{field}` for HS256, which has a secret");
            report.error(node.at, message, "use `algorithm: RS256` or `ES256`, or give the secret");
            None
        }
        (Some(_), "secret_file" | "secret_env") if algorithm != Some(JwtAlgorithm::Hs256) => {
            let message = format!("`{field}` for an algorithm that has a public key");
            report.error(node.at, message, "use `algorithm: HS256`, or give the public key");
            None
        }
        _ => Some((field, node)),
    }
}

fn origin(field: &'static str, node: &YamlNode<'_>, report: &mut Report) -> Option<KeyOrigin> {
    let remedy = if is_secret(field) { SECRET_REMEDY } else { PUBLIC_REMEDY };
    let text = report.text(node, &format!("`{field}`"), remedy)?;
    match field {
        _ if text.is_empty() => report.error(node.at, format!("`{field}` is empty"), remedy),
        "public_key" => return Some(KeyOrigin::Given(text.into())),
        "secret_env" if is_variable(text) => return Some(KeyOrigin::Variable(text.into())),
        // The value is not shown: it may be the secret.
        "secret_env" => {
            let message = "`secret_env` is not the name of a variable";
            let remedy = "name the variable that has the secret, like `JWT_SECRET`";
            report.error(node.at, message, remedy);
        }
        _ => return Some(KeyOrigin::File(text.into())),
    }
    None
}

fn is_secret(field: &str) -> bool {
    field.starts_with("secret")
}

fn is_variable(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.bytes().all(fits) && !text.starts_with(|first: char| first.is_ascii_digit())
}

impl KeySource {
    /// Returns the algorithm of a key without an id, which verifies tokens that name no key.
    pub(super) fn without_id(&self) -> Option<JwtAlgorithm> {
        self.id.is_none().then_some(self.algorithm)
    }

    /// Reads the key from its source. `read` returns the contents of a file by its path as written.
    pub(crate) fn fetch(
        self,
        read: impl FnOnce(&Path) -> io::Result<Vec<u8>>,
        variable: fn(&str) -> Option<OsString>,
        report: &mut Report,
    ) -> Option<JwtKeyConfig> {
        let KeySource { algorithm, id, field, at, origin } = self;
        let material = match origin {
            // Checked already.
            KeyOrigin::Given(bytes) => {
                return Some(JwtKeyConfig { algorithm, id, material: bytes });
            }
            KeyOrigin::Variable(name) => {
                let Some(value) = variable(&name) else {
                    let message = format!("the variable that `{field}` names is not set");
                    report.error(at, message, "set it in the environment of this process");
                    return None;
                };
                value.into_encoded_bytes()
            }
            KeyOrigin::File(path) => match read(&path) {
                Ok(bytes) if is_secret(field) => without_line_end(bytes),
                Ok(bytes) => bytes,
                Err(error) => {
                    let message = format!("`{field}` cannot be read: {error}");
                    report.error(at, message, remedy(field, &error));
                    return None;
                }
            },
        };
        refuse(check(algorithm, &material), field, at, report)?;
        Some(JwtKeyConfig { algorithm, id, material })
    }

    /// Refuses a key in the rules file that is not valid.
    fn check_given(self, report: &mut Report) -> Option<KeySource> {
        if let KeyOrigin::Given(bytes) = &self.origin {
            refuse(check(self.algorithm, bytes), self.field, self.at, report)?;
        }
        Some(self)
    }
}

/// Removes the line end that editors and `echo` leave.
fn without_line_end(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.pop_if(|last| *last == b'\n').is_some() {
        bytes.pop_if(|last| *last == b'\r');
    }
    bytes
}

fn refuse(
    checked: Result<(), KeyFault>,
    field: &str,
    at: Position,
    report: &mut Report,
) -> Option<()> {
    checked.map_err(|(fault, remedy)| report.error(at, format!("`{field}` {fault}"), remedy)).ok()
}

fn check(algorithm: JwtAlgorithm, bytes: &[u8]) -> Result<(), KeyFault> {
    match algorithm {
        JwtAlgorithm::Hs256 => check_secret(bytes)?,
        _ => check_pem(algorithm, bytes)?,
    }
    #[cfg(feature = "jwt")]
    usable::check(algorithm, bytes)?;
    Ok(())
}

fn check_secret(bytes: &[u8]) -> Result<(), KeyFault> {
    // As a secret, a public key would allow anyone to make tokens.
    if has(bytes, b"-----BEGIN") {
        let remedy = "use `algorithm: RS256` or `ES256` for a public key, or name a secret";
        return Err(("has a PEM, which is not a secret".into(), remedy));
    }
    if bytes.len() < MIN_SECRET_BYTES {
        let remedy = "use at least 32 that are random, as from `openssl rand -hex 32`";
        return Err(("has a secret of fewer than 32 bytes".into(), remedy));
    }
    Ok(())
}

/// Checks a PEM as far as possible without parsing the key.
fn check_pem(algorithm: JwtAlgorithm, bytes: &[u8]) -> Result<(), KeyFault> {
    let text = bytes.trim_ascii_start();
    if has(text, b"PRIVATE KEY-----") {
        let remedy = "use the public one, as from `openssl pkey -in KEY -pubout`";
        return Err(("has a private key".into(), remedy));
    }
    if text.starts_with(b"-----BEGIN CERTIFICATE-----") {
        let remedy = "use the key in it, as from `openssl x509 -in CERTIFICATE -noout -pubkey`";
        return Err(("has a certificate".into(), remedy));
    }
    let rsa = text.strip_prefix(b"-----BEGIN RSA PUBLIC KEY-----");
    if rsa.is_some() && algorithm != JwtAlgorithm::Rs256 {
        return Err(other_key(algorithm, JwtAlgorithm::Rs256));
    }
    match rsa.or_else(|| text.strip_prefix(b"-----BEGIN PUBLIC KEY-----")) {
        None => {
            let remedy = "use a public key that begins with `-----BEGIN PUBLIC KEY-----`";
            Err(("has no PEM".into(), remedy))
        }
        Some([b'\r' | b'\n', ..]) => Ok(()),
        Some(_) => {
            let remedy = "keep its lines: write them indented, after `public_key: |`";
            Err(("has a PEM that is all one line".into(), remedy))
        }
    }
}

/// Returns the error for a PEM whose key is for another algorithm than the given one.
fn other_key(given: JwtAlgorithm, fits: JwtAlgorithm) -> KeyFault {
    let (kind, remedy) = match fits {
        // Does not occur: no PEM is a secret.
        JwtAlgorithm::Hs256 => ("a secret", "use `algorithm: HS256`"),
        JwtAlgorithm::Rs256 => ("an RSA key", "use `algorithm: RS256`"),
        JwtAlgorithm::Es256 => ("a key on the curve P-256", "use `algorithm: ES256`"),
        JwtAlgorithm::Es384 => ("a key on the curve P-384", "use `algorithm: ES384`"),
        JwtAlgorithm::EdDsa => ("an Ed25519 key", "use `algorithm: EdDSA`"),
    };
    let given = ALGORITHMS.iter().find(|(_, own)| *own == given).map_or("", |(name, _)| name);
    (format!("has {kind}, and {given} needs another").into(), remedy)
}

fn has(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Returns the remedy for a file that cannot be read.
fn remedy(field: &str, error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied => "let this user read it",
        ErrorKind::FileTooLarge => "name the file of the key alone",
        ErrorKind::Unsupported if is_secret(field) => "use `Config::load`, or `secret_env`",
        ErrorKind::Unsupported => "use `Config::load`, or put the key under `public_key`",
        _ => "name a file that has the key, relative to this one",
    }
}
