//! The time of a request when the service is called without a socket.

use std::hint::black_box;

use anyhow::Result;
use axum::Router;
use rustix::time::{ClockId, clock_gettime};
use tollgate_bench::callgrind::instructions_per_request;
use tollgate_bench::service::request;
use tollgate_bench::show_progress;

use crate::variants::Variant;

/// The number of turns of each variant. One more before these warms up and does not count.
const ROUNDS: usize = 499;

/// The requests in a turn: few, so that the machine's speed hardly changes within a round.
const REQUESTS: u64 = 1_000;

/// The cost of a request with one variant.
pub(crate) struct InProcess {
    pub(crate) variant: Variant,
    /// The CPU time, in each round.
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

/// Returns the CPU time of this thread, without the time that other programs took.
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
