//! Our limiter on Redis.

use anyhow::{Context, Result};
use tollgate::{Limit, OnFailure, Redis, Scope};

use crate::server::DEADLINE;

/// A limit, on connections of its own.
#[derive(Clone)]
pub(crate) struct Ours(Scope);

impl Ours {
    pub(crate) fn connect(url: &str, limit: &str) -> Result<Ours> {
        let limit: Limit = limit.parse().with_context(|| limit.to_owned())?;
        let limiter = Redis::at(url)?.on_failure(OnFailure::Closed).deadline(DEADLINE).build()?;
        Ok(Ours(limiter.scope("api", limit)?))
    }

    /// Whether a request is allowed.
    pub(crate) async fn check(&self, key: &str) -> Result<bool> {
        Ok(self.0.check(key).await?.is_allowed())
    }

    /// The same at a time of the caller's.
    pub(crate) async fn check_at_us(&self, key: &str, now_us: u64) -> Result<bool> {
        Ok(self.0.check(key).at_us(now_us).await?.is_allowed())
    }
}
