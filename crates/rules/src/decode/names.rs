//! The texts that may be names.

use tollgate_core::Excerpt;

use super::fields::Naming;
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::YamlNode;

const MAX_NAME_CHARS: usize = 64;
const MAX_LONG_CHARS: usize = 128;

/// A kind of name, and the texts that are allowed.
#[derive(Clone, Copy)]
pub struct NameKind {
    /// The noun in messages, with its article.
    pub(super) noun: &'static str,
    fits: fn(&str) -> bool,
    remedy: &'static str,
    naming: Naming,
}

const NAME_REMEDY: &str = "use 1 to 64 letters, digits, `-`, `_` and `.`";
const ATTRIBUTE_REMEDY: &str = "use 1 to 128 characters that print, and no spaces, like `ip`";
const HEADER_REMEDY: &str = "use 1 to 64 letters, digits and `-`, like `x-tenant`";
const DOMAIN_REMEDY: &str =
    "use 1 to 128 characters that print, and neither spaces nor `/`, like `api`";

pub(super) const LIMIT: NameKind =
    NameKind { noun: "a limit", fits: is_name, remedy: NAME_REMEDY, naming: Naming::Shown };
pub(super) const RULE: NameKind = NameKind { noun: "a rule", ..LIMIT };
pub(super) const TIER: NameKind = NameKind { noun: "a tier", ..LIMIT };
pub(super) const NETWORKS: NameKind = NameKind { noun: "networks", ..LIMIT };
/// A tier next to an API key; the API key may have been written in its place by mistake.
pub(super) const TIER_OF_KEY: NameKind = NameKind { naming: Naming::Hidden, ..TIER };
/// Names of attributes.
pub const ATTRIBUTE: NameKind = NameKind {
    noun: "an attribute",
    fits: |text| is_long_name(text, |_| true),
    remedy: ATTRIBUTE_REMEDY,
    ..LIMIT
};
/// Names of domains.
pub const DOMAIN: NameKind = NameKind {
    noun: "a domain",
    fits: |text| is_long_name(text, |letter| letter != '/'),
    remedy: DOMAIN_REMEDY,
    ..LIMIT
};
pub(super) const HEADER: NameKind =
    NameKind { noun: "a header", fits: is_header, remedy: HEADER_REMEDY, ..LIMIT };
/// A header next to an API key; the API key may have been written in its place by mistake.
pub(super) const HEADER_OF_KEY: NameKind = NameKind { naming: Naming::Hidden, ..HEADER };

impl NameKind {
    /// Returns the text if it may be such a name; reports it otherwise.
    pub fn check<'n>(self, text: &'n str, at: Position, report: &mut Report) -> Option<&'n str> {
        if (self.fits)(text) {
            return Some(text);
        }
        let message = match self.naming {
            _ if text.is_empty() => format!("an empty text cannot be the name of {}", self.noun),
            Naming::Shown => format!("`{}` cannot be the name of {}", Excerpt::of(text), self.noun),
            Naming::Hidden => format!("this cannot be the name of {}", self.noun),
        };
        report.error(at, message, self.remedy);
        None
    }

    /// Reads a node that has such a name.
    pub(super) fn read<'n>(
        self,
        node: &'n YamlNode<'_>,
        name: &str,
        report: &mut Report,
    ) -> Option<&'n str> {
        let text = report.text(node, name, self.remedy)?;
        self.check(text, node.at, report)
    }
}

fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=MAX_NAME_CHARS).contains(&text.len()) && text.bytes().all(fits)
}

/// Returns whether a text is what HTTP calls a token.
fn is_header(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    (1..=MAX_NAME_CHARS).contains(&text.len()) && text.bytes().all(fits)
}

fn is_long_name(text: &str, fits: fn(char) -> bool) -> bool {
    let prints = |letter: char| {
        // A character that `escape_debug` escapes does not print, except quotes and backslashes.
        let is_printed = letter.escape_debug().len() == 1 || matches!(letter, '"' | '\'' | '\\');
        is_printed && !letter.is_whitespace() && fits(letter)
    };
    (1..=MAX_LONG_CHARS).contains(&text.chars().take(MAX_LONG_CHARS + 1).count())
        && text.chars().all(prints)
}
