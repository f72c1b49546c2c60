//! A text that is neither shown nor logged.

use std::fmt;
use std::str::FromStr;

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
            0..16 => Err(
                "too easily guessed; use at least 16 letters, such as of `openssl rand -hex 32`",
            ),
            _ => Ok(Secret(text.to_owned())),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
