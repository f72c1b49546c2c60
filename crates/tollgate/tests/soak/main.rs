//! Faults in any order, on real servers, while callers go on: what is admitted is held against the
//! bound, and how long an answer takes against the deadline.
//!
//! A few seconds for each deployment; `make soak` takes `SOAK_SECONDS`, and prints what happened.

#![allow(clippy::panic, clippy::unwrap_used)]

mod callers;
mod summary;
mod world;

use std::time::{Duration, Instant};

use callers::Callers;
use summary::Summary;
use world::World;

/// Faults come in the same order every time; `SOAK_SEED` is for another.
fn seed() -> u64 {
    std::env::var("SOAK_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7)
}

fn for_how_long() -> Duration {
    let seconds = std::env::var("SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(5))
}

fn soak(name: &str, mut world: World) {
    let callers = Callers::start(&world.url());
    let mut summary = Summary::new(name);
    let began = Instant::now();
    while began.elapsed() < for_how_long() {
        let fault = world.next();
        callers.begin_turn(fault.may_lose_state());
        world.inject(fault);
        summary.recovered_after(fault, callers.wait_until_answered());
        callers.wait_until_used_up();
    }
    summary.hold_against_the_bound(callers.stop(), began.elapsed());
}

#[test]
fn one_server() {
    soak("one server", World::one(seed()));
}

#[test]
fn sentinels() {
    soak("a primary, a replica and three sentinels", World::sentinels(seed()));
}

#[test]
fn a_cluster() {
    soak("a cluster of three primaries, each with a replica", World::cluster(seed()));
}
