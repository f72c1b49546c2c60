//! The lifetime of a store: the time until it loses its state.
//!
//! The store that has the charges also has the marks of refunded receipts. When it loses its state, older receipts must
//! become void: otherwise each of them could be refunded again after every loss. Therefore each receipt has the id of
//! the lifetime in which it was charged, and is void in every other lifetime.
//!
//! On Redis, the ids of the present lifetime are the entries of a log of their own: an id is the time of an entry. The
//! log is lost with the rest of the state, and a server that finds no id adds one. In memory, the lifetime is that of
//! the process, which signs with keys that no other process has.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tollgate::{Error, Limiter, OnFailure, Scope};
use tollgate_core::SlidingWindowLog;

/// The name and the key of the log of ids: the receipts of "this life", the store's lifetime. With the default prefix the
/// log is at `tollgate:{this%20life}:receipts%20of` on Redis. The name contains a space, so no limit or rule of a file can
/// have it. Do not change the name or the key: the ids in the log would be lost, and all receipts would be void.
const NAME: &str = "receipts of";
const KEY: &[u8] = b"this life";

/// How long an id is valid. After half of that time another id is added, and both are valid.
const ID_LASTS: Duration = Duration::from_secs(366 * 86_400);
const NEXT_ID_AFTER_US: u128 = ID_LASTS.as_micros() / 2;

/// The most valid ids at a time: servers that start together may each add one.
const MAX_IDS: u64 = 64;

/// The deadline of reading the ids. It is longer than that of checks, because only refunds wait for this.
const DEADLINE: Duration = Duration::from_secs(1);

/// The id of the lifetime with the memory store.
const PROCESS_ID: u64 = 0;

/// The interval at which the ids are read again, and the shorter interval of attempts until the first one succeeds.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);
const FIRST_REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// The lifetime of a store.
#[derive(Debug)]
pub(super) enum StoreLifetime {
    /// The memory store: the lifetime of the process.
    Process,
    Redis {
        /// The log of ids.
        ids: Scope,
        /// The newest id that was read; 0 before the first.
        newest: AtomicU64,
    },
}

impl StoreLifetime {
    /// Returns the lifetime of a limiter's store. On Redis it uses one of the limits that a limiter can have.
    pub(super) fn of(limiter: &Limiter) -> Result<StoreLifetime, Error> {
        if limiter.health().is_none() {
            return Ok(StoreLifetime::Process);
        }
        let ids = limiter.scope(NAME, SlidingWindowLog::new(MAX_IDS, ID_LASTS)?)?;
        let ids = ids.on_failure(OnFailure::Closed).deadline(DEADLINE);
        Ok(StoreLifetime::Redis { ids, newest: AtomicU64::new(0) })
    }

    /// Returns the id for new receipts, as it was last read; `None` before the first time.
    pub(super) fn current_id(&self) -> Option<u64> {
        match self {
            StoreLifetime::Process => Some(PROCESS_ID),
            StoreLifetime::Redis { newest, .. } => {
                Some(newest.load(Ordering::Relaxed)).filter(|&id| id != 0)
            }
        }
    }

    /// Returns whether receipts with this id are valid: the store has not lost its state since.
    pub(super) async fn has(&self, id: u64) -> Result<bool, Error> {
        Ok(self.refresh().await?.contains(&id))
    }

    /// Reads and returns the valid ids. Adds one if the store has no id, or if the newest is old.
    pub(super) async fn refresh(&self) -> Result<Vec<u64>, Error> {
        let StoreLifetime::Redis { ids: log, newest } = self else { return Ok(vec![PROCESS_ID]) };
        let mut ids = read_ids(log).await?;
        if needs_another_id(ids.last().copied()) {
            // Refused only if there are `MAX_IDS` already.
            let _ = log.check(KEY).await?;
            ids = read_ids(log).await?;
        }
        let before = newest.swap(ids.last().copied().unwrap_or_default(), Ordering::Relaxed);
        if before != 0 && !ids.contains(&before) {
            tracing::warn!("the store has lost its state; earlier receipts are void");
        }
        Ok(ids)
    }

    /// Keeps the id for new receipts up to date. Does not end with a Redis store; with the memory store it returns at
    /// once.
    ///
    /// A refund reads the ids, too, but a server that gets no refunds would otherwise not notice that the store has
    /// lost its state. Reads nothing while the store does not answer.
    pub(super) async fn follow(&self, is_store_answering: impl Fn() -> bool) {
        while let StoreLifetime::Redis { .. } = self {
            let is_known = self.current_id().is_some();
            tokio::time::sleep(if is_known { REFRESH_INTERVAL } else { FIRST_REFRESH_INTERVAL })
                .await;
            if is_store_answering() {
                // A failure is ignored, because the ids are read again soon. Receipts signed in between may be void.
                let _ = self.refresh().await;
            }
        }
    }
}

/// Returns the valid ids, the oldest first.
async fn read_ids(log: &Scope) -> Result<Vec<u64>, Error> {
    Ok(log.entries(KEY).await?.iter().map(|entry| entry.at_us).collect())
}

/// Returns whether another id is needed, by this machine's clock. If the clock is wrong, an id is added too early, so
/// that there are more ids than needed, or too late.
fn needs_another_id(newest: Option<u64>) -> bool {
    let Some(newest_us) = newest else { return true };
    let now_us = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_micros());
    now_us.saturating_sub(u128::from(newest_us)) > NEXT_ID_AFTER_US
}
