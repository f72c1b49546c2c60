//! Measures the checks per second of 64 callers. Each sends its next check as soon as it has its answer.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::contenders::{Caller, RedisContender};
use crate::server::MeasuredRedis;
use crate::traffic;
use tollgate_bench::show_progress;
use tollgate_bench::statistics::median;

/// The number of turns of each contender that count. One turn before these warms up.
const ROUNDS: usize = 9;

const TURN: Duration = Duration::from_secs(1);

/// The throughput of one contender in all its turns.
pub(crate) struct Throughput {
    pub(crate) contender: RedisContender,
    /// The checks per second of the best turn, which other programs disturbed least.
    pub(crate) checks_per_s: f64,
    /// The median CPU time of Redis for a check.
    pub(crate) redis_us: f64,
    /// The median of the rounds' ratios: this contender's checks divided by our checks of the same round.
    pub(crate) to_ours: f64,
}

/// The result of one turn.
#[derive(Clone, Copy)]
struct ThroughputTurn {
    checks_per_s: f64,
    redis_us: f64,
}

pub(crate) async fn measure(redis: &MeasuredRedis) -> Result<Vec<Throughput>> {
    let mut line_up = Vec::new();
    for contender in RedisContender::FOR_THROUGHPUT {
        line_up.push((contender, contender.callers(redis).await?, Vec::new()));
    }
    for round in 0..=ROUNDS {
        for (contender, callers, turns) in &mut line_up {
            show_progress(&format!("throughput, round {round} of {ROUNDS}: {}", contender.name()));
            let turn = take_turn(redis, callers).await?;
            if round > 0 {
                turns.push(turn);
            }
        }
    }
    let ours = line_up.first().map(|(.., turns)| turns.clone()).unwrap_or_default();
    let result = |(contender, _, turns)| summary(contender, turns, &ours);
    Ok(line_up.into_iter().map(result).collect())
}

fn summary(
    contender: RedisContender,
    turns: Vec<ThroughputTurn>,
    ours: &[ThroughputTurn],
) -> Throughput {
    let ratios = turns.iter().zip(ours).map(|(turn, our)| turn.checks_per_s / our.checks_per_s);
    Throughput {
        contender,
        checks_per_s: turns.iter().map(|turn| turn.checks_per_s).fold(0.0, f64::max),
        redis_us: median(turns.iter().map(|turn| turn.redis_us)),
        to_ours: median(ratios),
    }
}

async fn take_turn(redis: &MeasuredRedis, callers: &[Caller]) -> Result<ThroughputTurn> {
    let before_us = redis.cpu_us().await?;
    let start = Instant::now();
    let tasks: Vec<_> = callers
        .iter()
        .zip(0..)
        .map(|(caller, nth)| tokio::spawn(call_until(start + TURN, caller.clone(), nth)))
        .collect();
    let mut checks = 0;
    for task in tasks {
        checks += task.await??;
    }
    let elapsed = start.elapsed();
    let spent_us = redis.cpu_us().await? - before_us;
    ensure!(checks > 0, "no check was answered");
    let checks = checks as f64;
    Ok(ThroughputTurn { checks_per_s: checks / elapsed.as_secs_f64(), redis_us: spent_us / checks })
}

async fn call_until(end: Instant, mut caller: Caller, nth: u32) -> Result<usize> {
    let mut keys = traffic::uniform(nth);
    let mut checks = 0;
    while Instant::now() < end {
        checks += caller.call(&mut keys).await?;
    }
    Ok(checks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_taken_within_each_round() {
        // The machine was twice as fast in the second round, for both.
        let turns = |speeds: [f64; 3]| {
            speeds.map(|checks_per_s| ThroughputTurn { checks_per_s, redis_us: 3.0 }).to_vec()
        };
        let ours = turns([100.0, 200.0, 100.0]);
        let summary = summary(RedisContender::Script, turns([50.0, 100.0, 60.0]), &ours);
        assert_eq!((summary.checks_per_s, summary.to_ours), (100.0, 0.5));
    }
}
