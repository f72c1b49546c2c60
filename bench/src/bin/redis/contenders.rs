//! The clients of Redis that are compared, and how each of them makes a check.

use std::sync::Arc;

use anyhow::{Result, ensure};
use redis::aio::MultiplexedConnection;
use redis::{cmd, pipe};

use crate::ours::Ours;
use crate::server::{Database, MeasuredRedis};

/// The number of concurrent callers.
pub(crate) const CALLERS: usize = 64;

/// The number of commands in a pipeline.
const PIPELINE: usize = 64;

/// The capacity is large enough to allow every check. The refill is so slow that no bucket becomes full again.
const CAPACITY: u64 = 1_000_000;
const REFILL_PER_S: u64 = 1;

const TOKEN_BUCKET: &str = include_str!("token_bucket.lua");

/// A way to use Redis that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RedisContender {
    Ours,
    /// The script of articles about rate limits, with all callers on one connection.
    Script,
    /// The same script, with one connection for each caller.
    ScriptOnManyConnections,
    /// A script that does nothing.
    EmptyScript,
    /// A command that counts: the upper bound for a limiter on one connection.
    Incr,
    /// The same command, of which each caller sends 64 at once.
    IncrInPipelines,
}

impl RedisContender {
    /// The contenders that are measured with many callers. The first one is ours, with which the others are compared.
    pub(crate) const FOR_THROUGHPUT: [RedisContender; 5] = [
        RedisContender::Ours,
        RedisContender::Script,
        RedisContender::ScriptOnManyConnections,
        RedisContender::Incr,
        RedisContender::IncrInPipelines,
    ];

    /// The contenders that are measured with a single caller. The first one is ours here too.
    pub(crate) const FOR_LATENCY: [RedisContender; 3] =
        [RedisContender::Ours, RedisContender::Script, RedisContender::EmptyScript];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            RedisContender::Ours => "tollgate",
            RedisContender::Script => "EVALSHA of the articles' script, 1 connection",
            RedisContender::ScriptOnManyConnections => {
                "EVALSHA of the articles' script, 64 connections"
            }
            RedisContender::EmptyScript => "EVALSHA of `return 1`, 1 connection",
            RedisContender::Incr => "INCR, 1 connection",
            RedisContender::IncrInPipelines => "INCR, 64 in a pipeline, 1 connection",
        }
    }

    /// Returns the concurrent callers.
    pub(crate) async fn callers(self, redis: &MeasuredRedis) -> Result<Vec<Caller>> {
        let caller = match self {
            RedisContender::Ours => Caller::Ours(our_bucket(redis)?),
            RedisContender::Script => {
                script(redis, redis.connect(Database::Buckets).await?).await?
            }
            RedisContender::EmptyScript => Caller::EmptyScript {
                connection: redis.connect(Database::Buckets).await?,
                sha: redis.load("return 1").await?.into(),
            },
            RedisContender::Incr => Caller::Incr(redis.connect(Database::Counters).await?),
            RedisContender::IncrInPipelines => {
                Caller::IncrInPipelines(redis.connect(Database::Counters).await?)
            }
            RedisContender::ScriptOnManyConnections => {
                let mut callers = Vec::new();
                for _ in 0..CALLERS {
                    callers.push(script(redis, redis.connect(Database::Buckets).await?).await?);
                }
                return Ok(callers);
            }
        };
        Ok(vec![caller; CALLERS])
    }
}

fn our_bucket(redis: &MeasuredRedis) -> Result<Ours> {
    let limit = format!("token-bucket capacity={CAPACITY} refill={REFILL_PER_S}/s");
    Ours::connect(&redis.url(), &limit)
}

async fn script(redis: &MeasuredRedis, connection: MultiplexedConnection) -> Result<Caller> {
    Ok(Caller::Script { connection, sha: redis.load(TOKEN_BUCKET).await?.into() })
}

/// One of the concurrent callers.
#[derive(Clone)]
pub(crate) enum Caller {
    Ours(Ours),
    Script { connection: MultiplexedConnection, sha: Arc<str> },
    EmptyScript { connection: MultiplexedConnection, sha: Arc<str> },
    Incr(MultiplexedConnection),
    IncrInPipelines(MultiplexedConnection),
}

impl Caller {
    /// Checks the next key, or the next 64 keys in a pipeline, and waits for the answer. Returns the number of keys that
    /// were checked, which is 0 at the end of `keys`.
    pub(crate) async fn call(
        &mut self,
        keys: &mut (impl Iterator<Item = &'static str> + Send),
    ) -> Result<usize> {
        if let Caller::IncrInPipelines(connection) = self {
            let mut commands = pipe();
            keys.take(PIPELINE).for_each(|key| _ = commands.incr(key, 1));
            return Ok(commands.query_async::<Vec<u64>>(connection).await?.len());
        }
        let Some(key) = keys.next() else { return Ok(0) };
        ensure!(self.check(key).await?, "{key} was refused: the limit is too small");
        Ok(1)
    }

    async fn check(&mut self, key: &str) -> Result<bool> {
        match self {
            Caller::Ours(ours) => ours.check(key).await,
            Caller::Script { connection, sha } => {
                let mut command = cmd("EVALSHA");
                command.arg(&**sha).arg(1).arg(key).arg(CAPACITY).arg(REFILL_PER_S);
                let (allowed, _left): (bool, u64) = command.query_async(connection).await?;
                Ok(allowed)
            }
            Caller::EmptyScript { connection, sha } => {
                Ok(cmd("EVALSHA").arg(&**sha).arg(1).arg(key).query_async(connection).await?)
            }
            Caller::Incr(connection) | Caller::IncrInPipelines(connection) => {
                let count: u64 = cmd("INCR").arg(key).query_async(connection).await?;
                Ok(count > 0)
            }
        }
    }
}
