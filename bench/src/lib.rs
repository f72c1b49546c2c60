//! Code that several benchmarks use.

pub mod callgrind;
pub mod cpu;
pub mod h2load;
pub mod http_connection;
pub mod process;
mod progress;
pub mod random;
pub mod service;
pub mod statistics;
pub mod table;
pub mod turns;
pub mod wrk;

pub use progress::show_progress;
