//! Measures the time and instructions of a request to a service that is called without a socket.

use std::hint::black_box;

use anyhow::Result;
use axum::Router;
use rustix::time::{ClockId, clock_gettime};
use tollgate_bench::callgrind::instructions_per_request;
use tollgate_bench::service::request;
use tollgate_bench::show_progress;

use crate::variants::Variant;

/// The number of turns of each variant that count. One turn before these warms up.
const ROUNDS: usize = 499;

/// The number of requests in a turn. It is small, so that the machine's speed hardly changes within a round.
const REQUESTS: u64 = 1_000;

/// The cost of a request to one variant, called without a socket.
pub(crate) struct InProcess {
    pub(crate) variant: Variant,
    /// The CPU time of a request in each round.
    pub(crate) times_ns: Vec<f64>,
    pub(crate) instructions: u64,
}

pub(crate) fn measure() -> Result<Vec<InProcess>> {
    let mut line_up = Vec::new();
    for variant in Variant::ALL {
        show_progress(&format!("instructions: {}", variant.name()));
        let instructions = instructions_per_request(&["run", variant.name()])?;
        let measured = InProcess { variant, times_ns: Vec::new(), instructions };
        line_up.push((variant.router()?, measured));
    }
    for round in 0..=ROUNDS {
        show_progress(&format!("in process, round {round} of {ROUNDS}"));
        for (router, measured) in &mut line_up {
            let before_ns = thread_ns();
            make_requests(router, REQUESTS)?;
            if round > 0 {
                measured.times_ns.push((thread_ns() - before_ns) / REQUESTS as f64);
            }
        }
    }
    Ok(line_up.into_iter().map(|(_, measured)| measured).collect())
}

/// Returns the CPU time of this thread. The time that other programs use does not count.
fn thread_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

pub(crate) fn make_requests(router: &mut Router, count: u64) -> Result<()> {
    for _ in 0..count {
        black_box(request(black_box(router))?);
    }
    Ok(())
}
