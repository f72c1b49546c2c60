//! The key and the cost of a request that is paced.

use std::sync::Arc;

/// The functions that return the key and the cost of a request.
pub(super) struct PaceKeys<R> {
    pub(super) key: Option<PaceFn<R, String>>,
    pub(super) cost: Option<PaceFn<R, u64>>,
}

type PaceFn<R, T> = Arc<dyn Fn(&R) -> T + Send + Sync>;

impl<R> PaceKeys<R> {
    pub(super) fn key_of(&self, request: &R) -> Arc<str> {
        self.key.as_ref().map_or_else(|| Arc::from(""), |key| Arc::from(key(request)))
    }

    pub(super) fn cost_of(&self, request: &R) -> u64 {
        self.cost.as_ref().map_or(1, |cost| cost(request))
    }
}

impl<R> Clone for PaceKeys<R> {
    fn clone(&self) -> PaceKeys<R> {
        PaceKeys { key: self.key.clone(), cost: self.cost.clone() }
    }
}
