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
    signal: Arc<RefreshSignal>,
    is_started: AtomicBool,
}

/// Wakes the thread that fetches, and ends it.
#[derive(Default)]
pub(super) struct RefreshSignal {
    /// Whether a token named a key that is not in the set.
    is_wanted: AtomicBool,
    /// Whether the thread must end.
    is_over: AtomicBool,
    notify: Notify,
}

impl UrlRefresh {
    pub(super) fn new(source: JwksUrl) -> UrlRefresh {
        UrlRefresh { source, signal: Arc::default(), is_started: AtomicBool::new(false) }
    }

    #[cfg(test)]
    pub(super) fn signal(&self) -> Arc<RefreshSignal> {
        Arc::clone(&self.signal)
    }

    fn spawn(&self, keys: &Jwks) -> io::Result<()> {
        let (source, signal, keys) =
            (self.source.clone(), Arc::clone(&self.signal), keys.downgrade());
        // A runtime of its own, because rules can be made outside a runtime.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let follow = move || {
            runtime.block_on(follow(&source, &keys, &signal));
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
            tracing::error!(url, %error, "the keys that verify tokens are not fetched: no thread can be started");
            keys.not_fetched(format!("the keys of {url} are not fetched: {error}"), 1);
        }
    }

    fn key_missing(&self) {
        self.signal.request_fetch();
    }
}

impl Drop for UrlRefresh {
    fn drop(&mut self) {
        self.signal.is_over.store(true, Ordering::Relaxed);
        self.signal.notify.notify_one();
    }
}

impl RefreshSignal {
    /// Requests a fetch. Cheap if a fetch was requested before: clients can invent a key with every request.
    fn request_fetch(&self) {
        let is_new = !self.is_wanted.load(Ordering::Relaxed)
            && !self.is_wanted.swap(true, Ordering::Relaxed);
        if is_new {
            self.notify.notify_one();
        }
    }
}

async fn follow(source: &JwksUrl, keys: &Weak<SharedKeys>, signal: &RefreshSignal) {
    let schedule = Schedule::new(source, RandomState::new().hash_one(0_u8));
    match Fetcher::new(source.url.clone()) {
        Ok(fetcher) => {
            RefreshLoop { url: source.shown(), schedule, skipped: 0 }
                .run(keys, signal, || fetcher.fetch())
                .await;
        }
        Err(error) => {
            let url = source.shown();
            tracing::error!(url, %error, "the keys that verify tokens are not fetched");
            if let Some(keys) = keys.upgrade() {
                Jwks::of(keys)
                    .not_fetched(format!("the keys of {url} are not fetched: {error}"), 1);
            }
        }
    }
}

/// The state of the loop that fetches one set.
pub(super) struct RefreshLoop {
    pub(super) url: String,
    pub(super) schedule: Schedule,
    /// The number of keys of the last set that are not used.
    pub(super) skipped: usize,
}

impl RefreshLoop {
    /// Fetches the set whenever it is due, until the last handle to the keys is dropped.
    pub(super) async fn run<F>(
        mut self,
        keys: &Weak<SharedKeys>,
        signal: &RefreshSignal,
        mut fetch: impl FnMut() -> F,
    ) where
        F: Future<Output = Result<KeySet, FetchError>>,
    {
        while !signal.is_over.load(Ordering::Relaxed) {
            let next_fetch = self.schedule.next_fetch(signal.is_wanted.load(Ordering::Relaxed));
            let due = next_fetch.min(self.schedule.stale_at().or(next_fetch));
            if let Some(due) = due.filter(|due| *due > Instant::now()) {
                // When the wait ends, for either reason, the loop checks what is due.
                let _ = timeout_at(due, signal.notify.notified()).await;
                continue;
            }
            let is_stale = self.schedule.stale_at().is_some_and(|at| at <= Instant::now());
            if is_stale && let Some(keys) = keys.upgrade() {
                self.drop_keys(&Jwks::of(keys));
                continue;
            }
            signal.is_wanted.store(false, Ordering::Relaxed);
            self.schedule.begun(Instant::now());
            let fetched = fetch().await;
            let Some(keys) = keys.upgrade() else { return };
            match fetched {
                Ok(set) => self.publish(set, &Jwks::of(keys)),
                Err(error) => self.note_failure(&error, &Jwks::of(keys)),
            }
        }
    }

    /// Publishes a fetched set. Logs when its keys change, and when the number of skipped keys changes.
    fn publish(&mut self, set: KeySet, keys: &Jwks) {
        let (count, skipped) = (set.keys().len(), set.skipped());
        let is_changed = keys.fetched(set);
        let is_first = self.schedule.stale_at().is_none();
        self.schedule.succeeded();
        let url = &self.url;
        match is_changed || is_first {
            true if count == 0 => {
                tracing::warn!(url, skipped, "the issuer has no key that can verify tokens");
            }
            true => tracing::info!(
                url,
                keys = count,
                skipped,
                "the keys that verify tokens were fetched"
            ),
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
    fn note_failure(&mut self, error: &FetchError, keys: &Jwks) {
        let failures = self.schedule.failed();
        let url = &self.url;
        keys.not_fetched(format!("the keys of {url} were not fetched: {error}"), failures);
        if failures.is_power_of_two() {
            tracing::warn!(url, failures, %error, "the keys that verify tokens were not fetched: the old keys stay in use");
        }
    }

    fn drop_keys(&mut self, keys: &Jwks) {
        keys.drop_keys();
        self.schedule.dropped();
        let url = &self.url;
        tracing::error!(
            url,
            "the keys that verify tokens were dropped: they were not refreshed for too long"
        );
    }
}
