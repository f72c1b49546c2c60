//! What the benchmarks share.

pub mod callgrind;
pub mod client;
pub mod cpu;
pub mod h2load;
pub mod process;
pub mod random;
pub mod service;
pub mod statistics;
pub mod table;
pub mod turns;
pub mod wrk;

use std::io::{IsTerminal, stderr};

/// Writes over the last line of progress, if someone is watching.
pub fn show_progress(text: &str) {
    if stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
    }
}
