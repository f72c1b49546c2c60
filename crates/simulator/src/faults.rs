//! The faults of a run.

use crate::store::StateLoss;

/// A fault that happens at one instant of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimulatedFault {
    /// A process is killed, and starts again later without its leases.
    Crash {
        /// The process.
        process: usize,
        /// The time until it starts again.
        for_us: u64,
    },
    /// A process is stopped (SIGSTOP). Its clocks continue.
    Freeze {
        /// The process.
        process: usize,
        /// The time until it continues.
        for_us: u64,
    },
    /// The messages of a process are lost.
    Cut {
        /// The process.
        process: usize,
        /// The time for which they are lost.
        for_us: u64,
        /// The messages that are lost.
        direction: Direction,
    },
    /// The store does not answer: requests that arrive are lost.
    StoreDown {
        /// The time until it answers again.
        for_us: u64,
    },
    /// The wall clock of a process is set to another time.
    WallStep {
        /// The process.
        process: usize,
        /// The difference.
        by_us: i64,
    },
    /// The clock of the store is set to another time. A step forward by more than 1.5 ms, and a step back by more than
    /// 10 s, count as a loss of state.
    StoreStep {
        /// The difference.
        by_us: i64,
    },
    /// The store loses state: a failover, or a flush.
    Loss(StateLoss),
    /// A process ends all its leases, as it does before it shuts down, and continues.
    EndLeases {
        /// The process.
        process: usize,
    },
}

/// The messages of a process in one direction or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The requests.
    ToStore,
    /// The answers.
    FromStore,
    /// Both.
    Both,
}
