//! Rules that follow their file.

mod follow;

use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hasher;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ahash::RandomState;
use parking_lot::Mutex;
use siphasher::sip::SipHasher13;
use tollgate_limiter::{Error, Limiter};

pub use follow::FileFollower;

use super::{Config, MissingDomains, Problems, Rules, load};

/// Rules that are read from a file, and read again when it changes. Cheap to clone; clones share everything.
///
/// ```no_run
/// # use tollgate::Limiter;
/// # use tollgate::rules::{Attributes, RulesFile};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let file = RulesFile::open(&Limiter::memory(), "rules.yaml")?;
/// let _following = file.follow()?.and_on_hangup()?; // read again when it changes, and on SIGHUP
/// let request = Attributes::new().with("method", "GET").with("ip", "203.0.113.9");
/// println!("{}", file.rules().check("api", &request).await?.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RulesFile {
    inner: Arc<RulesFileInner>,
}

struct RulesFileInner {
    path: PathBuf,
    rules: Rules,
    hasher: RandomState,
    /// Held while the file is read: the contents at the last read, whether they were valid or not.
    seen: Mutex<FileHashes>,
    /// A separate lock, so that reading the status does not wait for a file.
    status: Mutex<Status>,
}

/// The files that the rules come from, and the contents of each.
type FileHashes = BTreeMap<PathBuf, FileHash>;

/// The contents of a file at one time.
struct FileHash {
    /// The most bytes that the file may have; a larger file cannot be read.
    max_bytes: usize,
    /// `None` if it could not be read.
    hash: Option<u64>,
}

impl FileHash {
    fn of(bytes: &io::Result<Vec<u8>>, max_bytes: usize, hasher: &RandomState) -> FileHash {
        let hash = bytes.as_ref().ok().map(|bytes| hasher.hash_one(bytes));
        FileHash { max_bytes, hash }
    }
}

/// The state of the rules and of their file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// The generation of the rules in use.
    pub generation: u64,
    /// When these rules came into use.
    pub since: SystemTime,
    /// A hash of the rules file and of the files that it names. The same contents have the same hash in any process,
    /// so that it shows whether two servers use the same rules. Values of environment variables are not part of it.
    pub hash: u64,
    /// The number of reloads that succeeded.
    pub reloads: u64,
    /// The number of reloads that were refused.
    pub failures: u64,
    /// The first of these problems that exists: the current file was refused, so that older rules are in use; domains
    /// in use have no rules; the keys that verify tokens could not be fetched. `None` if there is no such problem.
    pub problem: Option<String>,
    /// The domains in use that have no rules.
    pub missing_domains: MissingDomains,
}

/// Why rules could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file has errors.
    #[error(transparent)]
    Config(#[from] Problems),
    /// The limiter refuses the limits, or a domain in use has no rules.
    #[error(transparent)]
    Limits(#[from] Error),
}

impl RulesFile {
    /// Reads a file of rules for a limiter.
    pub fn open(limiter: &Limiter, path: impl Into<PathBuf>) -> Result<RulesFile, LoadError> {
        let (path, hasher) = (path.into(), RandomState::new());
        let LoadedFile { config, seen, hash } = read(&path, &hasher);
        let config = config?;
        let rules = Rules::new(limiter, &config)?;
        let status = Status {
            generation: rules.generation(),
            since: SystemTime::now(),
            hash,
            reloads: 0,
            failures: 0,
            problem: None,
            missing_domains: MissingDomains::default(),
        };
        let (seen, status) = (Mutex::new(seen), Mutex::new(status));
        Ok(RulesFile { inner: Arc::new(RulesFileInner { path, rules, hasher, seen, status }) })
    }

    /// Returns the rules, which follow the file.
    pub fn rules(&self) -> &Rules {
        &self.inner.rules
    }

    /// Reads the file again, even if it has not changed, and replaces the rules; returns the generation.
    ///
    /// A file with errors is not used: the rules do not change.
    pub fn reload(&self) -> Result<u64, LoadError> {
        let mut seen = self.inner.seen.lock();
        let read = read(&self.inner.path, &self.inner.hasher);
        *seen = read.seen;
        self.use_config(read.config, read.hash)
    }

    /// Reads the file again if its contents have changed; otherwise returns `None`.
    fn reload_if_changed(&self) -> Option<Result<u64, LoadError>> {
        let RulesFileInner { path, hasher, seen, .. } = &*self.inner;
        let mut seen = seen.lock();
        let is_as_before = |(file, seen): (&PathBuf, &FileHash)| {
            let bytes = load::read(file, seen.max_bytes);
            FileHash::of(&bytes, seen.max_bytes, hasher).hash == seen.hash
        };
        if seen.iter().all(is_as_before) {
            return None;
        }
        let read = read(path, hasher);
        *seen = read.seen;
        Some(self.use_config(read.config, read.hash))
    }

    fn use_config(&self, config: Result<Config, Problems>, hash: u64) -> Result<u64, LoadError> {
        let missing = self.inner.rules.missing_domains();
        let replaced = config
            .map_err(LoadError::from)
            .and_then(|config| Ok(self.inner.rules.replace(&config)?));
        // New rules forget which domains checks have named, so the domains that were named before are checked again.
        let plan = self.inner.rules.plan();
        let missing = missing.still_missing(|name| plan.is_missing_domain(name));
        if !missing.is_empty() {
            tracing::warn!(file = %self.inner.path.display(), "{missing}");
        }
        let (file, mut status) = (self.inner.path.display(), self.inner.status.lock());
        match &replaced {
            Ok(generation) => {
                tracing::info!(%file, generation, "rules reloaded");
                (status.generation, status.since) = (*generation, SystemTime::now());
                (status.reloads, status.problem) = (status.reloads + 1, None);
                status.hash = hash;
            }
            Err(error) => {
                let generation = status.generation;
                tracing::error!(%file, generation, %error, "rules not reloaded: the previous rules stay in use");
                status.failures += 1;
                status.problem = Some(error.to_string());
            }
        }
        replaced
    }

    /// Returns the state of the rules and of their file.
    pub fn status(&self) -> Status {
        let mut status = self.inner.status.lock().clone();
        status.missing_domains = self.inner.rules.missing_domains();
        if status.problem.is_none() && !status.missing_domains.is_empty() {
            status.problem = Some(status.missing_domains.to_string());
        }
        status.problem = status.problem.or_else(|| self.inner.rules.plan().keys_problem());
        status
    }

    /// Reads the file again whenever it changes, on a separate thread, until the returned value is
    /// dropped. Fails if the thread cannot be started.
    ///
    /// This alone does not handle SIGHUP, whose default action ends the process: a signal handler is for the whole process,
    /// so the application decides about it. Add
    /// [`and_on_hangup`](FileFollower::and_on_hangup) to read the file again on SIGHUP instead.
    pub fn follow(&self) -> io::Result<FileFollower> {
        FileFollower::on_change(self.clone())
    }

    /// Does the same as [`follow`](Self::follow), by reading the file at an interval, at most a thousand times a
    /// second. Use it for file systems that do not report changes, such as network file systems.
    pub fn poll_every(&self, interval: Duration) -> io::Result<FileFollower> {
        FileFollower::at_interval(self.clone(), interval.max(Duration::from_millis(1)))
    }

    fn files(&self) -> Vec<PathBuf> {
        self.inner.seen.lock().keys().cloned().collect()
    }
}

/// A configuration, and the contents of its file and of the files that it names.
struct LoadedFile {
    config: Result<Config, Problems>,
    seen: FileHashes,
    /// A hash of all contents, in the order in which they were read.
    hash: u64,
}

fn read(path: &Path, hasher: &RandomState) -> LoadedFile {
    // Without a key, so that the hash is the same everywhere.
    let (mut seen, mut hash) = (FileHashes::new(), SipHasher13::new());
    let config = Config::load_with(path, |path, max_bytes| {
        let bytes = load::read(path, max_bytes);
        seen.insert(path.to_owned(), FileHash::of(&bytes, max_bytes, hasher));
        if let Ok(bytes) = &bytes {
            // The length comes first, so that moving bytes from one file to another changes the hash.
            hash.write(&(bytes.len() as u64).to_le_bytes());
            hash.write(bytes);
        }
        bytes
    });
    LoadedFile { config, seen, hash: hash.finish() }
}

impl fmt::Debug for RulesFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RulesFile").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
