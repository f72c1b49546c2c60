//! A text that is never printed or logged.

use std::ffi::OsStr;
use std::fmt;
use std::str::FromStr;

use clap::builder::{TypedValueParser, ValueParserFactory};
use clap::error::ErrorKind;
use clap::{Arg, Command};
use subtle::ConstantTimeEq;

/// A text of at least 16 bytes that is never printed or logged.
#[derive(Clone)]
pub(crate) struct Secret(String);

impl Secret {
    /// Returns whether `candidate` equals the secret. The time that this takes depends only on the two lengths.
    pub(crate) fn is(&self, candidate: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(candidate).into()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl FromStr for Secret {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Secret, &'static str> {
        match text.len() {
            0 => Err("empty; unset it, or use at least 16 characters"),
            1..16 => Err(
                "too easily guessed; use at least 16 characters, for example the output of `openssl rand \
                 -hex 32`",
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

/// Parses a secret. Unlike clap's own parsers, it does not repeat the value in an error.
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
