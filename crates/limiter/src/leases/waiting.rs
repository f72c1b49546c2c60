//! The checks that wait for the store's answer about their key.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use ahash::RandomState;
use tokio::sync::oneshot;
use tollgate_core::Cost;
use tollgate_lease::LeaseTerms;

use super::key::{KeyParts, LeaseKey};
use crate::answer::UnreadAnswer;
use crate::decision::Decision;
use crate::error::Error;

/// The most checks that wait for one key. Further checks are checks of the store.
const MAX_FOR_KEY: usize = 4_096;

/// The outcome of waiting, for one check.
#[derive(Debug)]
pub(crate) enum WaitOutcome {
    /// The decision. It is undone if the caller has given up.
    Decided(UnreadAnswer<Decision>),
    /// The store failed to decide this check.
    Failed(Error),
    /// Nothing is decided: check the store, as without leases.
    Store,
}

/// A check that waits.
#[derive(Debug)]
pub(super) struct WaitingCheck {
    pub(super) terms: LeaseTerms,
    pub(super) cost: Cost,
    /// When the check stops waiting for a further request.
    pub(super) until: Instant,
    pub(super) caller: oneshot::Sender<WaitOutcome>,
}

/// The checks that wait, by key, in the order in which they came. Bounded: a key has at most 4,096, and there are keys
/// here only while a request about them is in flight.
#[derive(Debug, Default)]
pub(super) struct WaitingChecks {
    by_key: HashMap<LeaseKey, VecDeque<WaitingCheck>, RandomState>,
}

impl WaitingChecks {
    /// Adds a check, unless too many wait for its key.
    pub(super) fn add(&mut self, key: &dyn KeyParts, check: WaitingCheck) -> bool {
        let queue = match self.by_key.get_mut(key) {
            Some(queue) => queue,
            None => self.by_key.entry(key.to_owned()).or_default(),
        };
        let has_place = queue.len() < MAX_FOR_KEY;
        if has_place {
            queue.push_back(check);
        }
        has_place
    }

    /// Adds a check that was taken from the queue of its key and must go on waiting.
    pub(super) fn add_again(&mut self, key: &LeaseKey, check: WaitingCheck) {
        self.by_key.entry(key.clone()).or_default().push_back(check);
    }

    /// Removes and returns the checks that wait for a key.
    pub(super) fn take(&mut self, key: &LeaseKey) -> VecDeque<WaitingCheck> {
        self.by_key.remove(key).unwrap_or_default()
    }
}
