//! The time of a check of one hot key: in memory, with a lease, and strict.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tollgate::{Clock, LeaseOptions, Limiter, Redis, Scope};
use tollgate_bench::show_progress;
use tollgate_bench::statistics::quantile;
use tollgate_bench::table::thousands;
use tollgate_launcher::{Flavour, Launch};

/// A limit that is never spent, so that every check is allowed.
const LIMIT: &str = "token-bucket capacity=4000000000 refill=1000000000/s";

const PASSES: usize = 5;
const CALLERS: usize = 64;
const TOGETHER: Duration = Duration::from_secs(2);

/// The ways of checking, in the order of the table.
const NAMES: [&str; 3] = ["memory", "leased", "strict"];

/// The times of one way of checking.
pub(crate) struct CheckTimes {
    name: &'static str,
    ns: f64,
    p999_us: f64,
    together_per_s: f64,
    store_calls_per_s: Option<f64>,
}

pub(crate) fn measure() -> Result<Vec<CheckTimes>> {
    let server = Launch::new(Flavour::Redis).start()?;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let redis = || Redis::at(&server.url())?.deadline(Duration::from_secs(1)).build();
        let memory = Limiter::builder().clock(Clock::system()).build();
        let scopes = [
            memory.scope("hot", LIMIT)?,
            redis()?.scope("hot", LIMIT)?.leased(LeaseOptions::default())?,
            redis()?.scope("hot", LIMIT)?,
        ];
        warm_up(&scopes[1]).await?;
        let mut best = [f64::INFINITY; NAMES.len()];
        for _ in 0..PASSES {
            for (scope, best) in scopes.iter().zip(&mut best) {
                show_progress("one caller, one key");
                *best = best.min(one_caller(scope).await?);
            }
        }
        let mut times = Vec::new();
        for ((scope, name), ns) in scopes.iter().zip(NAMES).zip(best) {
            let p999_us = slowest(scope).await?;
            let before = scope.limiter().lease_counters();
            let together_per_s = together(scope).await?;
            let after = scope.limiter().lease_counters();
            let calls =
                (after.asks + after.background_calls) - (before.asks + before.background_calls);
            let store_calls_per_s = match name {
                "memory" => None,
                "leased" => Some(calls as f64 / TOGETHER.as_secs_f64()),
                _ => Some(together_per_s),
            };
            times.push(CheckTimes { name, ns, p999_us, together_per_s, store_calls_per_s });
        }
        Ok(times)
    })
}

/// Checks until the key is leased, and the lease has grown to the demand.
async fn warm_up(scope: &Scope) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        let _ = scope.check("key").await?;
    }
    ensure!(scope.check("key").await?.is_leased(), "the key is not leased");
    Ok(())
}

fn checks_of(scope: &Scope) -> usize {
    if scope.is_local() || scope.is_leased() { 200_000 } else { 20_000 }
}

/// Returns nanoseconds for each check.
async fn one_caller(scope: &Scope) -> Result<f64> {
    let checks = checks_of(scope);
    let began = Instant::now();
    for _ in 0..checks {
        ensure!(scope.check("key").await?.is_allowed(), "the limit is spent");
    }
    Ok(began.elapsed().as_nanos() as f64 / checks as f64)
}

/// Returns the time that 99.9% of the checks do not exceed.
async fn slowest(scope: &Scope) -> Result<f64> {
    let mut times = Vec::with_capacity(checks_of(scope));
    for _ in 0..checks_of(scope) {
        let began = Instant::now();
        ensure!(scope.check("key").await?.is_allowed(), "the limit is spent");
        times.push(began.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    Ok(quantile(&times, 0.999) as f64 / 1e3)
}

/// Returns the checks of all callers for each second.
async fn together(scope: &Scope) -> Result<f64> {
    show_progress("64 callers, one key");
    let mut callers = JoinSet::new();
    let until = Instant::now() + TOGETHER;
    for _ in 0..CALLERS {
        let scope = scope.clone();
        callers.spawn(async move {
            let mut checks = 0_u64;
            while Instant::now() < until {
                for _ in 0..16 {
                    // An error counts as a check that took its time.
                    let _ = scope.check("key").await;
                }
                checks += 16;
                tokio::task::yield_now().await;
            }
            checks
        });
    }
    let checks: u64 = callers.join_all().await.into_iter().sum();
    Ok(checks as f64 / TOGETHER.as_secs_f64())
}

pub(crate) fn lines(times: &[CheckTimes]) -> Vec<Vec<String>> {
    let strict = times.last();
    let header = [
        "one hot key",
        "one caller, ns",
        "times strict",
        "99.9%, us",
        "64 callers, checks/s",
        "times strict",
        "calls/s",
    ];
    let mut lines = vec![header.map(str::to_owned).to_vec()];
    for row in times {
        let ratio = |of: fn(&CheckTimes) -> f64| strict.map_or(1.0, |strict| of(row) / of(strict));
        lines.push(vec![
            row.name.to_owned(),
            format!("{:.0}", row.ns),
            format!("{:.0}", 1.0 / ratio(|times| times.ns)),
            format!("{:.1}", row.p999_us),
            thousands(row.together_per_s),
            format!("{:.0}", ratio(|times| times.together_per_s)),
            row.store_calls_per_s.map_or_else(|| "-".to_owned(), thousands),
        ]);
    }
    lines
}
