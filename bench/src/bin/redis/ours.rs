//! Our limiter on Redis.

use anyhow::{Context, Result};
use tollgate::{Limit, OnFailure, Redis, Scope};

use crate::server::DEADLINE;

/// One limit, with its own connections to Redis.
#[derive(Clone)]
pub(crate) struct Ours(Scope);

impl Ours {
    pub(crate) fn connect(url: &str, limit: &str) -> Result<Ours> {
        let limit: Limit = limit.parse().with_context(|| limit.to_owned())?;
        let limiter = Redis::at(url)?.on_failure(OnFailure::Closed).deadline(DEADLINE).build()?;
        Ok(Ours(limiter.scope("api", limit)?))
    }

    /// Makes a check, and returns whether it is allowed.
    pub(crate) async fn check(&self, key: &str) -> Result<bool> {
        Ok(self.0.check(key).await?.is_allowed())
    }

    /// Makes a check at a time that the caller chooses, and returns whether it is allowed.
    pub(crate) async fn check_at_us(&self, key: &str, now_us: u64) -> Result<bool> {
        Ok(self.0.check(key).at_us(now_us).await?.is_allowed())
    }
}
