//! Tokens that requests carry: which are believed, and what becomes of the others.

use std::cell::OnceCell;
use std::sync::Arc;

use ::http::header::{AUTHORIZATION, HeaderMap};
use tollgate_core::{Checked, Limit};

use super::head::RequestHead;
use super::identity::NOWHERE;
use super::jwt::{Claims, InvalidToken, Jwt, Token};
use super::outcome::Outcome;
use super::problem::Reason;
use crate::clock::Clock;
use crate::decision::Decision;
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
    fn look(&self, token: &str, address: &str) -> Looked {
        let now_us = self.clock.wall_us();
        let mut charged = None;
        let looked = self.jwt.verify(token, now_us, || {
            charged = self.verifications.check(address).at_us(now_us).now().ok();
            charged.as_ref().is_some_and(Decision::is_allowed)
        });
        match (looked, charged) {
            (Token::Verified(claims), charged) => {
                if let Some(receipt) = charged.and_then(Decision::into_receipt) {
                    // It was a good one, which nobody pays for. In memory it cannot fail.
                    let _ = self.verifications.refund_at_us(address, now_us, receipt);
                }
                Looked::Verified(claims)
            }
            (Token::Invalid(invalid), _) => Looked::Invalid(invalid),
            (Token::NotVerified, refused) => Looked::Untried(refused.map(|own| *own.decided())),
        }
    }
}

/// What a token comes to.
#[derive(Debug)]
enum Looked {
    Verified(Arc<Claims>),
    Invalid(InvalidToken),
    /// Nobody looked: its address has brought too many bad ones.
    Untried(Option<tollgate_core::Decision>),
}

/// A token that keeps its request from going.
#[derive(Debug)]
pub(crate) enum Unwelcome {
    Invalid(InvalidToken),
    /// After too many bad ones of its address.
    Untried {
        verifications: Scope,
        decision: Decision,
    },
}

impl Unwelcome {
    pub(crate) fn reason(&self) -> Reason<'_> {
        match self {
            Unwelcome::Invalid(invalid) => Reason::Token(*invalid),
            Unwelcome::Untried { verifications, decision } => {
                Reason::Quota(Outcome::of_limit(verifications, decision, 1))
            }
        }
    }
}

fn verifications(limit: Limit) -> Result<Scope, Error> {
    Limiter::builder().max_bytes(MAX_BYTES).build().scope("token-verifications", limit)
}

/// A request's token, once it was looked at.
#[derive(Debug, Default)]
pub(super) struct Bearer {
    /// `None` if it has none.
    looked: OnceCell<Option<Looked>>,
}

impl RequestHead<'_> {
    fn looked(&self) -> Option<&Looked> {
        let look = || {
            let tokens = self.identity.tokens.as_ref()?;
            let address = self.address().map_or(NOWHERE, |address| address.as_str());
            Some(tokens.look(bearer(self.headers())?, address))
        };
        self.bearer.looked.get_or_init(look).as_ref()
    }

    /// What its token says, if it has one that is genuine.
    pub fn claims(&self) -> Option<&Arc<Claims>> {
        match self.looked()? {
            Looked::Verified(claims) => Some(claims),
            Looked::Invalid(_) | Looked::Untried(_) => None,
        }
    }

    /// What is wrong with its token, if such requests are not wanted.
    pub(crate) fn unwelcome(&self) -> Option<Unwelcome> {
        let Tokens { on_invalid, verifications, .. } = self.identity.tokens.as_ref()?;
        if *on_invalid == OnInvalid::ByAddress {
            return None;
        }
        match *self.looked()? {
            Looked::Verified(_) | Looked::Untried(None) => None,
            Looked::Invalid(invalid) => Some(Unwelcome::Invalid(invalid)),
            Looked::Untried(Some(decision)) => Some(Unwelcome::Untried {
                verifications: verifications.clone(),
                decision: Checked { decision, receipt: None }.into(),
            }),
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
