//! Where state lives.

#[cfg(feature = "redis")]
use std::sync::Arc;
use std::time::Duration;

use crate::failure::OnFailure;

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

#[cfg_attr(not(feature = "redis"), allow(unused_variables))]
impl Store {
    /// With this policy; in memory nothing fails.
    pub(crate) fn on_failure(self, on_failure: OnFailure) -> Store {
        match self {
            Store::Memory => self,
            #[cfg(feature = "redis")]
            Store::Redis(scope) => {
                Store::Redis(Arc::new(scope.with(|terms| terms.on_failure = Some(on_failure))))
            }
        }
    }

    /// With this deadline; in memory nothing takes long.
    pub(crate) fn deadline(self, deadline: Duration) -> Store {
        match self {
            Store::Memory => self,
            #[cfg(feature = "redis")]
            Store::Redis(scope) => {
                Store::Redis(Arc::new(scope.with(|terms| terms.set_deadline(deadline))))
            }
        }
    }
}
