//! The result of a run.

use tollgate_lease::LeaseCounters;

/// The figures of a run. Units are summed over all keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunReport {
    /// The length of the run.
    pub duration_us: u64,
    /// The units of all checks.
    pub asked_units: u64,
    /// The units of the checks that were admitted and whose callers got that answer.
    pub admitted_units: u64,
    /// The checks that were admitted by a lease.
    pub hits: u64,
    /// The checks that the store admitted.
    pub store_admissions: u64,
    /// The checks that the store refused.
    pub store_refusals: u64,
    /// The checks that a process refused without the store.
    pub local_refusals: u64,
    /// The checks that were not decided, because the store did not answer.
    pub failures: u64,
    /// The checks that a crash ended.
    pub crashed: u64,
    /// The checks whose units were given back to the lease, because another limit refused the request.
    pub given_back: u64,
    /// The checks that were not answered when the run ended.
    pub unanswered: u64,
    /// The checks that arrived.
    pub checks: u64,
    /// The requests that the store received.
    pub store_calls: u64,
    /// The units of leases that were open at the end.
    pub held_units: u64,
    /// The number of times that the store lost state.
    pub losses: u64,
    /// The counters of all lease managers.
    pub counters: LeaseCounters,
    /// The first violation of each kind.
    pub violations: Vec<Violation>,
}

impl RunReport {
    /// Returns the store calls of each second.
    pub fn store_calls_per_second(&self) -> u64 {
        self.store_calls * 1_000_000 / self.duration_us.max(1)
    }

    pub(crate) fn violation(
        &mut self,
        kind: ViolationKind,
        at_us: u64,
        text: impl FnOnce() -> String,
    ) {
        if self.violations.iter().all(|violation| violation.kind != kind) {
            self.violations.push(Violation { kind, at_us, text: text() });
        }
    }
}

/// Something that must never happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its kind.
    pub kind: ViolationKind,
    /// The time from the start of the run.
    pub at_us: u64,
    /// The details.
    pub text: String,
}

/// The kinds of violations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ViolationKind {
    /// A process used units that the store did not hold for it.
    NotHeld,
    /// The units used at their times are more than the limit admits in strict mode.
    AboveLimit,
    /// More units were used in an interval than the limit's bound.
    AboveBound,
    /// A request of a process said that it used another number of units than it did.
    WrongUse,
    /// A check waited for more answers than it must.
    WaitsTooLong,
}
