//! Checks per second, microseconds per check and bytes per key on a real Redis. Our limiter is compared with the script
//! of articles about rate limits, and with the cheapest commands of Redis. The program starts the Redis, prints the
//! tables and draws `docs/pictures/redis.svg`.
//!
//! The layout: [`contenders`] has the clients that are compared, and [`ours`] is our client; [`server`] starts Redis,
//! [`traffic`] has the keys, [`cpu`] fixes the CPUs of threads; [`throughput`], [`latency`] and [`memory`] measure;
//! [`report`] and [`picture`] show the results.

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
use server::MeasuredRedis;
use tokio::runtime::Builder;
use tollgate_bench::{show_progress, table};

const NOTES: &str = "\
The callers are tasks on two threads. They share two CPUs with Redis, which stays on one of them; a single caller uses
the other CPU. They connect over TCP on this machine. Each caller sends its next request when it has its answer, for a
random one of 10,000 keys with ids of 13 bytes. Every check is allowed, by a token bucket of 1,000,000 that gets one token
per second. All contenders take turns on one server: for throughput in 9 rounds of 1 s each, of which the best counts; for
latency in 60 rounds of 500 calls. \"x tollgate\" is the median of the ratios to ours in the same round. \"Redis us per
check\" is the CPU time of Redis (INFO cpu) divided by the number of checks.
The articles' script is bench/src/bin/redis/token_bucket.lua, with HMGET, TIME, HSET and EXPIRE. All contenders but ours use
redis-rs with its multiplexed connection. INCR limits nothing: it shows the cost of one command.
Bytes per key: the growth of used_memory for 100,000 keys with a TTL after one check each, including Redis's tables; the
articles' keys are like rate_limit:api:user:00000042, ours like tollgate:{user:00000042}:api. Bytes per entry: MEMORY USAGE
of a log of 10,000 entries, divided by 10,000; a member of the sorted set has 27 bytes, the time and a unique part.";

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
    let single = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        // OK to ignore an error: if there is only one CPU, starting Redis fails before this.
        .on_thread_start(|| _ = Cpu::SingleCaller.use_for_this_thread())
        .build()?;
    let redis = many.block_on(MeasuredRedis::start())?;
    let throughput = many.block_on(throughput::measure(&redis))?;
    let latency = single.block_on(latency::measure(&redis))?;
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
