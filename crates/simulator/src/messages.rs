//! The messages between processes and the store.

use tollgate_core::{Cost, LeaseAnswer};
use tollgate_lease::{LeaseCall, LeaseEnd};

/// A request of a process.
#[derive(Clone, Debug)]
pub(crate) enum ToStore {
    /// Open or renew a lease. With the time of the process's wall clock at the first use that is not settled; only a mutant
    /// of the store reads it.
    Lease { call: LeaseCall<u32>, first_use_us: Option<u64> },
    /// End a lease.
    End(LeaseEnd<u32>),
    /// A check without leases.
    Check { number: u64, key: u32, cost: Cost },
}

/// An answer of the store.
#[derive(Debug)]
pub(crate) enum ToProcess {
    Lease { key: u32, sequence: u64, answer: LeaseAnswer },
    Check { number: u64, key: u32, is_allowed: bool },
}

impl Clone for ToProcess {
    fn clone(&self) -> ToProcess {
        match self {
            ToProcess::Lease { key, sequence, answer } => {
                // A receipt works once, and the processes of the simulation have no use for it.
                let LeaseAnswer { decision, lease, .. } = *answer;
                let answer = LeaseAnswer { decision, receipt: None, lease };
                ToProcess::Lease { key: *key, sequence: *sequence, answer }
            }
            ToProcess::Check { number, key, is_allowed } => {
                ToProcess::Check { number: *number, key: *key, is_allowed: *is_allowed }
            }
        }
    }
}
