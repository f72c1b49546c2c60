//! The life of a store: from when it had nothing, to when it loses all.
//!
//! What was refunded is remembered where the units are. If that is lost, a receipt from before must be lost too:
//! otherwise it would be good again, over and over, with every loss. So each receipt names the life that it was
//! charged in, and gives nothing back in another.
//!
//! On servers, a life is the time of a charge to a log that nothing else is charged to: it is lost with all the
//! rest, and whoever finds none makes one. In memory it is the process, which alone knows what it signs with.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tollgate::{Error, Limiter, OnFailure, Scope};
use tollgate_core::SlidingWindowLog;

/// With a space in it: no limit and no rule of a file can have that name.
const NAME: &str = "receipts of";
const KEY: &[u8] = b"this life";

/// How long a life has its name. Long before that there is another, and both are good.
const NAMED: Duration = Duration::from_secs(366 * 86_400);
const RENEWED_AFTER_US: u128 = NAMED.as_micros() / 2;

/// The most names at a time: servers that start together may each make one.
const MAX_NAMES: u64 = 64;

/// Longer than a check may take: nobody's request waits for it but refunds.
const DEADLINE: Duration = Duration::from_secs(1);

/// What is signed in memory.
const OF_THE_PROCESS: u64 = 0;

/// How often a server asks whether the store still lives, and how soon again if it never knew.
const ASKED_EVERY: Duration = Duration::from_secs(5);
const ASKED_AGAIN: Duration = Duration::from_secs(1);

/// The life that receipts are of.
#[derive(Debug)]
pub(super) enum Life {
    Process,
    Store {
        names: Scope,
        /// The newest name, as last heard of; 0 if never.
        newest: AtomicU64,
    },
}

impl Life {
    /// Takes one limit of those that there can be, if the store is across the network.
    pub(super) fn of(limiter: &Limiter) -> Result<Life, Error> {
        if limiter.health().is_none() {
            return Ok(Life::Process);
        }
        let names = limiter.scope(NAME, SlidingWindowLog::new(MAX_NAMES, NAMED)?)?;
        let names = names.on_failure(OnFailure::Closed).deadline(DEADLINE);
        Ok(Life::Store { names, newest: AtomicU64::new(0) })
    }

    /// What receipts are signed with now; `None` if it is not known yet. Asks nobody.
    pub(super) fn name(&self) -> Option<u64> {
        match self {
            Life::Process => Some(OF_THE_PROCESS),
            Life::Store { newest, .. } => {
                Some(newest.load(Ordering::Relaxed)).filter(|&name| name != 0)
            }
        }
    }

    /// Whether what was signed with this name was charged to the store as it is now.
    pub(super) async fn has(&self, name: u64) -> Result<bool, Error> {
        Ok(self.learn().await?.contains(&name))
    }

    /// Asks the store for its names, and gives it one if it has none.
    pub(super) async fn learn(&self) -> Result<Vec<u64>, Error> {
        let Life::Store { names, newest } = self else { return Ok(vec![OF_THE_PROCESS]) };
        let mut known = heard(names).await?;
        if is_to_be_renewed(known.last().copied()) {
            // Refused only if there are enough already.
            let _ = names.check(KEY).await?;
            known = heard(names).await?;
        }
        let before = newest.swap(known.last().copied().unwrap_or_default(), Ordering::Relaxed);
        if before != 0 && !known.contains(&before) {
            tracing::warn!("the store has lost its state; receipts from before are void");
        }
        Ok(known)
    }

    /// Keeps what receipts are signed with up to date, for ever: a server that nobody asks for a refund would
    /// not hear of a loss. A store that is known to be away is left alone.
    pub(super) async fn follow(&self, is_answered: impl Fn() -> bool) {
        while let Life::Store { .. } = self {
            let asked_again = if self.name().is_some() { ASKED_EVERY } else { ASKED_AGAIN };
            tokio::time::sleep(asked_again).await;
            if is_answered() {
                // If it fails, it is asked again. What is signed meanwhile is void at worst.
                let _ = self.learn().await;
            }
        }
    }
}

/// The names of the store's life, the oldest first.
async fn heard(names: &Scope) -> Result<Vec<u64>, Error> {
    Ok(names.entries(KEY).await?.iter().map(|entry| entry.at_us).collect())
}

/// By this machine's clock: if it is wrong, there are more names than needed, or one too late.
fn is_to_be_renewed(newest: Option<u64>) -> bool {
    let Some(newest_us) = newest else { return true };
    let now_us = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_micros());
    now_us.saturating_sub(u128::from(newest_us)) > RENEWED_AFTER_US
}
