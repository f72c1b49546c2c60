//! The contenders, and how each of them is called.

use std::sync::Arc;

use anyhow::{Result, ensure};
use redis::aio::MultiplexedConnection;
use redis::{cmd, pipe};

use crate::ours::Ours;
use crate::server::{Database, Redis};

/// The number of concurrent callers.
pub(crate) const CALLERS: usize = 64;

const PIPELINE: usize = 64;

/// Large enough to allow every check, and refilled so slowly that no key is ever full again.
const CAPACITY: u64 = 1_000_000;
const REFILL_PER_S: u64 = 1;

const TOKEN_BUCKET: &str = include_str!("token_bucket.lua");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Ours,
    /// A script as in articles, all callers on one connection.
    Script,
    /// The same, a connection for each caller.
    ScriptOnManyConnections,
    /// A script that does nothing.
    EmptyScript,
    /// The upper bound for a limiter on one connection: a command that counts.
    Incr,
    /// The same, each caller sending 64 at once.
    IncrInPipelines,
}

impl Contender {
    /// The contenders with many callers. Ours is the first, with which the others are compared.
    pub(crate) const OF_THROUGHPUT: [Contender; 5] = [
        Contender::Ours,
        Contender::Script,
        Contender::ScriptOnManyConnections,
        Contender::Incr,
        Contender::IncrInPipelines,
    ];

    /// The contenders with a single caller. Ours is the first here too.
    pub(crate) const OF_LATENCY: [Contender; 3] =
        [Contender::Ours, Contender::Script, Contender::EmptyScript];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Contender::Ours => "tollgate",
            Contender::Script => "EVALSHA of the articles' script, 1 connection",
            Contender::ScriptOnManyConnections => "EVALSHA of the articles' script, 64 connections",
            Contender::EmptyScript => "EVALSHA of `return 1`, 1 connection",
            Contender::Incr => "INCR, 1 connection",
            Contender::IncrInPipelines => "INCR, 64 in a pipeline, 1 connection",
        }
    }

    pub(crate) async fn callers(self, redis: &Redis) -> Result<Vec<Caller>> {
        let caller = match self {
            Contender::Ours => Caller::Ours(our_bucket(redis)?),
            Contender::Script => script(redis, redis.connect(Database::Buckets).await?).await?,
            Contender::EmptyScript => Caller::EmptyScript {
                connection: redis.connect(Database::Buckets).await?,
                sha: redis.load("return 1").await?.into(),
            },
            Contender::Incr => Caller::Incr(redis.connect(Database::Counters).await?),
            Contender::IncrInPipelines => {
                Caller::IncrInPipelines(redis.connect(Database::Counters).await?)
            }
            Contender::ScriptOnManyConnections => {
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

fn our_bucket(redis: &Redis) -> Result<Ours> {
    let limit = format!("token-bucket capacity={CAPACITY} refill={REFILL_PER_S}/s");
    Ours::connect(&redis.url(), &limit)
}

async fn script(redis: &Redis, connection: MultiplexedConnection) -> Result<Caller> {
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
    /// Checks the next key, or as many keys as fit its pipeline, and waits for the answer. Returns the number of
    /// keys, 0 at the end of `keys`.
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
