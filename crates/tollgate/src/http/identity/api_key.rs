//! Clients known by an API key.

use std::sync::{Arc, OnceLock};

use super::Identity;
use crate::http::head::RequestHead;
use crate::rules::Attributes;

/// The tier of an API key that is known.
pub(super) type TierOf = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// A request's API key, once somebody asked about it.
#[derive(Default)]
pub(in crate::http) struct ApiKey {
    /// `None` if it is not known.
    tier: OnceLock<Option<String>>,
}

impl RequestHead<'_> {
    /// Its API key, if it is [known](Identity::verify_api_keys). Those in the table of a file of rules are the
    /// rules' own, and not known here.
    pub fn api_key(&self) -> Option<&str> {
        self.tier().and_then(|_| self.sent_api_key())
    }

    /// The tier of its API key, if that is [known](Identity::verify_api_keys).
    pub fn tier(&self) -> Option<&str> {
        let ask = || self.identity.tier_of_api_key.as_ref()?(self.sent_api_key()?);
        self.found.api_key.tier.get_or_init(ask).as_deref()
    }

    pub(super) fn with_api_key<'a>(&'a self, attributes: Attributes<'a>) -> Attributes<'a> {
        match (self.sent_api_key(), self.tier()) {
            (None, _) => attributes,
            (Some(key), Some(tier)) => attributes.with("api_key", key).with("tier", tier),
            (Some(key), None) => attributes.claimed("api_key", key),
        }
    }

    /// What it says that its key is. Two keys are nobody's.
    fn sent_api_key(&self) -> Option<&str> {
        let Identity { api_key_header, .. } = self.identity;
        let mut lines = self.headers().get_all(api_key_header).iter();
        match (lines.next(), lines.next()) {
            (Some(key), None) => key.to_str().ok(),
            _ => None,
        }
    }
}
