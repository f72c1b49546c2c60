//! Wrong operator tokens: slowed for each address, counted, and logged at most once a minute.
//!
//! There is no limit for all addresses together: with one, any client could lock out all operators. A token has at
//! least 16 characters, so it is not found even by guessing from 20,000 addresses, every 5 s from each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate::{Decision, Limit, Limiter, Scope};

use crate::logs::LogThrottle;

/// The wrong tokens that are compared for one address: 20 at once, then one every 5 s.
const PER_ADDRESS: &str = "token-bucket capacity=20 refill=1/5s";

/// Memory for about 20,000 addresses that sent a wrong token in the last 100 s. Further addresses share one allowance.
const MAX_BYTES: usize = 1 << 20;

/// The least time between two log lines about wrong tokens.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Counts and slows wrong operator tokens.
#[derive(Debug)]
pub(super) struct Guesses {
    /// How many wrong tokens each address may still send. Always `Some`: the limit is valid.
    allowances: Option<Scope>,
    wrong: AtomicU64,
    not_compared: AtomicU64,
    reports: LogThrottle,
}

/// The result of an attempt to show the operator token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    Right,
    Wrong,
    /// The address has sent too many wrong tokens. A right token is not accepted either, since its answer would
    /// confirm a guess.
    NotCompared {
        retry_after: Duration,
    },
}

impl Default for Guesses {
    fn default() -> Guesses {
        let limiter = Limiter::builder().max_bytes(MAX_BYTES).build();
        let limit = PER_ADDRESS.parse::<Limit>().ok();
        Guesses {
            allowances: limit.and_then(|limit| limiter.scope("operator-tokens", limit).ok()),
            wrong: AtomicU64::new(0),
            not_compared: AtomicU64::new(0),
            reports: LogThrottle::every(REPORT_INTERVAL),
        }
    }
}

impl Guesses {
    /// Compares a token, if its address has not sent too many wrong ones. A right token does not use up the allowance
    /// of its address.
    pub(super) fn attempt(&self, address: &str, is_right: impl FnOnce() -> bool) -> Attempt {
        // Charged before the comparison, so that concurrent guesses are not compared for one charge. The memory
        // store cannot fail.
        let charged = self.allowances.as_ref().and_then(|own| own.check(address).now().ok());
        if let Some(refused) = charged.as_ref().filter(|charged| !charged.is_allowed()) {
            let retry_after = refused.retry_after().unwrap_or(Duration::from_secs(5));
            self.not_compared.fetch_add(1, Ordering::Relaxed);
            self.report(address);
            return Attempt::NotCompared { retry_after };
        }
        if is_right() {
            self.refund(address, charged);
            return Attempt::Right;
        }
        self.wrong.fetch_add(1, Ordering::Relaxed);
        self.report(address);
        Attempt::Wrong
    }

    /// Returns how many wrong tokens were compared since the start.
    pub(super) fn wrong(&self) -> u64 {
        self.wrong.load(Ordering::Relaxed)
    }

    /// Returns how many tokens were not compared since the start, because their address had sent too many wrong ones.
    pub(super) fn not_compared(&self) -> u64 {
        self.not_compared.load(Ordering::Relaxed)
    }

    /// Logs attempts that are not logged yet, if the last line is old enough. Called once a second, so that the end of
    /// a series is logged, too.
    pub(super) fn report_rest(&self, now: Instant) {
        if let Some(attempts) = self.reports.take_rest(now) {
            tracing::warn!(attempts, "{WRONG_TOKENS}");
        }
    }

    fn refund(&self, address: &str, charged: Option<Decision>) {
        let receipt = charged.and_then(Decision::into_receipt);
        if let Some((allowances, receipt)) = self.allowances.as_ref().zip(receipt) {
            // The memory store cannot fail.
            let _ = allowances.refund_now(address, receipt);
        }
    }

    fn report(&self, address: &str) {
        if let Some(before) = self.reports.admit(Instant::now()) {
            let attempts = before.saturating_add(1);
            tracing::warn!(attempts, address, "{WRONG_TOKENS}");
        }
    }
}

const WRONG_TOKENS: &str = "wrong operator tokens were sent; unless an operator made a mistake, block this address in \
                            front of the server";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guessing_slows_only_the_guessing_address() {
        let guesses = Guesses::default();
        for _ in 0..20 {
            assert_eq!(guesses.attempt("192.0.2.1", || false), Attempt::Wrong);
        }
        let refused = guesses.attempt("192.0.2.1", || panic!("the token was compared"));
        let Attempt::NotCompared { retry_after } = refused else { panic!("{refused:?}") };
        assert!(retry_after <= Duration::from_secs(5), "{retry_after:?}");
        assert_eq!(guesses.attempt("192.0.2.2", || true), Attempt::Right);
        assert_eq!((guesses.wrong(), guesses.not_compared()), (20, 1));
    }

    #[test]
    fn a_right_token_costs_no_allowance() {
        let guesses = Guesses::default();
        for _ in 0..1_000 {
            assert_eq!(guesses.attempt("192.0.2.1", || true), Attempt::Right);
        }
        assert_eq!((guesses.wrong(), guesses.not_compared()), (0, 0));
    }
}
