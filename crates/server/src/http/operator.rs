//! Operators, whose requests may read and reset keys.
//!
//! - `local`: finds requests of this machine, which count as an operator's if there is no operator token

mod local;

use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts};
use hyper::header::AUTHORIZATION;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request};
use serde::Serialize;
use tollgate::http::{ClientAddress, Ipv6Prefix, Peer, RequestHead};

use super::ApiProblem;
use crate::operators::{Attempt, OperatorAccess};
use crate::ruleset::RuleSet;

/// An operator's request: it has the operator token, or on a server without one, it is from this machine.
pub(super) struct Operator {
    peer: Option<Peer>,
}

/// Whether a request is an operator's, as far as that is known before its token is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum OperatorStatus {
    Yes,
    No,
    /// Only if it has the operator token.
    Token,
}

impl Operator {
    /// Returns whether a request is an operator's, as far as that is known without comparing a token.
    pub(super) fn status(parts: &Parts, operators: &OperatorAccess) -> OperatorStatus {
        match operators.has_token() {
            true => OperatorStatus::Token,
            false if local::why_not_local(parts).is_none() => OperatorStatus::Yes,
            false => OperatorStatus::No,
        }
    }

    /// Accepts the request of an operator, or returns the problem to answer with. A wrong token counts as a guess.
    pub(super) fn admit(
        parts: &Parts,
        operators: &OperatorAccess,
        rules: &RuleSet,
    ) -> Result<Operator, ApiProblem> {
        if operators.has_token() {
            compare(parts, operators, rules)?;
        } else if let Some(reason) = local::why_not_local(parts) {
            return Err(ApiProblem::not_local(&reason.to_string()));
        }
        Ok(Operator { peer: parts.extensions.get().copied() })
    }

    /// Returns the address of the connection, for the log.
    pub(super) fn peer(&self) -> String {
        self.peer.map_or_else(|| "unknown".to_owned(), |Peer(peer)| peer.to_string())
    }
}

impl<S> FromRequestParts<S> for Operator
where
    S: Sync,
    Arc<OperatorAccess>: FromRef<S>,
    Arc<RuleSet>: FromRef<S>,
{
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Operator, ApiProblem> {
        let operators = Arc::<OperatorAccess>::from_ref(state);
        Operator::admit(parts, &operators, &Arc::<RuleSet>::from_ref(state))
    }
}

/// Compares the token of a request with the operator token, unless its address has sent too many wrong ones.
fn compare(parts: &Parts, operators: &OperatorAccess, rules: &RuleSet) -> Result<(), ApiProblem> {
    // A request without a token does not count as a guess.
    let Some(token) = bearer(&parts.headers) else { return Err(ApiProblem::not_operator()) };
    match operators.attempt(&client_of(parts, rules), token) {
        Some(Attempt::Right) => Ok(()),
        Some(Attempt::NotCompared { retry_after }) => {
            Err(ApiProblem::too_many_guesses(retry_after))
        }
        Some(Attempt::Wrong) | None => Err(ApiProblem::not_operator()),
    }
}

/// Returns the address under which wrong tokens are counted: that of the client if the peer is one of
/// `identity.trusted_proxies`, otherwise that of the peer. IPv6 addresses are grouped as in keys.
fn client_of(parts: &Parts, rules: &RuleSet) -> String {
    let peer: Option<Peer> = parts.extensions.get().copied();
    let rules = rules.rules().snapshot();
    let address = match (rules.identity(), peer) {
        (_, None) => None,
        (None, Some(Peer(peer))) => Some(ClientAddress::of(peer.ip(), Ipv6Prefix::default())),
        (Some(identity), Some(peer)) => {
            let mut request = Request::new(());
            *request.headers_mut() = parts.headers.clone();
            request.extensions_mut().insert(peer);
            RequestHead::new(&request, identity).address().copied()
        }
    };
    address.map_or_else(|| "unknown".to_owned(), |address| address.to_string())
}

/// Returns the token of `Authorization: Bearer <token>`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn token_is_read_after_its_scheme() {
        for (value, want) in [
            ("Bearer s3cret", Some("s3cret")),
            ("bearer  s3cret", Some("s3cret")),
            ("Bearer ", Some("")),
            ("Basic s3cret", None),
            ("Bearers3cret", None),
            ("s3cret", None),
            ("", None),
        ] {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))]);
            assert_eq!(bearer(&headers), want.map(str::as_bytes), "{value}");
        }
    }
}
