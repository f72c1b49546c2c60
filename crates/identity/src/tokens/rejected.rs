//! How many tokens were rejected, and why.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::invalid_token::InvalidToken;

/// The reasons, by the names that metrics have for them.
const REASONS: [(&str, InvalidToken); 11] = [
    ("too_long", InvalidToken::TooLong),
    ("malformed", InvalidToken::Malformed),
    ("critical", InvalidToken::Critical),
    ("algorithm", InvalidToken::Algorithm),
    ("unknown_key", InvalidToken::UnknownKey),
    ("signature", InvalidToken::Signature),
    ("no_expiry", InvalidToken::NoExpiry),
    ("expired", InvalidToken::Expired),
    ("not_yet_valid", InvalidToken::NotYetValid),
    ("issuer", InvalidToken::Issuer),
    ("audience", InvalidToken::Audience),
];

/// Counts of rejected tokens.
#[derive(Debug, Default)]
pub(super) struct RejectedTokens {
    invalid: [AtomicU64; REASONS.len()],
    not_verified: AtomicU64,
}

impl RejectedTokens {
    /// Counts a token that is invalid.
    ///
    /// A token without `exp` that one of the keys signed is a mistake of the issuer, and the operator must learn of it: such
    /// a token does not identify its client, and nothing else shows that. It is logged when the count is 1, 10, 100 and so
    /// on.
    pub(super) fn count_invalid(&self, reason: InvalidToken) {
        let place = REASONS.iter().position(|(_, own)| *own == reason);
        let Some(count) = place.and_then(|place| self.invalid.get(place)) else { return };
        let tokens = count.fetch_add(1, Ordering::Relaxed) + 1;
        if reason == InvalidToken::NoExpiry && is_power_of_ten(tokens) {
            tracing::warn!(
                tokens,
                "tokens are rejected because they have no `exp`, although a key of `jwt` signed them; let the issuer set it"
            );
        }
    }

    /// Counts a token that was not verified, because its address had sent too many invalid ones.
    pub(super) fn count_not_verified(&self) {
        self.not_verified.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns every reason, and how many tokens were rejected for it.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let invalid = REASONS.iter().zip(&self.invalid);
        let invalid = invalid.map(|((name, _), count)| (*name, count.load(Ordering::Relaxed)));
        invalid.chain([("not_verified", self.not_verified.load(Ordering::Relaxed))])
    }
}

fn is_power_of_ten(number: u64) -> bool {
    number.checked_ilog10().is_some_and(|exponent| 10_u64.pow(exponent) == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_ten_are_recognised() {
        let powers: Vec<u64> = (0..=2_000).filter(|number| is_power_of_ten(*number)).collect();
        assert_eq!(powers, [1, 10, 100, 1_000]);
        assert!(!is_power_of_ten(u64::MAX));
    }
}
