//! Where state lives.

#[cfg(feature = "redis")]
use std::sync::Arc;

pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;

/// Where a scope's state lives.
#[derive(Clone, Debug)]
pub(crate) enum Store {
    /// In the limiter's memory.
    Memory,
    /// On its Redis.
    #[cfg(feature = "redis")]
    Redis(Arc<redis::Scope>),
}
