//! Why a request is refused because of its token.

use tollgate_limiter::{Decision, Scope};

use crate::invalid_token::InvalidToken;

/// Why a request is refused because of its token.
#[derive(Debug)]
pub struct TokenRefusal {
    cause: RefusalCause,
}

#[derive(Debug)]
enum RefusalCause {
    Invalid(InvalidToken),
    /// The address has sent too many bad tokens. Boxed, because it is rare and large.
    NotVerified(Box<(Scope, Decision)>),
}

impl TokenRefusal {
    #[cfg_attr(
        not(feature = "jwt"),
        expect(dead_code, reason = "without the feature there are no tokens")
    )]
    pub(crate) fn invalid_token(invalid: InvalidToken) -> TokenRefusal {
        TokenRefusal { cause: RefusalCause::Invalid(invalid) }
    }

    #[cfg_attr(
        not(feature = "jwt"),
        expect(dead_code, reason = "without the feature there are no tokens")
    )]
    pub(crate) fn not_verified(verifications: Scope, decision: Decision) -> TokenRefusal {
        TokenRefusal { cause: RefusalCause::NotVerified(Box::new((verifications, decision))) }
    }

    /// Returns what is wrong with the token, if that is known: the request is answered with 401.
    pub fn invalid(&self) -> Option<InvalidToken> {
        match &self.cause {
            RefusalCause::Invalid(invalid) => Some(*invalid),
            RefusalCause::NotVerified(_) => None,
        }
    }

    /// Returns the limit on bad tokens that the address has spent, and its decision: the request is answered with 429.
    pub fn refusal(&self) -> Option<(&Scope, &Decision)> {
        match &self.cause {
            RefusalCause::Invalid(_) => None,
            RefusalCause::NotVerified(refusal) => Some((&refusal.0, &refusal.1)),
        }
    }
}
