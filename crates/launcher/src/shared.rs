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

/// A server, or several, that all tests of a process share.
///
/// For tests that keep their keys apart and do not freeze, kill, flush or configure the server.
/// The first use starts it. It stops when the process ends, also when a test panics or the process is killed.
///
/// ```no_run
/// use tollgate_launcher::{Flavour, Launch, Server, Shared};
///
/// static SERVER: Shared<Server> = Shared::new();
///
/// let server = SERVER.get(|| Launch::new(Flavour::Redis).start())?;
/// println!("{}", server.url());
/// # Ok::<(), &tollgate_launcher::LaunchError>(())
/// ```
#[derive(Debug)]
pub struct Shared<T>(OnceLock<Result<RunningServers<T>, LaunchError>>);

/// Servers that run until the process ends.
#[derive(Debug)]
struct RunningServers<T> {
    running: T,
    /// Holds the pipe that closes when this process ends: a `static` is never dropped.
    _stopper: Child,
}

impl<T: Running> Shared<T> {
    /// Returns an empty one: nothing is started yet.
    pub const fn new() -> Shared<T> {
        Shared(OnceLock::new())
    }

    /// Returns what the first call started; if that failed, every call returns the same error.
    pub fn get(&self, start: impl FnOnce() -> Result<T, LaunchError>) -> Result<&T, &LaunchError> {
        self.0.get_or_init(|| keep(start()?)).as_ref().map(|kept| &kept.running)
    }
}

impl<T: Running> Default for Shared<T> {
    fn default() -> Shared<T> {
        Shared::new()
    }
}

fn keep<T: Running>(running: T) -> Result<RunningServers<T>, LaunchError> {
    let shell = Path::new("/bin/sh");
    let mut command = Command::new(shell);
    command.args(["-c", STOP_AT_END, "stop at end"]);
    for server in running.running() {
        command.arg(server.pid().to_string()).arg(server.directory.path());
    }
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let spawned = command.spawn();
    let _stopper = spawned.map_err(|source| LaunchError::Spawn { binary: shell.into(), source })?;
    Ok(RunningServers { running, _stopper })
}

/// A server or several, which can be [`Shared`].
pub trait Running {
    /// Returns every server.
    fn running(&self) -> &[Server];
}

impl Running for Server {
    fn running(&self) -> &[Server] {
        slice::from_ref(self)
    }
}

impl<const N: usize> Running for [Server; N] {
    fn running(&self) -> &[Server] {
        self
    }
}

impl Running for Cluster {
    fn running(&self) -> &[Server] {
        self.servers()
    }
}
