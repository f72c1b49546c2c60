//! Clients known by an API key.

use std::sync::OnceLock;

use super::RequestHead;

/// A request's API key, looked up at most once.
#[derive(Default)]
pub(super) struct ApiKey {
    /// The inner `None` means that the key is not known.
    tier: OnceLock<Option<String>>,
}

impl RequestHead<'_> {
    /// The request's API key, if it is [known](crate::Identity::verify_api_keys). The keys in the table of a rules file belong to
    /// the rules, and are not known here.
    pub fn api_key(&self) -> Option<&str> {
        self.tier().and_then(|_| self.claimed_api_key())
    }

    /// The tier of the request's API key, if the key is [known](crate::Identity::verify_api_keys).
    pub fn tier(&self) -> Option<&str> {
        let ask = || self.identity.tier_of_api_key.as_ref()?(self.claimed_api_key()?);
        self.found.api_key.tier.get_or_init(ask).as_deref()
    }

    /// Returns the API key that the client claims, known or not. `None` for a request with two.
    pub fn claimed_api_key(&self) -> Option<&str> {
        let mut lines = self.headers.get_all(&self.identity.api_key_header).iter();
        match (lines.next(), lines.next()) {
            (Some(key), None) => key.to_str().ok(),
            _ => None,
        }
    }
}
