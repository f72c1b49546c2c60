//! Measures operations on a Redis that this program starts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use redis::cmd;
use tollgate::{OnFailure, Redis};
use tollgate_bench::show_progress;
use tollgate_launcher::{Flavour, Launch, Server};

use crate::operations::{HoldCaller, HoldOperation};

/// The number of turns of each operation that count. One turn before these warms up.
const ROUNDS: usize = 20;

/// The number of operations of all callers together in a turn.
const OPERATIONS: usize = 6_400;

/// The numbers of callers.
const CALLERS: [usize; 2] = [1, 64];

/// Enough that a busy machine causes no failures.
const DEADLINE: Duration = Duration::from_secs(5);

/// For each operation, what one took in each turn.
#[derive(Default)]
pub(crate) struct RedisTurns {
    /// The time of the turn, divided by the number of operations.
    pub(crate) wall_us: Vec<Vec<f64>>,
    /// The CPU time of Redis, divided by the number of operations.
    pub(crate) cpu_us: Vec<Vec<f64>>,
}

/// Returns the version of Redis, and the turns with each number of callers.
pub(crate) async fn measure() -> Result<(String, [RedisTurns; 2])> {
    let server = Launch::new(Flavour::Redis).start()?;
    let limiter =
        Redis::at(&server.url())?.on_failure(OnFailure::Closed).deadline(DEADLINE).build()?;
    let mut callers = Vec::new();
    for nth in 0..CALLERS[1] {
        callers.push(Arc::new(HoldCaller::new(&limiter, nth).await?));
    }
    let alone = turns(&server, &callers[..CALLERS[0]]).await?;
    let together = turns(&server, &callers).await?;
    let version = field(&server, "server", "redis_version")?;
    Ok((version, [alone, together]))
}

async fn turns(server: &Server, callers: &[Arc<HoldCaller>]) -> Result<RedisTurns> {
    let none = vec![Vec::new(); HoldOperation::ALL.len()];
    let mut turns = RedisTurns { wall_us: none.clone(), cpu_us: none };
    for round in 0..=ROUNDS {
        show_progress(&format!("{} callers on Redis, round {round} of {ROUNDS}", callers.len()));
        for (nth, operation) in HoldOperation::ALL.into_iter().enumerate() {
            let before_us = cpu_us(server)?;
            let began = Instant::now();
            take_turn(callers, operation).await?;
            let wall_us = began.elapsed().as_secs_f64() * 1e6;
            let spent_us = cpu_us(server)? - before_us;
            if round > 0 {
                turns.wall_us[nth].push(wall_us / OPERATIONS as f64);
                turns.cpu_us[nth].push(spent_us / OPERATIONS as f64);
            }
        }
    }
    Ok(turns)
}

async fn take_turn(callers: &[Arc<HoldCaller>], operation: HoldOperation) -> Result<()> {
    let each = OPERATIONS / callers.len();
    let run = |caller: &Arc<HoldCaller>| {
        let caller = Arc::clone(caller);
        tokio::spawn(async move {
            for _ in 0..each {
                caller.run(operation).await?;
            }
            Ok::<_, anyhow::Error>(())
        })
    };
    let tasks: Vec<_> = callers.iter().map(run).collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// Returns the CPU time that all threads of the server have used.
fn cpu_us(server: &Server) -> Result<f64> {
    let seconds = |name| -> Result<f64> { Ok(field(server, "cpu", name)?.parse()?) };
    Ok((seconds("used_cpu_user")? + seconds("used_cpu_sys")?) * 1e6)
}

/// Reads a field of a section of `INFO`.
fn field(server: &Server, section: &str, name: &str) -> Result<String> {
    let info: String = server.ask(cmd("INFO").arg(section))?;
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.map(str::to_owned).with_context(|| format!("INFO has no `{name}`"))
}
