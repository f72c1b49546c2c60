//! Faults in random order on real servers, while callers continue. The test compares what was admitted with
//! the bound, and the time of each answer with the deadline.
//!
//! It takes a few seconds for each deployment. `make soak` runs it for `SOAK_SECONDS`, and prints a summary.

#![allow(clippy::panic, clippy::unwrap_used)]

mod callers;
mod overload;
mod summary;
mod world;

use std::time::{Duration, Instant};

use callers::Callers;
use summary::Summary;
use world::World;

/// The seed for the order of the faults: `SOAK_SEED`, or the same in every run.
fn seed() -> u64 {
    std::env::var("SOAK_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7)
}

/// How long to inject faults: `SOAK_SECONDS`, or 5 s.
fn duration() -> Duration {
    let seconds = std::env::var("SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(5))
}

fn soak(name: &str, mut world: World) {
    let callers = Callers::start(&world.url());
    let mut summary = Summary::new(name);
    let began = Instant::now();
    while began.elapsed() < duration() {
        let fault = world.next();
        callers.begin_turn(fault.may_lose_state());
        world.inject(fault);
        summary.recovered_after(fault, callers.wait_until_answered());
        callers.wait_until_used_up();
    }
    summary.print_and_assert(callers.stop(), began.elapsed());
}

#[test]
fn one_server_stays_within_the_bounds() {
    soak("one server", World::one(seed()));
}

#[test]
fn sentinels_stay_within_the_bounds() {
    soak("a primary, a replica and three sentinels", World::sentinels(seed()));
}

#[test]
fn cluster_stays_within_the_bounds() {
    soak("a cluster of three primaries, each with a replica", World::cluster(seed()));
}
