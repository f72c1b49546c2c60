//! A simulator of leases: many processes, one store and a network in virtual time, from one seed.
//!
//! The processes run the real lease manager (`tollgate-lease`), and the store decides with the real algorithms
//! (`tollgate-core`). Only the network, the clocks and the faults are simulated. Two runs of a scenario are the same in
//! every detail, so a seed that finds a mistake is a test of it.
//!
//! ```
//! use tollgate_simulator::{SimulatedScenario, run};
//!
//! let report = run(&SimulatedScenario::random(42));
//! assert_eq!(report.violations, []);
//! ```
//!
//! The layout:
//!
//! - [`SimulatedScenario`] (`scenario.rs`): everything that happens in a run; `scenario/random.rs` makes one from a seed.
//! - [`run()`] (`simulation.rs`): the loop over the events, in the order of their time (`events.rs`).
//! - `process.rs`: a process with its leases, as a driver would run them; `mutant.rs` breaks them on purpose.
//! - `store.rs`, `network.rs`, `clock.rs`: the store, the way to it, and the clocks of both ends.
//! - [`TrafficModel`] (`traffic.rs`), [`SimulatedFault`] (`faults.rs`): the checks and the faults.
//! - `hold_ledger.rs`, `bound_check.rs`: the two checks that nothing beyond the limit is admitted.
//! - [`RunReport`] (`report.rs`): what was admitted, refused and sent.

#![forbid(unsafe_code)]

mod bound_check;
mod clock;
mod events;
mod faults;
mod hold_ledger;
mod messages;
mod mutant;
mod network;
mod process;
mod random_source;
mod report;
mod scenario;
mod simulation;
mod store;
mod traffic;

pub use faults::{Direction, SimulatedFault};
pub use mutant::Mutant;
pub use network::NetworkModel;
pub use report::{RunReport, Violation, ViolationKind};
pub use scenario::{SimulatedKey, SimulatedScenario, TimedFault, TrafficSource};
pub use simulation::run;
pub use store::StateLoss;
pub use traffic::TrafficModel;
