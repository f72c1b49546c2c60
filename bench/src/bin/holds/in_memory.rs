//! Measures operations in memory.

use std::time::Instant;

use anyhow::Result;
use tokio::runtime::Builder;
use tollgate::Limiter;
use tollgate_bench::show_progress;

use crate::operations::{HoldCaller, HoldOperation};

/// The number of turns of each operation that count. One turn before these warms up.
const ROUNDS: usize = 30;

/// The number of operations in a turn.
const OPERATIONS: u32 = 20_000;

/// Returns for each operation the nanoseconds that one took in each turn.
pub(crate) fn measure() -> Result<Vec<Vec<f64>>> {
    let limiter = Limiter::memory();
    let runtime = Builder::new_current_thread().build()?;
    let caller = runtime.block_on(HoldCaller::new(&limiter, 0))?;
    let mut turns = vec![Vec::new(); HoldOperation::ALL.len()];
    for round in 0..=ROUNDS {
        show_progress(&format!("in memory, round {round} of {ROUNDS}"));
        for (operation, turns) in HoldOperation::ALL.into_iter().zip(&mut turns) {
            let began = Instant::now();
            for _ in 0..OPERATIONS {
                caller.run_now(operation)?;
            }
            let turn_ns = began.elapsed().as_nanos() as f64 / f64::from(OPERATIONS);
            if round > 0 {
                turns.push(turn_ns);
            }
        }
    }
    Ok(turns)
}
