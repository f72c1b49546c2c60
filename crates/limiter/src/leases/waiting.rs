//! The checks that wait for the store's answer about their key.

use std::collections::{HashMap, VecDeque};

use ahash::RandomState;
use tokio::time::Instant;
use tollgate_core::Cost;
use tollgate_lease::LeaseTerms;

use super::asking::AskingCheck;
use super::key::{KeyParts, LeaseKey};

/// The most checks that wait for one key. Further checks are checks of the store.
const MAX_FOR_KEY: usize = 4_096;

/// A check that waits.
#[derive(Debug)]
pub(super) struct WaitingCheck {
    pub(super) terms: LeaseTerms,
    pub(super) cost: Cost,
    pub(super) asking: AskingCheck,
}

/// The checks that wait for one answer, in the order in which they came.
#[derive(Debug, Default)]
struct KeyQueue {
    /// By when the answer comes.
    answer_by: Option<Instant>,
    checks: VecDeque<WaitingCheck>,
}

/// The checks that wait, by key. Bounded: a key has at most 4,096, and there are keys here only while a request about them
/// is in flight.
#[derive(Debug, Default)]
pub(super) struct WaitingChecks {
    by_key: HashMap<LeaseKey, KeyQueue, RandomState>,
}

impl WaitingChecks {
    /// Notes that a request about a key is in flight, whose answer comes by this time. Returns the checks that cannot wait
    /// for so long.
    pub(super) fn expect(&mut self, key: &LeaseKey, answer_by: Instant) -> Vec<WaitingCheck> {
        let queue = self.by_key.entry(key.clone()).or_default();
        queue.answer_by = Some(answer_by);
        let (stay, leave) =
            queue.checks.drain(..).partition(|check| check.asking.until() >= answer_by);
        queue.checks = stay;
        Vec::from(leave)
    }

    /// Adds a check, unless too many wait for its key, or the answer may come after its deadline. Returns whether it was
    /// added.
    pub(super) fn add(&mut self, key: &dyn KeyParts, check: WaitingCheck) -> bool {
        let Some(queue) = self.by_key.get_mut(key) else { return false };
        let answer_by = queue.answer_by.filter(|answer_by| *answer_by <= check.asking.until());
        let has_place = answer_by.is_some() && queue.checks.len() < MAX_FOR_KEY;
        if has_place {
            queue.checks.push_back(check);
        }
        has_place
    }

    /// Adds a check to wait for a request that is not sent yet: [`expect`](Self::expect) is called next.
    pub(super) fn add_before_request(&mut self, key: &LeaseKey, check: WaitingCheck) {
        self.by_key.entry(key.clone()).or_default().checks.push_back(check);
    }

    /// Removes and returns the checks that wait for a key.
    pub(super) fn take(&mut self, key: &LeaseKey) -> VecDeque<WaitingCheck> {
        self.by_key.remove(key).unwrap_or_default().checks
    }
}
