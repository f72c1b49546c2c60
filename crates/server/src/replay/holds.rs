//! The holds of a replay, which its trace names.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use ahash::AHashMap;
use siphasher::sip128::{Hasher128, SipHasher13};
use tollgate::{Answer, EndedHold, Error, Hold, HoldId, HoldReference, Scope};
use tollgate_core::{LimitDecision, MAX_TIME_US};

use super::trace::{HoldStep, TraceOperation};

/// How many ended holds are remembered at least, so that a late settlement of one answers `expired`. With twice as many,
/// which take about 10 MiB, the ones that expired first are forgotten; a settlement of one then answers `unknown`.
const MIN_ENDED: usize = 1 << 16;

/// Waits for the answers of a store.
pub(super) trait WaitForAnswer {
    fn wait<T>(&self, answer: Answer<T>) -> Result<T, Error>;
}

/// The holds of a replay.
#[derive(Default)]
pub(super) struct ReplayHolds {
    names: HoldNames,
}

/// The decision of an operation on a hold.
pub(super) struct ReplayOutcome {
    pub(super) decision: LimitDecision,
    /// Why the operation had no effect; `None` for a reservation, and if the hold was open.
    pub(super) ended: Option<EndedHold>,
}

impl ReplayHolds {
    /// Decides an operation on a hold. `store` waits for its answer.
    ///
    /// A name means the hold that was last admitted under it. If an earlier one is still open, it is left to expire.
    pub(super) fn decide(
        &mut self,
        scope: &Scope,
        (at_us, key): (u64, &str),
        step: &HoldStep<'_>,
        store: &impl WaitForAnswer,
    ) -> Result<ReplayOutcome, Error> {
        scope.limit().can_hold()?;
        let name = self.names.hash(key, &step.hold);
        let known = self.names.get(name);
        let last = known.unwrap_or(NamedHold::NEVER_RESERVED);
        let (outcome, now) = match step.operation {
            TraceOperation::Reserve { cost, hold_for } => {
                let hold_for = Duration::from_micros(hold_for.as_us());
                let request = scope.reserve(key).cost(cost.units()).hold_for(hold_for).at_us(at_us);
                let reserved = store.wait(request.into_future())?;
                let decision = *reserved.decision().decided();
                (ReplayOutcome { decision, ended: None }, reserved.into_hold().map(NamedHold::of))
            }
            TraceOperation::Settle { used } => {
                let hold = scope.hold(key, last.reference)?.at_us(at_us);
                let settled = store.wait(hold.settle(used))?;
                let outcome =
                    ReplayOutcome { decision: *settled.decided(), ended: settled.ended() };
                (outcome, known.map(|hold| NamedHold { has_ended: true, ..hold }))
            }
            TraceOperation::Extend { more, hold_for } => {
                let hold = scope.hold(key, last.reference)?.at_us(at_us);
                let hold_for = Duration::from_micros(hold_for.as_us());
                let extended = store.wait(hold.extend(more, hold_for))?;
                let outcome =
                    ReplayOutcome { decision: *extended.decided(), ended: extended.ended() };
                let reference = hold.reference();
                (outcome, known.map(|hold| NamedHold { reference, ..hold }))
            }
        };
        if let Some(now) = now {
            self.names.insert(name, now, at_us);
        }
        let ended = match known {
            Some(_) => outcome.ended,
            None => outcome.ended.map(|_| EndedHold::Unknown),
        };
        Ok(ReplayOutcome { ended, ..outcome })
    }
}

/// A hold as it was last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NamedHold {
    /// With the last expiry that was granted.
    reference: HoldReference,
    /// Whether it was settled. It may have expired, too.
    has_ended: bool,
}

impl NamedHold {
    /// Stands for a hold of a name that no admitted reservation had.
    const NEVER_RESERVED: NamedHold = NamedHold {
        reference: HoldReference { id: HoldId(0), expires_us: MAX_TIME_US },
        has_ended: true,
    };

    fn of(hold: Hold) -> NamedHold {
        NamedHold { reference: hold.into_reference(), has_ended: false }
    }
}

/// The last hold of each name. Instead of a name, which may be as long as a line, its hash is kept: two names have the
/// same one with a chance of 1 in 2^128.
struct HoldNames {
    hasher: SipHasher13,
    by_hash: AHashMap<u128, NamedHold>,
    /// The number of names at which ended holds are forgotten next.
    sweep_at: usize,
}

impl Default for HoldNames {
    fn default() -> HoldNames {
        let random = RandomState::new();
        HoldNames {
            hasher: SipHasher13::new_with_keys(random.hash_one(0), random.hash_one(1)),
            by_hash: AHashMap::new(),
            sweep_at: 2 * MIN_ENDED,
        }
    }
}

impl HoldNames {
    /// Returns the hash of a key and a name under it.
    fn hash(&self, key: &str, name: &str) -> u128 {
        use std::hash::Hasher;
        let mut hasher = self.hasher;
        hasher.write_usize(key.len());
        hasher.write(key.as_bytes());
        hasher.write(name.as_bytes());
        hasher.finish128().as_u128()
    }

    fn get(&self, name: u128) -> Option<NamedHold> {
        self.by_hash.get(&name).copied()
    }

    fn insert(&mut self, name: u128, hold: NamedHold, now_us: u64) {
        if self.by_hash.len() >= self.sweep_at {
            self.forget_ended(now_us);
        }
        self.by_hash.insert(name, hold);
    }

    /// Forgets ended holds but the [`MIN_ENDED`] with the latest expiries.
    fn forget_ended(&mut self, now_us: u64) {
        let has_ended = |hold: &NamedHold| hold.has_ended || hold.reference.expires_us <= now_us;
        let ended = self.by_hash.iter().filter(|(_, hold)| has_ended(hold));
        let mut ended: Vec<_> =
            ended.map(|(name, hold)| (hold.reference.expires_us, *name)).collect();
        if let Some(forgotten) = ended.len().checked_sub(MIN_ENDED).filter(|&count| count > 0) {
            ended.select_nth_unstable(forgotten - 1);
            for (_, name) in &ended[..forgotten] {
                self.by_hash.remove(name);
            }
        }
        self.sweep_at = 2 * self.by_hash.len().max(MIN_ENDED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_holds_are_forgotten_in_the_order_of_their_expiries_and_open_holds_are_not() {
        let mut names = HoldNames::default();
        let hold = |number: u64, expires_us| NamedHold {
            reference: HoldReference { id: HoldId(number), expires_us },
            has_ended: false,
        };
        let open = names.hash("a", "open");
        names.insert(open, hold(0, MAX_TIME_US), 0);
        let count = 5 * MIN_ENDED as u64;
        for number in 1..count {
            let name = names.hash("a", &number.to_string());
            names.insert(name, hold(number, number), number);
            assert!(names.by_hash.len() <= 2 * MIN_ENDED + 2);
        }
        assert_eq!(names.get(open), Some(hold(0, MAX_TIME_US)));
        let remembered = |number: u64| names.get(names.hash("a", &number.to_string())).is_some();
        assert!((count - MIN_ENDED as u64..count).all(remembered));
        assert!(!remembered(1));
        assert!(names.get(names.hash("b", &(count - 1).to_string())).is_none());
    }
}
