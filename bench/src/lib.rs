//! Code that several benchmarks use.

pub mod callgrind;
pub mod cpu;
pub mod h2load;
pub mod http_connection;
pub mod process;
pub mod random;
pub mod service;
pub mod statistics;
pub mod table;
pub mod turns;
pub mod wrk;

use std::io::{IsTerminal, stderr};

/// Replaces the last line of progress, if stderr is a terminal.
pub fn show_progress(text: &str) {
    if stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
    }
}
