//! The requests that every limit decides.

use crate::limits::WINDOW_US;

const MS: u64 = 1_000;
const SECOND: u64 = 1_000 * MS;

/// The end of the pictures of everyday traffic. The last shaped request has left by then.
pub(crate) const END_US: u64 = 70 * SECOND;

/// The time between probes. It is so short that a change of `remaining` is drawn within a quarter of a pixel.
const PROBE_EVERY_US: u64 = 20 * MS;

/// A request of a trace. All requests have the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// When the request is made.
    pub at_us: u64,
    /// The cost of the request.
    pub cost: u64,
}

impl TraceRequest {
    fn one(at_us: u64) -> TraceRequest {
        TraceRequest { at_us, cost: 1 }
    }
}

/// A part of the everyday traffic, and the text above it.
pub(crate) struct TrafficPart {
    pub(crate) name: &'static str,
    pub(crate) from_us: u64,
    pub(crate) until_us: u64,
}

/// The parts of the everyday traffic.
pub(crate) const PARTS: [TrafficPart; 3] = [
    TrafficPart { name: "a trickle", from_us: 0, until_us: 10 * SECOND },
    TrafficPart {
        name: "10 just before 20 s, 10 just after",
        from_us: 13 * SECOND,
        until_us: 27 * SECOND,
    },
    TrafficPart {
        name: "4 each second, even when refused",
        from_us: 37_500 * MS,
        until_us: 60 * SECOND,
    },
];

/// Returns the everyday traffic: a trickle, a burst of 20 across the window boundary at 20 s, and a client that does not
/// slow down when it is refused.
pub(crate) fn everyday() -> Vec<TraceRequest> {
    let trickle = (0..5).map(|nth| (2 * nth + 1) * SECOND);
    let burst = (0..20).map(|nth| 19_800 * MS + nth * 20 * MS);
    let insistent = (0..90).map(|nth| 37_500 * MS + nth * 250 * MS);
    trickle.chain(burst).chain(insistent).map(TraceRequest::one).collect()
}

/// Returns the attack: after an idle time, ten requests at each of the three microseconds around every second.
///
/// The first ten arrive in the last microsecond of a window. Every algorithm gives units back only at these instants
/// after that.
pub(crate) fn attack() -> Vec<TraceRequest> {
    let seconds = 2 * WINDOW_US / SECOND..=4 * WINDOW_US / SECOND;
    let instants = seconds.flat_map(|second| {
        let at_us = second * SECOND;
        [at_us - 1, at_us, at_us + 1]
    });
    instants.flat_map(|at_us| [TraceRequest::one(at_us); 10]).collect()
}

/// Returns the requests with probes between them. A probe costs more than the limit's size, so it is refused, charges
/// nothing and reports `remaining`.
pub(crate) fn with_probes(requests: &[TraceRequest], size: u64) -> Vec<TraceRequest> {
    let probes = (0..=END_US / PROBE_EVERY_US)
        .map(|nth| TraceRequest { at_us: nth * PROBE_EVERY_US, cost: size + 1 });
    let mut all: Vec<TraceRequest> = requests.iter().copied().chain(probes).collect();
    // The sort is stable, so at the same instant the requests come before the probe.
    all.sort_by_key(|request| request.at_us);
    all
}
