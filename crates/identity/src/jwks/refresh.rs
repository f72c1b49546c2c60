//! The thread that fetches a key set at intervals.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::{io, thread};

use ahash::RandomState;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::JwksUrl;
use super::fetch::{FetchError, Fetcher};
use super::schedule::Schedule;
use crate::jwt::{Jwks, KeyRefresh, KeySet, SharedKeys};

/// Fetches a set from its URL on a thread, which ends when this is dropped.
pub(super) struct UrlRefresh {
    source: JwksUrl,
    bell: Arc<Bell>,
    is_started: AtomicBool,
}

/// Wakes the thread that fetches.
#[derive(Default)]
pub(super) struct Bell {
    /// A token named a key that is not in the set.
    is_wanted: AtomicBool,
    is_over: AtomicBool,
    ring: Notify,
}

impl UrlRefresh {
    pub(super) fn new(source: JwksUrl) -> UrlRefresh {
        UrlRefresh { source, bell: Arc::default(), is_started: AtomicBool::new(false) }
    }

    #[cfg(test)]
    pub(super) fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    fn spawn(&self, keys: &Jwks) -> io::Result<()> {
        let (source, bell, keys) = (self.source.clone(), Arc::clone(&self.bell), keys.downgrade());
        // A runtime of its own, because rules can be made outside a runtime.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let follow = move || {
            runtime.block_on(follow(&source, &keys, &bell));
            // A DNS lookup may be in flight; shutting down does not wait for it.
            runtime.shutdown_background();
        };
        thread::Builder::new().name("tollgate-jwks".to_owned()).spawn(follow)?;
        Ok(())
    }
}

impl KeyRefresh for UrlRefresh {
    fn start(&self, keys: &Jwks) {
        if self.is_started.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.spawn(keys) {
            let url = self.source.shown();
            tracing::error!(url, %error, "keys of tokens are not fetched: no thread can be started");
            keys.not_fetched(format!("the keys of {url} are not fetched: {error}"), 1);
        }
    }

    fn key_missing(&self) {
        self.bell.want();
    }
}

impl Drop for UrlRefresh {
    fn drop(&mut self) {
        self.bell.is_over.store(true, Ordering::Relaxed);
        self.bell.ring.notify_one();
    }
}

impl Bell {
    /// Cheap when it was wanted before: clients can invent a key with every request.
    fn want(&self) {
        let is_new = !self.is_wanted.load(Ordering::Relaxed)
            && !self.is_wanted.swap(true, Ordering::Relaxed);
        if is_new {
            self.ring.notify_one();
        }
    }
}

async fn follow(source: &JwksUrl, keys: &Weak<SharedKeys>, bell: &Bell) {
    let schedule = Schedule::new(source, RandomState::new().hash_one(0_u8));
    match Fetcher::new(source.url.clone()) {
        Ok(fetcher) => {
            Refreshing { url: source.shown(), schedule, skipped: 0 }
                .run(keys, bell, || fetcher.fetch())
                .await;
        }
        Err(error) => {
            let url = source.shown();
            tracing::error!(url, %error, "keys of tokens are not fetched");
            if let Some(keys) = keys.upgrade() {
                Jwks::of(keys)
                    .not_fetched(format!("the keys of {url} are not fetched: {error}"), 1);
            }
        }
    }
}

/// The fetching of one set: its schedule, and what the log has said.
pub(super) struct Refreshing {
    pub(super) url: String,
    pub(super) schedule: Schedule,
    /// The keys of the last set that are not used.
    pub(super) skipped: usize,
}

impl Refreshing {
    /// Fetches the set whenever it is due, until the last handle to the keys is dropped.
    pub(super) async fn run<F>(
        mut self,
        keys: &Weak<SharedKeys>,
        bell: &Bell,
        mut fetch: impl FnMut() -> F,
    ) where
        F: Future<Output = Result<KeySet, FetchError>>,
    {
        while !bell.is_over.load(Ordering::Relaxed) {
            let next_fetch = self.schedule.next_fetch(bell.is_wanted.load(Ordering::Relaxed));
            let due = next_fetch.min(self.schedule.stale_at().or(next_fetch));
            if let Some(due) = due.filter(|due| *due > Instant::now()) {
                // Either way, look again.
                let _ = timeout_at(due, bell.ring.notified()).await;
                continue;
            }
            let is_stale = self.schedule.stale_at().is_some_and(|at| at <= Instant::now());
            if is_stale && let Some(keys) = keys.upgrade() {
                self.drop_keys(&Jwks::of(keys));
                continue;
            }
            bell.is_wanted.store(false, Ordering::Relaxed);
            self.schedule.begun(Instant::now());
            let fetched = fetch().await;
            let Some(keys) = keys.upgrade() else { return };
            match fetched {
                Ok(set) => self.take_over(set, &Jwks::of(keys)),
                Err(error) => self.note(&error, &Jwks::of(keys)),
            }
        }
    }

    /// Publishes a fetched set. Logs when its keys change, and when the number of skipped keys changes.
    fn take_over(&mut self, set: KeySet, keys: &Jwks) {
        let (count, skipped) = (set.keys().len(), set.skipped());
        let is_changed = keys.fetched(set);
        let is_first = self.schedule.stale_at().is_none();
        self.schedule.succeeded();
        let url = &self.url;
        match is_changed || is_first {
            true if count == 0 => {
                tracing::warn!(url, skipped, "the issuer has no key of tokens that can be used");
            }
            true => tracing::info!(url, keys = count, skipped, "keys of tokens fetched"),
            false => {}
        }
        if skipped > 0 && skipped != self.skipped {
            tracing::warn!(
                url,
                skipped,
                "keys of the issuer's set are not used: they are not for signatures, or not supported"
            );
        }
        self.skipped = skipped;
    }

    /// Keeps the keys after a failed fetch. Logs the first failure in a row, the second, the fourth and so on.
    fn note(&mut self, error: &FetchError, keys: &Jwks) {
        let failures = self.schedule.failed();
        let url = &self.url;
        keys.not_fetched(format!("the keys of {url} were not fetched: {error}"), failures);
        if failures.is_power_of_two() {
            tracing::warn!(url, failures, %error, "keys of tokens not fetched: they are as they were");
        }
    }

    fn drop_keys(&mut self, keys: &Jwks) {
        keys.drop_keys();
        self.schedule.dropped();
        let url = &self.url;
        tracing::error!(url, "keys of tokens dropped: they were not refreshed for too long");
    }
}
