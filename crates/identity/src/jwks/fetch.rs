//! One fetch of a key set, with bounds.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use reqwest::header::{ACCEPT, HeaderValue};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Client, StatusCode, Url};

use crate::config::MAX_JWKS_BYTES;
use crate::jwt::{JwksError, KeySet};

/// The longest time of a fetch, from the lookup of the name to the last byte.
const TIMEOUT: Duration = Duration::from_secs(10);

const MAX_REDIRECTS: usize = 3;

/// The longest text of an error. Some of it may be the server's.
const MAX_ERROR_CHARS: usize = 200;

/// Fetches a set from its URL.
pub(super) struct Fetcher {
    client: Client,
    url: Url,
}

/// Why a set was not fetched. Shows only the status of the server's response.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FetchError {
    #[error("the issuer answered with status {}", .0.as_u16())]
    Status(StatusCode),
    #[error("the issuer did not answer within 10 s")]
    Timeout,
    #[error("the issuer redirects to another host, or too often")]
    Redirect,
    #[error("{0}")]
    Unreachable(String),
    #[error(transparent)]
    Set(#[from] JwksError),
}

impl Fetcher {
    pub(super) fn new(url: Url) -> Result<Fetcher, FetchError> {
        let client = Client::builder()
            .timeout(TIMEOUT)
            .redirect(Policy::custom(|attempt| match may_follow(&attempt) {
                true => attempt.follow(),
                false => attempt.error(RefusedRedirect),
            }))
            .referer(false)
            // No connection is kept, because it would be idle for minutes.
            .pool_max_idle_per_host(0)
            .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Fetcher { client, url })
    }

    pub(super) async fn fetch(&self) -> Result<KeySet, FetchError> {
        let accept = HeaderValue::from_static("application/jwk-set+json, application/json");
        let mut response = self.client.get(self.url.clone()).header(ACCEPT, accept).send().await?;
        if response.status() != StatusCode::OK {
            return Err(FetchError::Status(response.status()));
        }
        // Counts the bytes that arrive: the length that the server announces may be wrong.
        let mut json = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if json.len() + chunk.len() > MAX_JWKS_BYTES {
                return Err(JwksError::TooLarge.into());
            }
            json.extend_from_slice(&chunk);
        }
        Ok(KeySet::parse(&json)?)
    }
}

/// Whether a redirect stays on the host and port of the operator's URL, or leads from `http` to `https` on its host.
fn may_follow(attempt: &Attempt<'_>) -> bool {
    let Some(first) = attempt.previous().first() else { return false };
    let to = attempt.url();
    let is_upgrade = first.scheme() == "http"
        && to.scheme() == "https"
        && first.host() == to.host()
        && to.port().is_none();
    attempt.previous().len() <= MAX_REDIRECTS && (first.origin() == to.origin() || is_upgrade)
}

#[derive(Debug)]
struct RefusedRedirect;

impl fmt::Display for RefusedRedirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused redirect")
    }
}

impl Error for RefusedRedirect {}

impl From<reqwest::Error> for FetchError {
    fn from(error: reqwest::Error) -> FetchError {
        if error.is_redirect() {
            return FetchError::Redirect;
        }
        if error.is_timeout() {
            return FetchError::Timeout;
        }
        // The URL may have a secret in its query.
        let error = error.without_url();
        let mut config = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            config += &format!(": {cause}");
            source = cause.source();
        }
        FetchError::Unreachable(one_line(&config))
    }
}

/// Returns the beginning of a text, with unprintable characters escaped.
fn one_line(text: &str) -> String {
    text.chars().take(MAX_ERROR_CHARS).flat_map(char::escape_debug).collect()
}
