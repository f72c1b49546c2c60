//! Notices that a file has changed.
//!
//! The directories that it is in are watched, not the file: editors and deployments put another in
//! its place, and Kubernetes changes the target of a link that the path goes through. What is in the
//! file is what counts in the end, and is looked at every ten seconds even if nothing was noticed.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher};

use super::RulesFile;

/// However nothing was noticed, the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// A file is looked at when nothing has happened to it for so long: whoever writes it may not be done.
const QUIET: Duration = Duration::from_millis(50);

/// Or when it is not left alone for so long.
const RESTLESS: Duration = Duration::from_secs(1);

/// Reads rules again when their file changes, until it is dropped.
#[must_use = "the file is followed until this is dropped"]
pub struct Following {
    file: RulesFile,
    bell: Bell,
    looking: Option<JoinHandle<()>>,
    /// Who listens for hangups.
    listening: Option<AbortHandle>,
}

/// Rings in the thread that looks.
#[derive(Clone)]
struct Bell {
    /// Room for one: who is to look need not be told twice.
    ring: SyncSender<()>,
    is_over: Arc<AtomicBool>,
}

impl Bell {
    fn ring(&self) {
        // Full is as good; and nobody there means that it is over.
        let _ = self.ring.try_send(());
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

impl Following {
    /// Whenever something happens to the file, and every ten seconds.
    pub(super) fn watching(file: RulesFile) -> io::Result<Following> {
        Following::new(file, Watched::new, LOOK_EVERY)
    }

    /// Every so often.
    pub(super) fn looking(file: RulesFile, every: Duration) -> io::Result<Following> {
        Following::new(file, |_| Watched::default(), every)
    }

    fn new(
        file: RulesFile,
        watched: impl FnOnce(Bell) -> Watched,
        every: Duration,
    ) -> io::Result<Following> {
        let (ring, rung) = sync_channel(1);
        let bell = Bell { ring, is_over: Arc::default() };
        let look = {
            let (file, bell, watched) = (file.clone(), bell.clone(), watched(bell.clone()));
            move || look_on(&file, &bell, watched, &rung, every)
        };
        let looking = thread::Builder::new().name("tollgate-rules".to_owned()).spawn(look)?;
        Ok(Following { file, bell, looking: Some(looking), listening: None })
    }

    /// Also reads the file again whenever the process receives SIGHUP, whether it changed or not.
    ///
    /// The signal is awaited on the current tokio runtime, which must have I/O enabled; without a
    /// runtime this fails. From then on SIGHUP no longer ends the process, even when the returned
    /// value was dropped.
    #[cfg(unix)]
    pub fn and_on_hangup(mut self) -> io::Result<Following> {
        use tokio::signal::unix::{SignalKind, signal};
        let runtime = tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
        let mut hangups = signal(SignalKind::hangup())?;
        let file = self.file.clone();
        let listening = runtime.spawn(async move {
            while hangups.recv().await.is_some() {
                let file = file.clone();
                // Loud in itself, either way.
                let _ = tokio::task::spawn_blocking(move || file.reload()).await;
            }
        });
        self.listening = Some(listening.abort_handle());
        Ok(self)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        if let Some(listening) = &self.listening {
            listening.abort();
        }
        self.bell.is_over.store(true, Ordering::Relaxed);
        self.bell.ring();
        if let Some(looking) = self.looking.take() {
            // It has no panics to pass on.
            let _ = looking.join();
        }
    }
}

impl fmt::Debug for Following {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Following").field("file", &self.file).finish_non_exhaustive()
    }
}

fn look_on(
    file: &RulesFile,
    bell: &Bell,
    mut watched: Watched,
    rung: &Receiver<()>,
    every: Duration,
) {
    watched.follow(&file.files());
    while !bell.is_over() {
        // Also at the beginning: for what happened before it was watched. Loud in itself, either way.
        let _ = file.reload_if_changed();
        // A link may lead elsewhere now, or the rules name another file.
        watched.follow(&file.files());
        if rung.recv_timeout(every).is_ok() && !bell.is_over() {
            until_quiet(rung);
        }
    }
}

fn until_quiet(rung: &Receiver<()>) {
    let began = Instant::now();
    while began.elapsed() < RESTLESS && rung.recv_timeout(QUIET).is_ok() {}
}

/// The directories that are watched; none without a watcher.
#[derive(Default)]
struct Watched {
    watcher: Option<RecommendedWatcher>,
    directories: BTreeSet<PathBuf>,
}

impl Watched {
    fn new(bell: Bell) -> Watched {
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.as_ref().is_ok_and(is_idle) {
                return;
            }
            bell.ring();
        });
        let watcher = watcher.inspect_err(|error| {
            tracing::warn!(%error, "changes of the rules are noticed late: every ten seconds");
        });
        Watched { watcher: watcher.ok(), directories: BTreeSet::new() }
    }

    /// Watches where these files are, and nothing else.
    fn follow(&mut self, files: &[PathBuf]) {
        let Some(watcher) = &mut self.watcher else { return };
        let wanted: BTreeSet<PathBuf> =
            files.iter().flat_map(|file| directories_of(file)).collect();
        for gone in self.directories.difference(&wanted) {
            // It may be gone itself.
            let _ = watcher.unwatch(gone);
        }
        // All of them again: one of the same name may have taken another's place. What cannot be watched
        // is looked at now and then.
        let is_watched =
            |directory: &PathBuf| watcher.watch(directory, RecursiveMode::NonRecursive).is_ok();
        self.directories = wanted.into_iter().filter(is_watched).collect();
    }
}

/// Whether something was only looked at: by us, as a rule.
fn is_idle(event: &Event) -> bool {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => false,
        EventKind::Access(_) => true,
        _ => false,
    }
}

/// The most links that are gone through, as the system has it.
const MAX_LINKS: usize = 40;

/// The directories in which something can happen that changes what a path leads to: its own, and those
/// of every link on the way, and of what is behind each.
fn directories_of(file: &Path) -> BTreeSet<PathBuf> {
    let mut directories = BTreeSet::new();
    let mut ahead = vec![std::path::absolute(file).unwrap_or_else(|_| file.to_owned())];
    for _ in 0..MAX_LINKS {
        let Some(path) = ahead.pop() else { break };
        directories.extend(path.parent().map(Path::to_owned));
        // The first link on the way to it.
        let mut ancestors: Vec<&Path> = path.ancestors().collect();
        ancestors.reverse();
        let Some(link) = ancestors.into_iter().find(|ancestor| ancestor.is_symlink()) else {
            continue;
        };
        let (Some(directory), Ok(target)) = (link.parent(), link.read_link()) else { continue };
        directories.insert(directory.to_owned());
        let behind = directory.join(target);
        ahead.push(match path.strip_prefix(link) {
            Ok(rest) if rest.as_os_str().is_empty() => behind,
            Ok(rest) => behind.join(rest),
            Err(_) => behind,
        });
    }
    directories
}
