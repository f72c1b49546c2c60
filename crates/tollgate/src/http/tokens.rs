//! Tokens that requests carry: which are believed, and what becomes of the others.

use std::cell::OnceCell;
use std::sync::Arc;

use ::http::header::{AUTHORIZATION, HeaderMap};
use tollgate_core::Limit;

use super::head::RequestHead;
use super::identity::NOWHERE;
use super::jwt::{Claims, InvalidToken, Jwt, Token};
use crate::clock::Clock;
use crate::error::Error;
use crate::limiter::Limiter;
use crate::rules::{Asked, Attributes};
use crate::scope::Scope;

/// How often an address may have tokens verified that turn out bad, unless said otherwise.
const VERIFICATIONS: &str = "token-bucket capacity=20 refill=5/s";

/// For some 80,000 addresses; more share what is left.
const MAX_BYTES: usize = 4 << 20;

/// Which tokens are believed, and what becomes of the others.
#[derive(Clone, Debug)]
pub(super) struct Tokens {
    jwt: Jwt,
    pub(super) on_invalid: OnInvalid,
    /// By address, how many tokens may turn out bad.
    verifications: Scope,
    pub(super) clock: Clock,
}

/// What becomes of a request whose token is not genuine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnInvalid {
    /// It is as if there were none.
    ByAddress,
    Unauthorized,
}

impl Tokens {
    pub(super) fn new(jwt: Jwt) -> Result<Tokens, Error> {
        let verifications = verifications(VERIFICATIONS.parse()?)?;
        let (on_invalid, clock) = (OnInvalid::ByAddress, Clock::system());
        Ok(Tokens { jwt, on_invalid, verifications, clock })
    }

    pub(super) fn with_verifications(self, limit: Limit) -> Result<Tokens, Error> {
        Ok(Tokens { verifications: verifications(limit)?, ..self })
    }

    /// Looks at a token. One that is new is verified, if its address has not brought too many bad ones.
    fn look(&self, token: &str, address: &str) -> Token {
        let now_us = self.clock.wall_us();
        let mut receipt = None;
        let looked = self.jwt.verify(token, now_us, || {
            let charged = self.verifications.check(address).at_us(now_us).now();
            receipt = charged.ok().and_then(|decision| decision.into_receipt());
            receipt.is_some()
        });
        if let (Token::Verified(_), Some(receipt)) = (&looked, receipt) {
            // It was a good one, which nobody pays for. In memory it cannot fail.
            let _ = self.verifications.refund_now(address, receipt);
        }
        looked
    }
}

fn verifications(limit: Limit) -> Result<Scope, Error> {
    Limiter::builder().max_bytes(MAX_BYTES).build().scope("token-verifications", limit)
}

/// A request's token, once it was looked at.
#[derive(Debug, Default)]
pub(super) struct Bearer {
    /// `None` if it has none.
    token: OnceCell<Option<Token>>,
}

impl RequestHead<'_> {
    fn token(&self) -> Option<&Token> {
        let look = || {
            let tokens = self.identity.tokens.as_ref()?;
            let address = self.address().map_or(NOWHERE, |address| address.as_str());
            Some(tokens.look(bearer(self.headers())?, address))
        };
        self.bearer.token.get_or_init(look).as_ref()
    }

    /// What its token says, if it has one that is genuine.
    pub fn claims(&self) -> Option<&Arc<Claims>> {
        match self.token()? {
            Token::Verified(claims) => Some(claims),
            Token::Invalid(_) | Token::NotVerified => None,
        }
    }

    /// What is wrong with its token, if such requests are not wanted.
    pub(crate) fn unwelcome(&self) -> Option<InvalidToken> {
        let tokens = self.identity.tokens.as_ref()?;
        match (tokens.on_invalid, self.token()?) {
            (OnInvalid::Unauthorized, Token::Invalid(invalid)) => Some(*invalid),
            _ => None,
        }
    }

    pub(super) fn with_claims<'a>(
        &'a self,
        attributes: Attributes<'a>,
        asked: &'a Asked,
    ) -> Attributes<'a> {
        asked.claims().fold(attributes, |attributes, (attribute, path)| match self.claim(path) {
            Some(value) => attributes.with(attribute, value),
            None => attributes,
        })
    }
}

/// The token of `Authorization: Bearer …`. Two of them are nobody's.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    let (line, None) = (lines.next()?, lines.next()) else { return None };
    let (scheme, token) = line.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start())
}
