//! Tokens that were verified and found bad, by fingerprint.
//!
//! A client that keeps sending one bad token, because it has expired or is meant for another server, has its signature
//! computed once. Otherwise that client would use up the verifications of its address, and new good tokens of other
//! clients there would not be verified.

use std::collections::HashMap;
use std::mem;

use ahash::RandomState;
use parking_lot::Mutex;

use super::InvalidToken;
use super::cache::Fingerprint;

/// The most tokens in a generation; two generations of this size take less than half a MiB.
const PER_GENERATION: usize = 4096;

/// Bad tokens, in two generations: when the young one is full, the old one is forgotten.
#[derive(Default)]
pub(super) struct BadTokens {
    generations: Mutex<BadGenerations>,
}

#[derive(Default)]
struct BadGenerations {
    young: HashMap<Fingerprint, TokenFault, RandomState>,
    old: HashMap<Fingerprint, TokenFault, RandomState>,
}

/// The reason why a token is bad, and since when.
#[derive(Clone, Copy)]
struct TokenFault {
    reason: InvalidToken,
    from_us: u64,
}

impl BadTokens {
    /// Returns what is wrong with a token, if that is known.
    pub(super) fn get(&self, token: Fingerprint, now_us: u64) -> Option<InvalidToken> {
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

    /// Remembers what was found to be wrong with a token at `now_us`.
    pub(super) fn insert(&self, token: Fingerprint, reason: InvalidToken, now_us: u64) {
        let from_us = match reason {
            // It may be good later.
            InvalidToken::NotYetValid => return,
            // It may have been good before, by the clock of another limiter.
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
    fn insert(&mut self, token: Fingerprint, fault: TokenFault) {
        if self.young.len() >= PER_GENERATION {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(token, fault);
    }
}
