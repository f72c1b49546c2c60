//! Replaces `tokens` in builds without the feature `jwt`: no token is accepted.

use std::borrow::Cow;

use ::http::HeaderMap;
use tollgate_limiter::{Clock, Error};

use crate::config::JwtConfig;
use crate::unwelcome::Unwelcome;

/// No tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens {}

/// No token of a request.
#[derive(Debug, Default)]
pub(crate) struct Bearer {}

/// The token of a request, which is ignored.
#[derive(Clone, Copy)]
#[expect(dead_code, reason = "the same fields as with tokens")]
pub(crate) struct TokenSource<'b> {
    pub(crate) bearer: &'b Bearer,
    pub(crate) headers: &'b HeaderMap,
    pub(crate) address: &'b str,
}

impl Tokens {
    pub(crate) fn configured(_: &JwtConfig, _: Option<&Tokens>) -> Result<Tokens, Error> {
        let problem = "tokens need the library's feature `jwt`; build with it, or leave out `jwt`";
        Err(Error::Setting { setting: "identity", problem: problem.to_owned() })
    }

    pub(crate) fn on_clock(self, _: &Clock) -> Tokens {
        self
    }

    pub(crate) fn counting_with(self, _: &Tokens) -> Tokens {
        self
    }

    pub(crate) fn start(&self) {}

    pub(crate) fn problem(&self) -> Option<String> {
        None
    }

    pub(crate) fn claim<'b>(&self, _: TokenSource<'b>, _: &str) -> Option<Cow<'b, str>> {
        None
    }

    pub(crate) fn unwelcome(&self, _: TokenSource<'_>) -> Option<Unwelcome> {
        None
    }
}
