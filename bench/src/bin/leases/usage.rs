//! How much of a limit eight processes use together.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use tollgate_bench::show_progress;
use tollgate_bench::table::thousands;
use tollgate_core::Limit;
use tollgate_launcher::{Flavour, Launch};

use crate::processes::{SharingProcess, now_ms};

const PROCESSES: usize = 8;

/// A limit that processes share.
struct SharedLimit {
    text: &'static str,
    /// The units for each second that all processes ask for together.
    demand: u64,
    /// Whether the whole demand moves to the next process every second.
    jumps: bool,
    /// The time before the measurement begins, and its length.
    before_s: u64,
    measured_s: u64,
    /// The units that the limit admits in the measured time.
    admits: u64,
}

const BUCKET: &str = "token-bucket capacity=100000 refill=100000/s";
const WINDOW: &str = "fixed-window limit=100000 window=10s";

const LIMITS: [SharedLimit; 4] = [
    SharedLimit {
        text: BUCKET,
        demand: 200_000,
        jumps: false,
        before_s: 3,
        measured_s: 10,
        admits: 1_000_000,
    },
    SharedLimit {
        text: BUCKET,
        demand: 200_000,
        jumps: true,
        before_s: 3,
        measured_s: 10,
        admits: 1_000_000,
    },
    SharedLimit {
        text: WINDOW,
        demand: 20_000,
        jumps: false,
        before_s: 10,
        measured_s: 20,
        admits: 200_000,
    },
    SharedLimit {
        text: "sliding-window-log limit=50000 window=60s",
        demand: 1_700,
        jumps: false,
        before_s: 60,
        measured_s: 60,
        admits: 50_000,
    },
];

/// The use of a limit by eight processes.
pub(crate) struct LimitUsage {
    name: String,
    used: f64,
    over: u64,
    calls_per_s: f64,
}

pub(crate) fn measure() -> Result<Vec<LimitUsage>> {
    LIMITS.iter().map(measure_limit).collect()
}

fn measure_limit(shared: &SharedLimit) -> Result<LimitUsage> {
    let server = Launch::new(Flavour::Redis).start()?;
    let demand = if shared.jumps { shared.demand } else { shared.demand / PROCESSES as u64 };
    let mut processes = (0..PROCESSES)
        .map(|_| SharingProcess::start(&server.url(), shared.text, demand))
        .collect::<Result<Vec<_>>>()?;
    let limit: Limit = shared.text.parse()?;
    wait_for_window(&limit);
    let began_ms = now_ms();
    let seconds = shared.before_s + shared.measured_s;
    for second in 0..seconds {
        show_progress(&format!("{}: {second} of {seconds} s", shared.text));
        for (nth, process) in processes.iter_mut().enumerate() {
            process.set_active(!shared.jumps || second as usize % PROCESSES == nth)?;
        }
        sleep(Duration::from_millis((began_ms + 1_000 * (second + 1)).saturating_sub(now_ms())));
    }
    let mut admitted = BTreeMap::new();
    let mut calls = 0;
    for process in processes {
        let (own, own_calls) = process.end()?;
        calls += own_calls;
        for (at_ms, units) in own {
            *admitted.entry(at_ms).or_insert(0) += units;
        }
    }
    let from_ms = began_ms + 1_000 * shared.before_s;
    let measured: u64 =
        admitted.range(from_ms..from_ms + 1_000 * shared.measured_s).map(|(_, units)| units).sum();
    Ok(LimitUsage {
        name: format!("{}{}", shared.text, if shared.jumps { ", jumping" } else { "" }),
        used: measured as f64 / shared.admits as f64,
        over: excess(&limit, &admitted),
        calls_per_s: calls as f64 / seconds as f64,
    })
}

/// Waits for the next window, so that whole windows are measured.
fn wait_for_window(limit: &Limit) {
    if let Limit::FixedWindow(window) = limit {
        let window_ms = window.window_us() / 1_000;
        sleep(Duration::from_millis(window_ms - now_ms() % window_ms));
    }
}

/// Returns by how much the admitted units exceed the bound of the limit, over any interval. A time is that at which a
/// process noted the units, up to a few milliseconds after it was admitted them, so an interval counts as 10 ms longer.
fn excess(limit: &Limit, admitted: &BTreeMap<u64, u64>) -> u64 {
    const LATE_MS: u64 = 10;
    // Slots of 10 ms: there are a few thousand of them.
    let mut slots: BTreeMap<u64, u64> = BTreeMap::new();
    for (at_ms, units) in admitted {
        *slots.entry(at_ms / 10).or_insert(0) += units;
    }
    let slots: Vec<(u64, u64)> = slots.into_iter().collect();
    let mut most = 0;
    for (nth, &(first, _)) in slots.iter().enumerate() {
        let mut sum = 0;
        for &(last, units) in &slots[nth..] {
            sum += units;
            let interval_us = ((last - first + 1) * 10 + LATE_MS) * 1_000;
            most = most.max(u64::saturating_sub(sum, limit.bound_over(interval_us).max_units));
        }
    }
    most
}

pub(crate) fn lines(usages: &[LimitUsage]) -> Vec<Vec<String>> {
    let header = ["8 processes, one key", "used", "over", "calls/s"];
    let mut lines = vec![header.map(str::to_owned).to_vec()];
    for usage in usages {
        lines.push(vec![
            usage.name.clone(),
            format!("{:.1}%", 100.0 * usage.used),
            thousands(usage.over as f64),
            thousands(usage.calls_per_s),
        ]);
    }
    lines
}
