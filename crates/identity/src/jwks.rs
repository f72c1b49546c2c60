//! Keys that verify tokens and are fetched from their issuer, on a separate thread.
//!
//! - `schedule`: when to fetch; `fetch`: one fetch; `refresh`: the thread that fetches

mod fetch;
mod refresh;
mod schedule;
#[cfg(test)]
mod tests;

use std::time::Duration;

use reqwest::Url;

use self::refresh::UrlRefresh;
use super::jwt::{Jwks, JwksError};
use crate::config::JWKS_MAX_AGE;

/// The longest URL.
const MAX_URL_CHARS: usize = 2_048;

const MIN_MAX_AGE: Duration = Duration::from_secs(1);
const MAX_STALE: Duration = Duration::from_secs(24 * 60 * 60);

/// Where a key set is fetched from, and how old it may get: made by [`Jwks::url`].
///
/// The set is fetched on a separate thread, never on the path of a request. A token whose key was not fetched yet is not
/// verified, and its request is limited by address. The set is fetched again
///
/// - before it is [`max_age`](Self::max_age) old;
/// - when a token names a key that is not in it, at most once in 30 s;
/// - after a fetch that failed: first after 5 s, later every minute. Meanwhile the keys do not change, until they are
///   [`max_stale`](Self::max_stale) old and are dropped.
///
/// A fetch takes 10 s at most, reads 256 KiB at most, and follows redirects on the same host only. Proxies of the
/// environment (`HTTPS_PROXY`) are used; the system's certificates are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "nothing is fetched until it is started"]
pub struct JwksUrl {
    url: Url,
    max_age: Duration,
    max_stale: Duration,
}

impl Jwks {
    /// Returns the source of a set at a URL, as issuers publish it: `https://id.example.com/.well-known/jwks.json`.
    ///
    /// ```no_run
    /// use tollgate::http::{Jwks, Jwt};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let keys = Jwks::url("https://id.example.com/.well-known/jwks.json")?.start();
    /// let jwt = Jwt::from_jwks(keys).issuer("https://id.example.com").audience("api");
    /// # Ok(())
    /// # }
    /// ```
    pub fn url(url: &str) -> Result<JwksUrl, JwksError> {
        if url.len() > MAX_URL_CHARS {
            return Err(JwksError::Url);
        }
        let url = Url::parse(url).map_err(|_| JwksError::Url)?;
        let has_credentials = !url.username().is_empty() || url.password().is_some();
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() || has_credentials {
            return Err(JwksError::Url);
        }
        Ok(JwksUrl { url, max_age: JWKS_MAX_AGE, max_stale: MAX_STALE })
    }
}

impl JwksUrl {
    /// Sets how old the keys may get while the issuer answers: 10 minutes by default, at least a second. A
    /// key that the issuer withdraws is trusted for up to this long.
    pub fn max_age(self, max_age: Duration) -> JwksUrl {
        JwksUrl { max_age: max_age.max(MIN_MAX_AGE), ..self }
    }

    /// Sets how old the keys may get while the issuer does not answer: 24 hours by default. After that they are
    /// dropped, and tokens are not verified any more.
    ///
    /// Clients should keep their identity while an issuer is down for hours; but a withdrawn key must not count for ever when
    /// an attacker blocks the fetches.
    pub fn max_stale(self, max_stale: Duration) -> JwksUrl {
        JwksUrl { max_stale, ..self }
    }

    /// Begins to fetch the set. It is fetched until the last clone of the returned value is dropped.
    pub fn start(self) -> Jwks {
        let jwks = self.not_started();
        jwks.start();
        jwks
    }

    /// Returns the keys, which are not fetched before [`Jwks::start`] is called.
    pub(super) fn not_started(self) -> Jwks {
        Jwks::fetched_by(UrlRefresh::new(self))
    }

    /// Returns the URL for logs and messages: without its query, which may contain a secret.
    fn shown(&self) -> String {
        let shown = format!("{}{}", self.url.origin().ascii_serialization(), self.url.path());
        shown.chars().take(200).collect()
    }
}
