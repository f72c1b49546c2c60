//! Checks per second, microseconds and bytes on a real Redis: ours beside the script that articles
//! give, and beside the cheapest commands of Redis. It starts the Redis itself, prints the tables
//! and draws `docs/pictures/redis.svg`.
//!
//! The layout: [`contenders`] has the contenders, of which [`ours`] is ours; [`server`] is the Redis,
//! [`traffic`] has the keys, [`cpu`] places the threads; [`throughput`], [`latency`] and [`memory`]
//! measure; [`report`] and [`picture`] show the results.

mod contenders;
mod cpu;
mod latency;
mod memory;
mod ours;
mod picture;
mod report;
mod server;
mod throughput;
mod traffic;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use cpu::Cpu;
use server::Redis;
use tokio::runtime::Builder;
use tollgate_bench::{show_progress, table};

const NOTES: &str = "\
The callers are tasks on two threads and share two CPUs with Redis, which stays on one of them; a lone
caller has the other. Over TCP on this machine; each asks again once it is answered, for any of 10,000
keys with 13-byte ids. Every check is allowed, by a token bucket of 1,000,000 that gets one token a
second. All take turns on one server: throughput in 9 rounds of 1 s each, of which the best counts,
latency in 60 of 500 calls; x tollgate is the median of what they are of ours in the same round. Redis
us per check is its CPU time (INFO cpu) by all checks.
The articles' script is bench/src/bin/redis/token_bucket.lua: HMGET, TIME, HSET, EXPIRE; all but ours
are redis-rs with its multiplexed connection. INCR limits nothing: it is what one command costs.
Bytes per key: growth of used_memory by 100,000 keys with a TTL that were each asked once, tables
included; the articles' keys are like rate_limit:api:user:00000042, ours tollgate:{user:00000042}:api.
Bytes per entry: MEMORY USAGE of a log of 10,000, by its entries; the sorted set has a member of 27
bytes for each, its time and something unique.";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            show_progress("");
            eprintln!("error: redis: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let many = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let lone = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        // Starting Redis fails before this if there are not two CPUs.
        .on_thread_start(|| _ = Cpu::OfLoneCaller.take())
        .build()?;
    let redis = many.block_on(Redis::start())?;
    let throughput = many.block_on(throughput::measure(&redis))?;
    let latency = lone.block_on(latency::measure(&redis))?;
    let memory = many.block_on(memory::measure(&redis))?;
    let version = many.block_on(redis.version())?;
    show_progress("");
    println!("Redis {version}\n");
    for lines in [
        report::throughput_lines(&throughput),
        report::latency_lines(&latency),
        report::memory_lines(["100,000 keys", "bytes per key"], &memory.bytes_per_key),
        report::memory_lines(["a log of 10,000", "bytes per entry"], &memory.bytes_per_entry),
    ] {
        println!("{}", table::markdown(&lines));
    }
    println!("{NOTES}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures/redis.svg");
    fs::write(&path, picture::draw(&throughput)).with_context(|| path.display().to_string())
}
