//! Verifications that addresses earn with good tokens.
//!
//! Many clients can share an address: an office, a carrier's NAT. Before its signature is computed, a new good token
//! looks like a bad one, so bad tokens of one client use up the allowance of all. Each request with a good token therefore
//! earns its address one more verification, so that the cost of bad tokens grows no faster than the good traffic of the
//! same address.

use std::fmt;
use std::sync::atomic::{AtomicU16, Ordering};

use ahash::RandomState;

/// The most verifications that an address can have as credit.
const MAX_CREDIT: u16 = 200;

/// The number of counters: 32 KiB in all. Addresses whose hashes select the same counter share it. The hash is keyed, so a
/// client cannot choose which addresses share its counter.
const COUNTERS: usize = 1 << 14;

/// How many further verifications each address has earned.
pub(super) struct Credit {
    counters: Box<[AtomicU16]>,
    hasher: RandomState,
}

impl Default for Credit {
    fn default() -> Credit {
        let counters = (0..COUNTERS).map(|_| AtomicU16::new(0)).collect();
        Credit { counters, hasher: RandomState::new() }
    }
}

impl fmt::Debug for Credit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credit").finish_non_exhaustive()
    }
}

impl Credit {
    /// Adds one verification to an address's credit, unless that is full.
    pub(super) fn earn(&self, address: &str) {
        let counter = self.counter(address);
        // Read first: the credit of a busy address is full, and its counter is not written with every request.
        if counter.load(Ordering::Relaxed) < MAX_CREDIT {
            let more = |credit| (credit < MAX_CREDIT).then_some(credit + 1);
            let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
    }

    /// Takes one verification out of an address's credit. Returns whether there was one.
    pub(super) fn spend(&self, address: &str) -> bool {
        let less = |credit: u16| credit.checked_sub(1);
        let spent = self.counter(address).fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        spent.is_ok()
    }

    fn counter(&self, address: &str) -> &AtomicU16 {
        // OK because the remainder is below the number of counters.
        &self.counters[self.hasher.hash_one(address) as usize % COUNTERS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_can_spend_its_earned_credit_up_to_the_maximum() {
        let credit = Credit::default();
        assert!(!credit.spend("192.0.2.1"));
        credit.earn("192.0.2.1");
        credit.earn("192.0.2.1");
        assert_eq!([(); 3].map(|()| credit.spend("192.0.2.1")), [true, true, false]);
        for _ in 0..10_000 {
            credit.earn("192.0.2.1");
        }
        let spent = (0..10_000).filter(|_| credit.spend("192.0.2.1")).count();
        assert_eq!(spent, usize::from(MAX_CREDIT));
    }
}
