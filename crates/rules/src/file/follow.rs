//! Notices that a file has changed.
//!
//! The directories that contain the file are watched, not the file itself: editors and deployments replace the file,
//! and Kubernetes changes the target of a link in the path. The contents of the file decide in the end, and are read
//! every ten seconds even if no change was noticed.

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

/// How often the file is read even if no change was noticed.
const READ_EVERY: Duration = Duration::from_secs(10);

/// A file is read only after it has not changed for this time, because its writer may not have finished.
const QUIET: Duration = Duration::from_millis(50);

/// A file that keeps changing is read after this time at the latest.
const MAX_UNREST: Duration = Duration::from_secs(1);

/// Reads rules again when their file changes, until it is dropped.
#[must_use = "the file is followed until this is dropped"]
pub struct FileFollower {
    file: RulesFile,
    signal: ReloadSignal,
    thread: Option<JoinHandle<()>>,
    /// The task that waits for SIGHUP.
    hangup_task: Option<AbortHandle>,
}

/// Wakes the thread that reads the file.
#[derive(Clone)]
struct ReloadSignal {
    /// Capacity 1: a second wake-up before the thread reads the file adds nothing.
    wake: SyncSender<()>,
    is_ended: Arc<AtomicBool>,
}

impl ReloadSignal {
    fn wake(&self) {
        // A full channel has a wake-up already, and a closed one means that the thread has ended.
        let _ = self.wake.try_send(());
    }

    fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Relaxed)
    }
}

impl FileFollower {
    /// Reads the file when it changes, and every ten seconds.
    pub(super) fn on_change(file: RulesFile) -> io::Result<FileFollower> {
        FileFollower::new(file, WatchedDirectories::new, READ_EVERY)
    }

    /// Reads the file at this interval.
    pub(super) fn at_interval(file: RulesFile, every: Duration) -> io::Result<FileFollower> {
        FileFollower::new(file, |_| WatchedDirectories::default(), every)
    }

    fn new(
        file: RulesFile,
        watched: impl FnOnce(ReloadSignal) -> WatchedDirectories,
        every: Duration,
    ) -> io::Result<FileFollower> {
        let (wake, woken) = sync_channel(1);
        let signal = ReloadSignal { wake, is_ended: Arc::default() };
        let run = {
            let (file, signal, watched) = (file.clone(), signal.clone(), watched(signal.clone()));
            move || reload_until_ended(&file, &signal, watched, &woken, every)
        };
        let thread = thread::Builder::new().name("tollgate-rules".to_owned()).spawn(run)?;
        Ok(FileFollower { file, signal, thread: Some(thread), hangup_task: None })
    }

    /// Also reads the file again whenever the process receives SIGHUP, whether it changed or not.
    ///
    /// The signal is awaited on the current tokio runtime, which must have I/O enabled; without a
    /// runtime this fails. From then on SIGHUP no longer ends the process, even when the returned
    /// value was dropped.
    #[cfg(unix)]
    pub fn and_on_hangup(mut self) -> io::Result<FileFollower> {
        use tokio::signal::unix::{SignalKind, signal};
        let runtime = tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
        let mut hangups = signal(SignalKind::hangup())?;
        let file = self.file.clone();
        let hangup_task = runtime.spawn(async move {
            while hangups.recv().await.is_some() {
                let file = file.clone();
                // The reload logs its result itself.
                let _ = tokio::task::spawn_blocking(move || file.reload()).await;
            }
        });
        self.hangup_task = Some(hangup_task.abort_handle());
        Ok(self)
    }
}

impl Drop for FileFollower {
    fn drop(&mut self) {
        if let Some(hangup_task) = &self.hangup_task {
            hangup_task.abort();
        }
        self.signal.is_ended.store(true, Ordering::Relaxed);
        self.signal.wake();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for FileFollower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileFollower").field("file", &self.file).finish_non_exhaustive()
    }
}

fn reload_until_ended(
    file: &RulesFile,
    signal: &ReloadSignal,
    mut watched: WatchedDirectories,
    woken: &Receiver<()>,
    every: Duration,
) {
    watched.follow(&file.files());
    while !signal.is_ended() {
        // Also at the start, for changes before the directories were watched. The reload logs its result itself.
        let _ = file.reload_if_changed();
        // A link may have another target now, or the rules may name other files.
        watched.follow(&file.files());
        if woken.recv_timeout(every).is_ok() && !signal.is_ended() {
            until_quiet(woken);
        }
    }
}

fn until_quiet(woken: &Receiver<()>) {
    let began = Instant::now();
    while began.elapsed() < MAX_UNREST && woken.recv_timeout(QUIET).is_ok() {}
}

/// The watched directories; empty without a watcher.
#[derive(Default)]
struct WatchedDirectories {
    watcher: Option<RecommendedWatcher>,
    directories: BTreeSet<PathBuf>,
}

impl WatchedDirectories {
    fn new(signal: ReloadSignal) -> WatchedDirectories {
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.as_ref().is_ok_and(is_idle) {
                return;
            }
            signal.wake();
        });
        let watcher = watcher.inspect_err(|error| {
            tracing::warn!(%error, "the rules file cannot be watched: changes are noticed within ten seconds");
        });
        WatchedDirectories { watcher: watcher.ok(), directories: BTreeSet::new() }
    }

    /// Watches the directories of these files, and nothing else.
    fn follow(&mut self, files: &[PathBuf]) {
        let Some(watcher) = &mut self.watcher else { return };
        let wanted: BTreeSet<PathBuf> =
            files.iter().flat_map(|file| directories_of(file)).collect();
        for gone in self.directories.difference(&wanted) {
            // The directory may not exist any more.
            let _ = watcher.unwatch(gone);
        }
        // Watches all of them again, because a directory may have been replaced by another of the same name. Files in
        // directories that cannot be watched are still read every ten seconds.
        let is_watched =
            |directory: &PathBuf| watcher.watch(directory, RecursiveMode::NonRecursive).is_ok();
        self.directories = wanted.into_iter().filter(is_watched).collect();
    }
}

/// Returns whether a file was only read, usually by this process.
fn is_idle(event: &Event) -> bool {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => false,
        EventKind::Access(_) => true,
        _ => false,
    }
}

/// The most links that are followed, as in the kernel.
const MAX_LINKS: usize = 40;

/// Returns the directories in which a change can alter the target of a path: its own directory, and the
/// directories of every link on the way and of each link's target.
fn directories_of(file: &Path) -> BTreeSet<PathBuf> {
    let mut directories = BTreeSet::new();
    let mut ahead = vec![std::path::absolute(file).unwrap_or_else(|_| file.to_owned())];
    for _ in 0..MAX_LINKS {
        let Some(path) = ahead.pop() else { break };
        directories.extend(path.parent().map(Path::to_owned));
        // The first link in the path.
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
