//! Measures the bytes that Redis uses for a key, and for an entry of a log.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use redis::{Pipeline, pipe};

use crate::contenders::{CALLERS, Caller};
use crate::ours::Ours;
use crate::server::{Database, MeasuredRedis};
use crate::traffic::{MANY_KEYS, share};
use tollgate_bench::random::Random;
use tollgate_bench::show_progress;

/// The number of entries of the log.
const ENTRIES: usize = 10_000;

const LOG: &str = "sliding-window-log limit=10000 window=1d";

/// The expiry of the articles' keys, which equals the windows of our limits.
const TTL_S: i64 = 86_400;

const KEYS_IN_A_PIPELINE: usize = 500;

/// How the state of a key is stored.
#[derive(Clone, Copy)]
enum Layout {
    /// By our limiter, under this limit.
    Ours(&'static str),
    /// By the commands of articles, with a TTL.
    Article(fn(&mut Pipeline, &str)),
}

/// The layouts. No limit refills a unit within an hour, so that no key expires before its memory is measured.
const LAYOUTS: &[(&str, Layout)] = &[
    ("fixed-window", Layout::Ours("fixed-window limit=1000 window=1d")),
    ("sliding-window-log, 1 entry", Layout::Ours(LOG)),
    ("sliding-window-counter", Layout::Ours("sliding-window-counter limit=1000 window=1d")),
    ("token-bucket", Layout::Ours("token-bucket capacity=1000 refill=1/h")),
    ("leaky-bucket, policing", Layout::Ours("leaky-bucket capacity=1000 leak=1/h mode=policing")),
    ("leaky-bucket, shaping", Layout::Ours("leaky-bucket capacity=1000 leak=1/h mode=shaping")),
    ("articles: string counter", Layout::Article(counter)),
    ("articles: hash of two fields", Layout::Article(hash)),
    ("articles: sorted set, 1 member", Layout::Article(sorted_set)),
];

/// The memory of each layout and of each log, by name.
pub(crate) struct MemoryMeasurements {
    pub(crate) bytes_per_key: Vec<(&'static str, f64)>,
    pub(crate) bytes_per_entry: Vec<(&'static str, f64)>,
}

pub(crate) async fn measure(redis: &MeasuredRedis) -> Result<MemoryMeasurements> {
    let mut bytes_per_key = Vec::new();
    for &(name, layout) in LAYOUTS {
        show_progress(&format!("memory of {MANY_KEYS} keys: {name}"));
        bytes_per_key.push((name, growth_per_key(redis, layout).await?));
    }
    show_progress(&format!("memory of {ENTRIES} entries"));
    let bytes_per_entry = vec![
        ("sliding-window-log", our_log(redis).await?),
        ("articles: sorted set", sorted_set_log(redis).await?),
    ];
    Ok(MemoryMeasurements { bytes_per_key, bytes_per_entry })
}

/// Returns by how much the server's memory grows for each key.
async fn growth_per_key(redis: &MeasuredRedis, layout: Layout) -> Result<f64> {
    redis.clear().await?;
    let before = redis.settled_bytes().await?;
    match layout {
        Layout::Ours(limit) => check_all_once(Ours::connect(&redis.url(), limit)?).await?,
        Layout::Article(write) => write_all(redis, write).await?,
    }
    redis.expect_keys(MANY_KEYS).await?;
    Ok((redis.settled_bytes().await? - before) / MANY_KEYS as f64)
}

async fn check_all_once(ours: Ours) -> Result<()> {
    let check_share = async |mut caller: Caller, nth| -> Result<()> {
        let mut keys = share(nth, CALLERS, MANY_KEYS);
        while caller.call(&mut keys).await? > 0 {}
        Ok(())
    };
    let tasks: Vec<_> = (0..CALLERS)
        .map(|nth| tokio::spawn(check_share(Caller::Ours(ours.clone()), nth)))
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn write_all(redis: &MeasuredRedis, write: fn(&mut Pipeline, &str)) -> Result<()> {
    let mut connection = redis.connect(Database::Buckets).await?;
    let keys: Vec<&str> = share(0, 1, MANY_KEYS).collect();
    for keys in keys.chunks(KEYS_IN_A_PIPELINE) {
        let mut commands = pipe();
        for id in keys {
            let key = format!("rate_limit:api:{id}");
            write(&mut commands, &key);
            commands.expire(&key, TTL_S).ignore();
        }
        commands.exec_async(&mut connection).await?;
    }
    Ok(())
}

fn counter(commands: &mut Pipeline, key: &str) {
    commands.incr(key, 1).ignore();
}

/// Writes the hash as the script leaves it after the first check. It is smallest then.
fn hash(commands: &mut Pipeline, key: &str) {
    let now_us = now_us();
    commands.hset_multiple(key, &[("tokens", 999), ("last_refill", now_us)]).ignore();
}

fn sorted_set(commands: &mut Pipeline, key: &str) {
    let now_us = now_us();
    add_member(commands, key, now_us, now_us);
}

/// Adds a member. Its score is the time in milliseconds; the member is that time followed by a unique number.
fn add_member(commands: &mut Pipeline, key: &str, at_us: u64, unique: u64) {
    let at_ms = at_us / 1_000;
    commands.zadd(key, format!("{at_ms}-{unique:013x}"), at_ms).ignore();
}

async fn our_log(redis: &MeasuredRedis) -> Result<f64> {
    redis.clear().await?;
    let ours = Ours::connect(&redis.url(), LOG)?;
    for at_us in log_times_us() {
        ensure!(ours.check_at_us("user:00000042", at_us).await?, "the log refused an entry");
    }
    Ok(redis.bytes_of_all_keys().await? / ENTRIES as f64)
}

async fn sorted_set_log(redis: &MeasuredRedis) -> Result<f64> {
    redis.clear().await?;
    let mut commands = pipe();
    for (nth, at_us) in log_times_us().enumerate() {
        add_member(&mut commands, "user:00000042", at_us, at_us ^ (nth as u64) << 20);
    }
    commands.exec_async(&mut redis.connect(Database::Buckets).await?).await?;
    Ok(redis.bytes_of_all_keys().await? / ENTRIES as f64)
}

/// Returns the times of the entries in the last half hour: one at a random time in each 180 ms.
fn log_times_us() -> impl Iterator<Item = u64> {
    let mut random = Random::new(0);
    let start_us = now_us() - Duration::from_mins(30).as_micros() as u64;
    (0..ENTRIES as u64).map(move |nth| start_us + nth * 180_000 + random.below(180_000) as u64)
}

fn now_us() -> u64 {
    // OK because the clock is between 1970 and the year 586,000.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}
