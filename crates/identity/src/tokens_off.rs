//! Replaces `tokens` in builds without the feature `jwt`: no token is accepted.

use std::borrow::Cow;

use ::http::HeaderMap;
use tollgate_limiter::{Clock, Error};

use crate::config::JwtConfig;
use crate::token_refusal::TokenRefusal;

// The names that the rest of the crate uses.
pub(crate) use NoRequestToken as RequestToken;
pub(crate) use NoTokenVerifier as TokenVerifier;
pub(crate) use UnusedTokenContext as TokenContext;

/// Accepts no token.
#[derive(Clone, Debug, Default)]
pub(crate) struct NoTokenVerifier {}

/// Takes the place of the result for a request's token.
#[derive(Debug, Default)]
pub(crate) struct NoRequestToken {}

/// The headers and the address of a request, which are ignored.
#[derive(Clone, Copy)]
#[expect(dead_code, reason = "the same fields as with tokens")]
pub(crate) struct UnusedTokenContext<'b> {
    pub(crate) token: &'b RequestToken,
    pub(crate) headers: &'b HeaderMap,
    pub(crate) address: &'b str,
}

impl NoTokenVerifier {
    pub(crate) fn configured(
        _: &JwtConfig,
        _: Option<&TokenVerifier>,
    ) -> Result<TokenVerifier, Error> {
        let problem = "tokens need the library's feature `jwt`; build with it, or leave out `jwt`";
        Err(Error::Setting { setting: "identity", problem: problem.to_owned() })
    }

    pub(crate) fn on_clock(self, _: &Clock) -> TokenVerifier {
        self
    }

    pub(crate) fn with_counts_of(self, _: &TokenVerifier) -> TokenVerifier {
        self
    }

    pub(crate) fn start(&self) {}

    pub(crate) fn problem(&self) -> Option<String> {
        None
    }

    pub(crate) fn claim<'b>(&self, _: TokenContext<'b>, _: &str) -> Option<Cow<'b, str>> {
        None
    }

    pub(crate) fn refusal(&self, _: TokenContext<'_>) -> Option<TokenRefusal> {
        None
    }
}
