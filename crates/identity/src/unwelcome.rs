//! A token because of which its request is refused.

use tollgate_limiter::{Decision, Scope};

use crate::invalid_token::InvalidToken;

/// A token because of which its request is refused.
#[derive(Debug)]
pub struct Unwelcome {
    why: Why,
}

#[derive(Debug)]
enum Why {
    Invalid(InvalidToken),
    /// After too many bad tokens of its address. Boxed, because it is rare and large.
    NotVerified(Box<(Scope, Decision)>),
}

impl Unwelcome {
    #[cfg_attr(
        not(feature = "jwt"),
        expect(dead_code, reason = "without the feature there are no tokens")
    )]
    pub(crate) fn invalid_token(invalid: InvalidToken) -> Unwelcome {
        Unwelcome { why: Why::Invalid(invalid) }
    }

    #[cfg_attr(
        not(feature = "jwt"),
        expect(dead_code, reason = "without the feature there are no tokens")
    )]
    pub(crate) fn not_verified(verifications: Scope, decision: Decision) -> Unwelcome {
        Unwelcome { why: Why::NotVerified(Box::new((verifications, decision))) }
    }

    /// Returns what is wrong with the token, if it was looked at: the request is answered with 401.
    pub fn invalid(&self) -> Option<InvalidToken> {
        match &self.why {
            Why::Invalid(invalid) => Some(*invalid),
            Why::NotVerified(_) => None,
        }
    }

    /// Returns the limit on bad tokens that its address has spent, and its decision: the request is answered with 429.
    pub fn refusal(&self) -> Option<(&Scope, &Decision)> {
        match &self.why {
            Why::Invalid(_) => None,
            Why::NotVerified(refusal) => Some((&refusal.0, &refusal.1)),
        }
    }
}
