//! Keys that verify tokens, and that can change while tokens are verified.

// Only keys that are fetched need these.
#[cfg(feature = "jwks")]
mod fetched;

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::key_set::{JwksError, KeySet};
use crate::config::MAX_JWKS_BYTES;

/// For this time after a fetch the set counts as complete: a token that names another key is bad. Later the key may be a
/// new one, and the set is fetched again. So a client that invents names causes at most one fetch in this time.
pub(crate) const REFETCH_INTERVAL: Duration = Duration::from_secs(30);

/// The keys of a JSON Web Key Set (RFC 7517), which can be replaced while tokens are verified. Clones share the keys.
///
/// It takes RSA keys of 2048 to 8192 bits (RS256), keys on the curves P-256 and P-384 (ES256, ES384) and Ed25519 keys
/// (EdDSA) that are for signatures (`use`, `key_ops`); others are skipped and counted. A set with a secret (`oct`) or a
/// private key is refused. A set has at most 256 KiB and 64 keys.
///
/// A token that names its key (`kid`) is for the key of that name. A token that names none is for the only key of its
/// algorithm, if there is exactly one.
///
/// ```
/// use tollgate::http::{Jwks, Jwt};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let keys = Jwks::parse(br#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"2026-11",
///     "x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#)?;
/// assert_eq!(keys.status().keys, 1);
/// let jwt = Jwt::from_jwks(keys.clone()).issuer("https://id.example.com");
/// keys.replace(br#"{"keys":[]}"#)?; // `jwt` believes no token any more
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Jwks {
    shared: Arc<SharedKeys>,
}

/// The status of the keys of a [`Jwks`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct JwksStatus {
    /// How many keys there are.
    pub keys: usize,
    /// How many keys of the set are not used, because they have another purpose or are of a kind that is not supported.
    pub skipped: usize,
    /// When the keys were last read or fetched; `None` if they never were, or were dropped because they were too old.
    pub loaded: Option<SystemTime>,
    /// How often the set was read or fetched.
    pub refreshes: u64,
    /// How often reading or fetching failed.
    pub failures: u64,
    /// The problem, if there is one: the set has no key that can be used; the set was not fetched yet; or the reason why the
    /// last fetch failed, if there are no keys or if at least four fetches in a row have failed.
    pub problem: Option<String>,
}

pub(crate) struct SharedKeys {
    current: ArcSwap<PublishedKeys>,
    status: Mutex<JwksStatus>,
    refresh: Option<Box<dyn KeyRefresh>>,
}

/// A key set, and the time since which it is known.
pub(super) struct PublishedKeys {
    /// Increases by one with every change of the keys.
    generation: u32,
    set: KeySet,
    freshness: Freshness,
}

#[derive(Clone, Copy)]
enum Freshness {
    /// The set is not fetched from anywhere.
    Fixed,
    /// The set was not fetched yet.
    #[cfg_attr(not(feature = "jwks"), expect(dead_code, reason = "nothing is fetched"))]
    NotLoaded,
    #[cfg_attr(not(feature = "jwks"), expect(dead_code, reason = "nothing is fetched"))]
    FetchedAt(Instant),
}

/// Fetches the set in the background, away from the path of requests.
pub(crate) trait KeyRefresh: Send + Sync {
    /// Starts fetching the set, at intervals. Does nothing the second time.
    fn start(&self, keys: &Jwks);

    /// Notes that a token named a key that is not in the set. Returns at once.
    fn key_missing(&self);
}

impl Jwks {
    /// Reads a set that is in memory.
    pub fn parse(json: &[u8]) -> Result<Jwks, JwksError> {
        let jwks = Jwks::new(Freshness::Fixed, None);
        jwks.replace(json)?;
        Ok(jwks)
    }

    /// Reads a set from a file, once. A file of rules that names it is read again when it changes.
    pub fn load(path: impl AsRef<Path>) -> Result<Jwks, JwksError> {
        let unreadable = |error: std::io::Error| JwksError::Unreadable(error.kind());
        let file = File::open(path).map_err(unreadable)?;
        let mut json = Vec::new();
        // Reads one byte more than the limit, to detect a file that is too large. OK because the limit is far below 2^64.
        file.take(MAX_JWKS_BYTES as u64 + 1).read_to_end(&mut json).map_err(unreadable)?;
        Jwks::parse(&json)
    }

    /// Verifies tokens with the keys of another set from now on; if the keys are fetched from a URL, until the next fetch. If
    /// the set is refused, the keys do not change.
    pub fn replace(&self, json: &[u8]) -> Result<(), JwksError> {
        let set = KeySet::parse(json)?;
        self.publish(set, Freshness::Fixed);
        Ok(())
    }

    /// Returns the status of the keys.
    pub fn status(&self) -> JwksStatus {
        self.shared.status.lock().clone()
    }

    fn new(freshness: Freshness, refresh: Option<Box<dyn KeyRefresh>>) -> Jwks {
        let published = PublishedKeys { generation: 0, set: KeySet::default(), freshness };
        let shared = SharedKeys {
            current: ArcSwap::from_pointee(published),
            status: Mutex::default(),
            refresh,
        };
        Jwks { shared: Arc::new(shared) }
    }

    /// Starts fetching the keys, if they come from a URL. Does nothing the second time.
    pub(crate) fn start(&self) {
        if let Some(refresh) = &self.shared.refresh {
            refresh.start(self);
        }
    }

    /// Notes that a token names a key that is not in the set. Returns at once.
    pub(super) fn key_missing(&self) {
        if let Some(refresh) = &self.shared.refresh {
            refresh.key_missing();
        }
    }

    pub(super) fn current(&self) -> Guard<Arc<PublishedKeys>> {
        self.shared.current.load()
    }

    fn publish(&self, set: KeySet, freshness: Freshness) {
        let mut status = self.shared.status.lock();
        let before = self.shared.current.load();
        let is_changed = !set.is_same(&before.set);
        (status.keys, status.skipped) = (set.keys().len(), set.skipped());
        status.loaded = Some(SystemTime::now());
        status.refreshes += 1;
        status.problem =
            set.keys().is_empty().then(|| "the key set has no key that can be used".into());
        // Wraps after 2^32 changes. By then no token of the first set is remembered.
        let generation = before.generation.wrapping_add(u32::from(is_changed));
        self.shared.current.store(Arc::new(PublishedKeys { generation, set, freshness }));
    }
}

impl PublishedKeys {
    pub(super) fn set(&self) -> &KeySet {
        &self.set
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether a key that is not in this set may be in the issuer's set by now: either no set was fetched yet, or a token
    /// names the key and the last fetch was more than [`REFETCH_INTERVAL`] ago.
    pub(super) fn may_lack(&self, is_named: bool) -> bool {
        match self.freshness {
            Freshness::Fixed => false,
            Freshness::NotLoaded => true,
            Freshness::FetchedAt(then) => is_named && then.elapsed() >= REFETCH_INTERVAL,
        }
    }
}

/// Shows the number of keys.
impl fmt::Debug for Jwks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JwksStatus { keys, skipped, problem, .. } = self.status();
        f.debug_struct("Jwks")
            .field("keys", &keys)
            .field("skipped", &skipped)
            .field("problem", &problem)
            .finish_non_exhaustive()
    }
}
