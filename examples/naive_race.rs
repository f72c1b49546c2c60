//! Why a counter that is read and then written admits too much, on a real Redis:
//! `cargo run -p tollgate --features redis --example naive_race -- redis://127.0.0.1:6379`
//!
//! 200 requests arrive at once, and the limit is 100 per day. The naive limiter reads the counter, compares it with the limit, and
//! then increments it. Between the read and the increment, other requests read the same old value. Tollgate decides in
//! one script, and Redis runs no other command during a script.

use std::error::Error;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;
use tollgate::{Decision, Redis, Scope};

const LIMIT: u64 = 100;
const REQUESTS: usize = 200;
const KEY: &str = "example:naive-race";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());

    let connection = redis::Client::open(&*url)?.get_multiplexed_async_connection().await?;
    println!("naive GET, compare, INCR: {} of {REQUESTS} admitted", naive(connection).await?);

    let limiter = Redis::at(&url)?.prefix("example:")?.build()?;
    let limit = format!("fixed-window limit={LIMIT} window=24h");
    let scope = limiter.scope("naive-race", limit.as_str())?;
    scope.reset("everyone").await?;
    println!("tollgate, one script:     {} of {REQUESTS} admitted", exact(&scope).await?);
    Ok(())
}

/// Returns how many requests the naive limiter admits.
async fn naive(mut connection: MultiplexedConnection) -> redis::RedisResult<usize> {
    let _: () = connection.del(KEY).await?;
    let mut requests = JoinSet::new();
    for _ in 0..REQUESTS {
        let mut connection = connection.clone();
        requests.spawn(async move {
            let spent: Option<u64> = connection.get(KEY).await?;
            if spent.unwrap_or(0) >= LIMIT {
                return Ok(false);
            }
            // Here is the race: many requests have read the same `spent`.
            let _: u64 = connection.incr(KEY, 1).await?;
            Ok(true)
        });
    }
    let admitted: redis::RedisResult<Vec<bool>> = requests.join_all().await.into_iter().collect();
    let _: () = connection.del(KEY).await?;
    Ok(admitted?.into_iter().filter(|&is_admitted| is_admitted).count())
}

/// Returns how many requests Tollgate admits.
async fn exact(scope: &Scope) -> Result<usize, tollgate::Error> {
    let mut requests = JoinSet::new();
    for _ in 0..REQUESTS {
        let scope = scope.clone();
        requests.spawn(async move { scope.check("everyone").await });
    }
    let decisions: Result<Vec<Decision>, _> = requests.join_all().await.into_iter().collect();
    Ok(decisions?.iter().filter(|decision| decision.is_allowed()).count())
}
