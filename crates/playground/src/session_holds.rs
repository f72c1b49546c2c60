//! The open holds of a session, by number. Their number is bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tollgate::Hold;
use tollgate_core::HoldId;

use super::algorithm::PlaygroundAlgorithm;

/// The largest number of open holds of a session, under all algorithms together. The holds of all sessions take less than
/// 8 MiB, and keep 24,576 limits in use, of the 32,768 that a limiter in memory can have.
pub(super) const MAX_HOLDS: usize = 24;

/// A hold that a session has reserved.
#[derive(Debug)]
pub(super) struct SessionHold {
    pub(super) algorithm: PlaygroundAlgorithm,
    pub(super) hold: Hold,
    /// A time at which the hold has expired.
    pub(super) until: Instant,
}

/// The open holds of a session.
#[derive(Debug, Default)]
pub(super) struct SessionHolds {
    last_number: u64,
    open: BTreeMap<u64, SessionHold>,
    /// The numbers of the holds that the store has not decided yet.
    pending: BTreeSet<u64>,
}

/// A session has as many open holds as it can have.
#[derive(Debug)]
pub(super) struct HoldQuotaSpent {
    /// How long to wait until a hold has expired.
    pub(super) retry_after: Duration,
}

impl HoldQuotaSpent {
    /// The answer for a session without a slot.
    pub(super) const WITHOUT_SLOT: HoldQuotaSpent =
        HoldQuotaSpent { retry_after: Duration::from_secs(1) };
}

impl SessionHolds {
    /// Returns the number of a hold that is to be reserved, and the holds that have expired, for the caller to drop.
    pub(super) fn begin(
        &mut self,
        now: Instant,
    ) -> (Result<u64, HoldQuotaSpent>, Vec<SessionHold>) {
        let ended = self.open.extract_if(.., |_, hold| hold.until <= now).map(|(_, hold)| hold);
        let ended = ended.collect();
        if self.open.len() + self.pending.len() >= MAX_HOLDS {
            let first = self.open.values().map(|hold| hold.until).min();
            let retry_after = first.map_or(Duration::from_secs(1), |first| first - now);
            return (Err(HoldQuotaSpent { retry_after }), ended);
        }
        self.last_number += 1;
        self.pending.insert(self.last_number);
        (Ok(self.last_number), ended)
    }

    /// Keeps a hold that was pending.
    pub(super) fn keep(&mut self, number: u64, hold: SessionHold) {
        self.pending.remove(&number);
        self.open.insert(number, hold);
    }

    /// Frees the number of a pending hold.
    pub(super) fn end_pending(&mut self, number: u64) {
        self.pending.remove(&number);
    }

    /// Takes the hold of this number, if it is under this algorithm.
    pub(super) fn take(&mut self, number: u64, of: PlaygroundAlgorithm) -> Option<SessionHold> {
        self.open.get(&number).filter(|hold| hold.algorithm == of)?;
        self.open.remove(&number)
    }

    /// Takes all holds.
    pub(super) fn take_all(&mut self) -> BTreeMap<u64, SessionHold> {
        std::mem::take(&mut self.open)
    }

    /// Returns the numbers of the holds by their ids in the store.
    pub(super) fn numbers(&self) -> BTreeMap<HoldId, u64> {
        self.open.iter().map(|(number, own)| (own.hold.reference().id, *number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_of_all_sessions_take_less_than_8_mib() {
        // The entry in the map, the key and the expiry of the hold, and what the allocator adds to both.
        let bytes = 8 + size_of::<SessionHold>() * 3 / 2 + 48 + 32;
        println!("{}", size_of::<SessionHold>());
        assert!(bytes * MAX_HOLDS * super::super::sessions::MAX_SESSIONS < 8 << 20, "{bytes}");
    }
}
