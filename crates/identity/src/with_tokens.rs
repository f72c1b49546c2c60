//! The tokens that an identity accepts, and the claims of a request's token.

use std::sync::Arc;

use tollgate_core::Limit;
use tollgate_limiter::Error;

use crate::config::OnInvalid;
use crate::head::RequestHead;
use crate::identity::Identity;
use crate::jwt::{Claims, Jwks, Jwt};

impl Identity {
    /// Accepts the claims of tokens that these keys have signed: `Authorization: Bearer …`.
    ///
    /// A request with a token that is not genuine, expired or not verified is treated like one without a token, and limited
    /// by its address, unless such requests are [refused](Self::refuse_invalid_tokens). A token without `exp` is rejected
    /// too, which is logged; [`rejected_tokens`](Self::rejected_tokens) counts all rejected tokens.
    #[must_use]
    pub fn jwt(mut self, jwt: Jwt) -> Identity {
        self.tokens = self.tokens.with_jwt(jwt);
        self
    }

    /// Answers 401 to requests with a token that is not genuine, expired or unreadable; and 429 to requests of an
    /// address that has sent [too many](Self::token_verifications) such tokens.
    #[must_use]
    pub fn refuse_invalid_tokens(mut self) -> Identity {
        self.tokens.on_invalid = OnInvalid::Unauthorized;
        self
    }

    /// Limits how many tokens of an address may be verified, which computes their signature, and turn out bad:
    /// `token-bucket capacity=20 refill=5/s` by default. Beyond that allowance, new tokens of the address are not verified,
    /// so that bad tokens cost little, and their requests are limited by address. Tokens that were found good before are
    /// still accepted.
    ///
    /// Many clients may share an address, so each request with a good token earns its address credit for one more
    /// verification, up to 200. A bad token that is repeated is verified once.
    ///
    /// Tokens that are bad whatever their signature is, such as another system's, need no verification. If bad tokens are
    /// [refused](Self::refuse_invalid_tokens), such tokens are charged too: each 401 costs one verification.
    pub fn token_verifications<L>(mut self, limit: L) -> Result<Identity, Error>
    where
        L: TryInto<Limit>,
        Error: From<L::Error>,
    {
        self.tokens = self.tokens.with_verifications(limit.try_into()?)?;
        Ok(self)
    }

    /// Returns why tokens were rejected, and how many for each reason: `no_expiry`, `expired`, `signature` and so on, and
    /// `not_verified` after too many bad tokens of an address. Empty if no tokens are verified.
    pub fn rejected_tokens(&self) -> Vec<(&'static str, u64)> {
        self.tokens.rejected()
    }

    /// Returns the key sets that tokens are verified with: their keys, and whether they are fresh.
    pub fn key_sets(&self) -> &[Jwks] {
        self.tokens.key_sets()
    }
}

impl RequestHead<'_> {
    /// Returns the claims of the request's token, if the token is genuine.
    pub fn claims(&self) -> Option<&Arc<Claims>> {
        self.identity.tokens.claims(self.token_context())
    }
}
