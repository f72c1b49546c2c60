//! The description of a run.

mod random;

use tollgate_lease::{LeaseTerms, TableSize};

use crate::faults::SimulatedFault;
use crate::mutant::Mutant;
use crate::network::NetworkModel;
use crate::traffic::TrafficModel;

/// A run of the simulator. [`run`](crate::run()) makes the same report of it each time.
#[derive(Clone, Debug)]
pub struct SimulatedScenario {
    /// The seed of the random delays, losses and arrivals.
    pub seed: u64,
    /// The length of the run.
    pub duration_us: u64,
    /// The keys on the store.
    pub keys: Vec<SimulatedKey>,
    /// The number of processes.
    pub processes: usize,
    /// The size of the table of leases in each process.
    pub table_size: TableSize,
    /// The longest time that a process waits for an answer of the store.
    pub deadline_us: u64,
    /// The most by which the clock of a process runs faster or slower than the store's, in millionths.
    pub drift_ppm: u32,
    /// The most by which the wall clock of a process is ahead or behind at the start.
    pub wall_skew_us: u64,
    /// The checks, in 1,000, that another limit of the same request refuses.
    pub given_back_permille: u32,
    /// The network.
    pub network: NetworkModel,
    /// The checks.
    pub traffic: Vec<TrafficSource>,
    /// The faults.
    pub faults: Vec<TimedFault>,
    /// A mistake that the checks must find.
    pub mutant: Option<Mutant>,
}

/// A key on the store.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedKey {
    /// Its limit, and how it is leased.
    pub terms: LeaseTerms,
}

/// Checks of one key that arrive at one process.
#[derive(Clone, Copy, Debug)]
pub struct TrafficSource {
    /// The process.
    pub process: usize,
    /// The key.
    pub key: u32,
    /// The times at which they arrive.
    pub model: TrafficModel,
    /// The largest cost of a check. The smallest is 1.
    pub max_cost: u64,
}

/// A fault and its time.
#[derive(Clone, Copy, Debug)]
pub struct TimedFault {
    /// Its time from the start of the run.
    pub at_us: u64,
    /// The fault.
    pub fault: SimulatedFault,
}
