//! Tokens that were verified and found bad, by fingerprint.
//!
//! A bad token that a client keeps sending, because it has expired or is meant for another server, is verified once.
//! Otherwise that client would use up the verifications of its address, and new good tokens of other clients there would
//! not be verified.

use std::collections::HashMap;
use std::mem;

use ahash::RandomState;
use parking_lot::Mutex;

use super::InvalidToken;
use super::cache::TokenFingerprint;

/// The most tokens in a generation; two generations of this size take less than half a MiB.
const PER_GENERATION: usize = 4096;

/// Bad tokens, in two generations: when the young one is full, the old one is forgotten.
#[derive(Default)]
pub(super) struct BadTokens {
    generations: Mutex<BadGenerations>,
}

#[derive(Default)]
struct BadGenerations {
    young: HashMap<TokenFingerprint, TokenFault, RandomState>,
    old: HashMap<TokenFingerprint, TokenFault, RandomState>,
}

/// The reason why a token is bad, and the time since which it is.
#[derive(Clone, Copy)]
struct TokenFault {
    reason: InvalidToken,
    from_us: u64,
}

impl BadTokens {
    /// Returns why a token is bad, if that is known.
    pub(super) fn get(&self, token: TokenFingerprint, now_us: u64) -> Option<InvalidToken> {
        let mut generations = self.generations.lock();
        let fault = match generations.young.get(&token) {
            Some(fault) => *fault,
            None => {
                let fault = generations.old.remove(&token)?;
                generations.insert(token, fault);
                fault
            }
        };
        (now_us >= fault.from_us).then_some(fault.reason)
    }

    /// Remembers why a token was found bad at `now_us`.
    pub(super) fn insert(&self, token: TokenFingerprint, reason: InvalidToken, now_us: u64) {
        let from_us = match reason {
            // Not remembered: the token may be good later.
            InvalidToken::NotYetValid => return,
            // Counts from now: by the clock of another limiter, the token may still have been good before.
            InvalidToken::Expired => now_us,
            _ => 0,
        };
        self.generations.lock().insert(token, TokenFault { reason, from_us });
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let generations = self.generations.lock();
        generations.young.len() + generations.old.len()
    }
}

impl BadGenerations {
    fn insert(&mut self, token: TokenFingerprint, fault: TokenFault) {
        if self.young.len() >= PER_GENERATION {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(token, fault);
    }
}
