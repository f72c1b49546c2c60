//! Helpers that poll for a condition, and that find the server of a key.

use std::time::{Duration, Instant};

use redis::cmd;
use tollgate::{BreakerState, Error, Limiter, Scope, ServerHealth, StoreError};
use tollgate_launcher::Server;

use crate::setup::{LIMITS, PATIENCE, named};

/// Polls `poll` until it returns something.
pub(crate) async fn until<T>(what: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = poll().await {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Peeks at the ids until all of them are decided by servers and every breaker is closed.
pub(crate) async fn until_well(limiter: &Limiter, scope: &Scope, ids: &[impl AsRef<str>]) {
    until("all servers answer", async || {
        let mut are_all_decided = true;
        for id in ids {
            are_all_decided &= scope.peek(id.as_ref()).await.is_ok_and(|peek| !peek.is_degraded());
        }
        let servers = limiter.health()?.servers;
        let is_closed = |server: &ServerHealth| server.breaker == BreakerState::Closed;
        (are_all_decided && servers.iter().all(is_closed)).then_some(())
    })
    .await;
}

pub(crate) async fn remaining(scope: &Scope, key: &str) -> u64 {
    scope.peek(key).await.unwrap().remaining()
}

pub(crate) async fn until_remaining(scope: &Scope, key: &str, wanted: u64) {
    let what = format!("{wanted} of `{key}` remain");
    until(&what, async || (remaining(scope, key).await == wanted).then_some(())).await;
}

pub(crate) fn store_error<T: std::fmt::Debug>(answer: Result<T, Error>) -> StoreError {
    match answer {
        Err(Error::Store(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Every key on a server.
pub(crate) fn keys_on(server: &Server) -> Vec<String> {
    server.ask(cmd("KEYS").arg("*")).unwrap()
}

/// Finds an id on each of the servers, in their order.
pub(crate) async fn ids_on(limiter: &Limiter, servers: &[Server]) -> Vec<String> {
    let scope = named(limiter, "probe", LIMITS[0]);
    let mut ids: Vec<Option<String>> = servers.iter().map(|_| None).collect();
    for number in 0_u32.. {
        let id = format!("id-{number}");
        scope.check(&id).await.unwrap();
        let tag = format!("{{{id}}}");
        let holds = |server: &Server| keys_on(server).iter().any(|key| key.contains(&tag));
        let on: Vec<usize> = (0..servers.len()).filter(|&at| holds(&servers[at])).collect();
        assert_eq!(on.len(), 1, "{id} is on {on:?}");
        ids[on[0]].get_or_insert(id);
        if ids.iter().all(Option::is_some) {
            break;
        }
    }
    ids.into_iter().flatten().collect()
}

/// A pseudo-random generator (xorshift): the same numbers in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}
