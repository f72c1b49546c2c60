//! Measures how long a single caller waits for an answer.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::contenders::{Caller, RedisContender};
use crate::server::MeasuredRedis;
use crate::traffic;
use tollgate_bench::show_progress;
use tollgate_bench::statistics::{median, quantile};

/// The number of turns of each contender that count. One turn before these warms up.
const ROUNDS: usize = 60;

/// The number of calls in a turn.
const CALLS: usize = 500;

/// The latency of one contender.
pub(crate) struct Latency {
    pub(crate) contender: RedisContender,
    pub(crate) median_us: f64,
    /// One call in 100 took longer.
    pub(crate) p99_us: f64,
    /// The median of the rounds' ratios: this contender's median divided by our median of the same round.
    pub(crate) to_ours: f64,
}

pub(crate) async fn measure(redis: &MeasuredRedis) -> Result<Vec<Latency>> {
    let mut line_up = Vec::new();
    for contender in RedisContender::FOR_LATENCY {
        let caller = contender.callers(redis).await?.pop().context("no caller")?;
        line_up.push((contender, caller, Vec::new()));
    }
    for round in 0..=ROUNDS {
        for (contender, caller, turns) in &mut line_up {
            show_progress(&format!("latency, round {round} of {ROUNDS}: {}", contender.name()));
            let turn = tokio::spawn(timed_calls(caller.clone())).await??;
            if round > 0 {
                turns.push(turn);
            }
        }
    }
    let ours = line_up.first().map(|(.., turns)| turns.clone()).unwrap_or_default();
    let result = |(contender, _, turns)| summary(contender, turns, &ours);
    Ok(line_up.into_iter().map(result).collect())
}

/// Takes one turn, and returns the time of each call.
async fn timed_calls(mut caller: Caller) -> Result<Vec<f64>> {
    let mut keys = traffic::uniform(0);
    let mut calls_us = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let start = Instant::now();
        caller.call(&mut keys).await?;
        calls_us.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(calls_us)
}

fn summary(contender: RedisContender, turns: Vec<Vec<f64>>, ours: &[Vec<f64>]) -> Latency {
    let middle = |turn: &Vec<f64>| median(turn.iter().copied());
    let ratios = turns.iter().zip(ours).map(|(turn, our)| middle(turn) / middle(our));
    let to_ours = median(ratios);
    let mut calls_us = turns.concat();
    calls_us.sort_unstable_by(f64::total_cmp);
    let [median_us, p99_us] = [0.5, 0.99].map(|share| quantile(&calls_us, share));
    Latency { contender, median_us, p99_us, to_ours }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turn_is_compared_with_our_turn_of_the_same_round() {
        let ours = [vec![50.0; 3], vec![100.0; 3]];
        let latency = summary(RedisContender::Script, vec![vec![60.0; 3], vec![120.0; 3]], &ours);
        assert_eq!((latency.median_us, latency.p99_us, latency.to_ours), (60.0, 120.0, 1.2));
    }
}
