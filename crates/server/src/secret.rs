//! A text that is neither shown nor logged.

use std::ffi::OsStr;
use std::fmt;
use std::str::FromStr;

use clap::builder::{TypedValueParser, ValueParserFactory};
use clap::error::ErrorKind;
use clap::{Arg, Command};
use subtle::ConstantTimeEq;

/// A text that is neither shown nor logged.
#[derive(Clone)]
pub(crate) struct Secret(String);

impl Secret {
    /// Whether that is it. How long it takes says nothing but how long the two are.
    pub(crate) fn is(&self, shown: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(shown).into()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl FromStr for Secret {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Secret, &'static str> {
        match text.len() {
            0 => Err("empty; unset it, or use at least 16 letters"),
            1..16 => Err(
                "too easily guessed; use at least 16 letters, such as of `openssl rand -hex 32`",
            ),
            _ => Ok(Secret(text.to_owned())),
        }
    }
}

impl ValueParserFactory for Secret {
    type Parser = SecretParser;

    fn value_parser() -> SecretParser {
        SecretParser
    }
}

/// Does not repeat in an error what it was given, as clap's own parsers do.
#[derive(Clone)]
pub(crate) struct SecretParser;

impl TypedValueParser for SecretParser {
    type Value = Secret;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Secret, clap::Error> {
        let secret = value.to_str().ok_or("is not UTF-8").and_then(Secret::from_str);
        secret.map_err(|problem| {
            let flag = arg.map(ToString::to_string).unwrap_or_default();
            let message = format!("invalid value for '{flag}': {problem}\n");
            clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
