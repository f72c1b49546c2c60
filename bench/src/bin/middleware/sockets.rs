//! Measures requests per second over sockets, and the CPU time of each request.

use anyhow::Result;
use tollgate_bench::{cpu, show_progress, wrk};

use crate::server::{self, VariantServer};
use crate::variants::Variant;

/// The number of turns of each variant that count. One turn before these warms up.
const ROUNDS: usize = 13;

const TURN_S: u32 = 1;

/// The measurements of one variant, round by round.
pub(crate) struct OverSockets {
    pub(crate) variant: Variant,
    pub(crate) requests_per_s: Vec<f64>,
    /// The server's CPU time for a request.
    pub(crate) cpu_us: Vec<f64>,
}

pub(crate) fn measure() -> Result<Vec<OverSockets>> {
    let mut line_up = Vec::new();
    for variant in Variant::ALL {
        let measured = OverSockets { variant, requests_per_s: Vec::new(), cpu_us: Vec::new() };
        line_up.push((VariantServer::start(variant)?, measured));
    }
    // After the servers have started: a server that is started from this CPU could not move to its own.
    cpu::stay_on(server::CLIENT_CPU)?;
    for round in 0..=ROUNDS {
        for (server, measured) in &mut line_up {
            let name = measured.variant.name();
            show_progress(&format!("sockets, round {round} of {ROUNDS}: {name}"));
            let before_us = server.cpu_us()?;
            let result = wrk::run(&server.url(), TURN_S)?;
            let cpu_us = (server.cpu_us()? - before_us) / result.requests;
            if round > 0 {
                measured.cpu_us.push(cpu_us);
                measured.requests_per_s.push(result.requests_per_s);
            }
        }
    }
    Ok(line_up.into_iter().map(|(_, measured)| measured).collect())
}
