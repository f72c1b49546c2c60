//! Servers that the tests of one process share.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::slice;
use std::sync::OnceLock;

use crate::{Cluster, LaunchError, Server};

/// Waits until standard input closes, then kills the servers and removes their directories.
///
/// Arguments: a process id and a directory for each server. Signals that a terminal or `make` sends
/// to every process of a test run do not end it early.
const STOP_AT_END: &str = r#"
trap '' INT TERM HUP
cat > /dev/null
while [ $# -gt 0 ]; do
    kill -9 "$1"
    rm -rf "$2"
    shift 2
done
"#;

/// One server, or several, that all tests of a process share.
///
/// Each test must use its own keys, and must not freeze, kill, flush or configure the server. The first use starts
/// the server. It stops when the process ends, also when a test panics or the process is killed.
///
/// ```no_run
/// use tollgate_launcher::{Flavour, Launch, Server, SharedServers};
///
/// static SERVER: SharedServers<Server> = SharedServers::new();
///
/// let server = SERVER.get(|| Launch::new(Flavour::Redis).start())?;
/// println!("{}", server.url());
/// # Ok::<(), &tollgate_launcher::LaunchError>(())
/// ```
#[derive(Debug)]
pub struct SharedServers<T>(OnceLock<Result<RunningServers<T>, LaunchError>>);

/// Servers that run until the process ends.
#[derive(Debug)]
struct RunningServers<T> {
    running: T,
    /// Holds the pipe that closes when this process ends: a `static` is never dropped.
    _stopper: Child,
}

impl<T: ServerGroup> SharedServers<T> {
    /// Returns a value that has not started any server yet.
    pub const fn new() -> SharedServers<T> {
        SharedServers(OnceLock::new())
    }

    /// Returns what the first call started; if that failed, every call returns the same error.
    pub fn get(&self, start: impl FnOnce() -> Result<T, LaunchError>) -> Result<&T, &LaunchError> {
        self.0.get_or_init(|| stop_at_end(start()?)).as_ref().map(|servers| &servers.running)
    }
}

impl<T: ServerGroup> Default for SharedServers<T> {
    fn default() -> SharedServers<T> {
        SharedServers::new()
    }
}

/// Starts a shell that stops the servers when this process ends.
fn stop_at_end<T: ServerGroup>(running: T) -> Result<RunningServers<T>, LaunchError> {
    let shell = Path::new("/bin/sh");
    let mut command = Command::new(shell);
    command.args(["-c", STOP_AT_END, "stop at end"]);
    for server in running.servers() {
        command.arg(server.pid().to_string()).arg(server.directory.path());
    }
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let spawned = command.spawn();
    let _stopper = spawned.map_err(|source| LaunchError::Spawn { binary: shell.into(), source })?;
    Ok(RunningServers { running, _stopper })
}

/// One server or several, which can be kept in [`SharedServers`].
pub trait ServerGroup {
    /// Returns every server.
    fn servers(&self) -> &[Server];
}

impl ServerGroup for Server {
    fn servers(&self) -> &[Server] {
        slice::from_ref(self)
    }
}

impl<const N: usize> ServerGroup for [Server; N] {
    fn servers(&self) -> &[Server] {
        self
    }
}

impl ServerGroup for Cluster {
    fn servers(&self) -> &[Server] {
        self.servers()
    }
}
