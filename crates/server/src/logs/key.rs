//! A key as it may be shown in the log.

use std::fmt::{self, Write};

/// The most characters of a key that are shown.
const MAX_CHARS: usize = 128;

/// The beginning of a part of a key that is an API key.
const API_KEY: &str = "api_key=";

/// The characters of an API key that are shown.
const API_KEY_CHARS: usize = 4;

/// A key as the log shows it: the first 128 characters, only the first four of an API key, and everything that does not
/// print escaped. The page shows keys by the same rules.
///
/// `api_key=k_12…,path=/login`, `user=\u{1b}[31m`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShownKey<'k>(pub(crate) &'k [u8]);

impl fmt::Display for ShownKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Enough bytes for the characters shown. The rest is not decoded, because a key may have 1 MiB.
        let most = self.0.len().min(MAX_CHARS * 8);
        let text = String::from_utf8_lossy(&self.0[..most]);
        let shown = hide_api_keys(&text);
        for letter in shown.chars().take(MAX_CHARS) {
            match letter {
                '"' | '\'' => f.write_char(letter)?,
                _ => write!(f, "{}", letter.escape_debug())?,
            }
        }
        let is_cut = most < self.0.len() || shown.chars().nth(MAX_CHARS).is_some();
        if is_cut { f.write_char('…') } else { Ok(()) }
    }
}

/// Returns the key with `…` in place of all but the first characters of each API key.
fn hide_api_keys(key: &str) -> String {
    let parts = key.split(',').map(|part| {
        let api_key = part.strip_prefix(API_KEY).unwrap_or_default();
        match api_key.char_indices().nth(API_KEY_CHARS) {
            // OK because `at` is the start of a character of the key.
            Some((at, _)) => format!("{API_KEY}{}…", &api_key[..at]),
            None => part.to_owned(),
        }
    });
    parts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_escaped_and_api_keys_cut() {
        for (key, want) in [
            (&b"ip=203.0.113.9"[..], "ip=203.0.113.9"),
            (b"", ""),
            (b"api_key=k_123456", "api_key=k_12…"),
            (b"api_key=k_12", "api_key=k_12"),
            (b"ip=1,api_key=secret,path=/a", "ip=1,api_key=secr…,path=/a"),
            ("api_key=ключи".as_bytes(), "api_key=ключ…"),
            (b"user=\x1b[31m\r\n\0\\\"", "user=\\u{1b}[31m\\r\\n\\0\\\\\""),
            (b"user=\xff", "user=\u{fffd}"),
            ("user=\u{202e}".as_bytes(), "user=\\u{202e}"),
        ] {
            assert_eq!(ShownKey(key).to_string(), want);
        }
    }

    #[test]
    fn long_keys_are_cut() {
        let long = "x".repeat(1 << 20);
        assert_eq!(ShownKey(long.as_bytes()).to_string(), format!("{}…", "x".repeat(MAX_CHARS)));
        assert_eq!(ShownKey(&[b'x'; MAX_CHARS]).to_string(), "x".repeat(MAX_CHARS));
    }
}
