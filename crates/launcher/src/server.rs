//! A running server.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::wait::PATIENCE;
use crate::{LaunchError, faketime, wait};

/// The name of the Unix socket in the server's directory.
pub(crate) const SOCKET: &str = "server.sock";
const LOG: &str = "server.log";

/// A running server; dropping it stops it and removes its directory.
#[derive(Debug)]
pub struct Server {
    pub(crate) child: Child,
    /// Whether the process has ended and was waited for. Its process id may then belong to another process.
    pub(crate) gone: bool,
    pub(crate) frozen: AtomicBool,
    program: Program,
    scheme: &'static str,
    port: u16,
    bus_port: Option<u16>,
    pub(crate) admin: Option<Admin>,
    pub(crate) directory: TempDir,
    /// The length of the log, in bytes, at the latest start.
    log_start: usize,
}

/// The program, its arguments and its environment.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) binary: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: Vec<(&'static str, OsString)>,
}

/// The user that the launcher logs in as.
#[derive(Clone, Debug)]
pub(crate) struct Admin {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl Server {
    pub(crate) fn start(
        program: Program,
        directory: TempDir,
        scheme: &'static str,
        port: u16,
        bus_port: Option<u16>,
        admin: Option<Admin>,
    ) -> Result<Server, LaunchError> {
        let child = program.spawn(directory.path())?;
        let mut server = Server {
            child,
            gone: false,
            frozen: AtomicBool::new(false),
            program,
            scheme,
            port,
            bus_port,
            admin,
            directory,
            log_start: 0,
        };
        server.wait_until_it_answers()?;
        Ok(server)
    }

    /// Returns the TCP address.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Returns the address as a URL: `redis://127.0.0.1:14123`, or `rediss://…` with TLS.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.addr())
    }

    /// Returns the path of the Unix socket.
    pub fn unix_socket(&self) -> PathBuf {
        self.directory.path().join(SOCKET)
    }

    /// Returns the Unix socket as a URL: `redis+unix:///tmp/…/server.sock`.
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.unix_socket().display())
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns everything that the server has logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join(LOG)).unwrap_or_default()
    }

    /// Kills the server, as a power failure would, and waits until it is gone.
    pub fn kill(&mut self) {
        if self.gone {
            return;
        }
        // OK because an error means that the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.gone = true;
        self.frozen.store(false, Ordering::Relaxed);
        faketime::remove_shared_memory(&self.program.environment, self.child.id());
    }

    /// Starts the server again on the same port, in the same directory, and waits until it answers.
    ///
    /// A server that still runs is killed first. The files that it wrote to disk, including its
    /// configuration, are read again.
    pub fn restart(&mut self) -> Result<(), LaunchError> {
        self.kill();
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.log_start = self.log().len();
            self.child = self.program.spawn(self.directory.path())?;
            self.gone = false;
            match self.wait_until_it_answers() {
                // Another process uses the port at the moment.
                Err(error) if error.is_port_taken() && Instant::now() < deadline => self.kill(),
                result => return result,
            }
        }
    }

    /// Waits until the server is a replica that is connected to its primary and has caught up.
    pub fn wait_until_in_sync(&self) -> Result<(), LaunchError> {
        let what = format!("the replica at {} was in sync", self.addr());
        wait::until(&what, || self.is_in_sync())
    }

    pub(crate) fn is_in_sync(&self) -> Result<bool, LaunchError> {
        let info: String = self.ask(redis::cmd("INFO").arg("replication"))?;
        Ok(info.contains("role:slave") && info.contains("master_link_status:up"))
    }

    /// Whether the server runs and is not frozen.
    pub(crate) fn is_live(&self) -> bool {
        !self.gone && !self.frozen.load(Ordering::Relaxed)
    }

    pub(crate) fn speaks_tls(&self) -> bool {
        self.scheme == "rediss"
    }

    pub(crate) fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// Returns the port on which the other nodes of its cluster reach it.
    pub(crate) fn bus_port(&self) -> u16 {
        self.bus_port.unwrap_or_default()
    }

    pub(crate) fn has_own_clock(&self) -> bool {
        !self.program.environment.is_empty()
    }

    /// Waits until the server answers on its Unix socket, which belongs to no other process. The server listens on
    /// TCP before it listens there.
    fn wait_until_it_answers(&mut self) -> Result<(), LaunchError> {
        let deadline = Instant::now() + PATIENCE;
        while !self.answers() {
            if let Some(status) = self.child.try_wait()? {
                self.gone = true;
                let (binary, log) = (self.program.binary.clone(), self.latest_log());
                return Err(LaunchError::Exited { binary, status, log });
            }
            if Instant::now() > deadline {
                let (binary, log) = (self.program.binary.clone(), self.latest_log());
                return Err(LaunchError::Silent { binary, waited: PATIENCE, log });
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Returns the log since the latest start.
    fn latest_log(&self) -> String {
        self.log().get(self.log_start..).unwrap_or_default().to_owned()
    }

    /// Whether the server answers. An error for missing permissions counts as an answer.
    fn answers(&self) -> bool {
        match self.ask::<String>(&redis::cmd("PING")) {
            Ok(_) => true,
            Err(LaunchError::CommandFailed { source, .. }) => {
                matches!(source.code(), Some("NOAUTH" | "NOPERM" | "MASTERDOWN"))
            }
            Err(_) => false,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Program {
    fn spawn(&self, directory: &Path) -> Result<Child, LaunchError> {
        let log = File::options().create(true).append(true).open(directory.join(LOG))?;
        Command::new(&self.binary)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|source: io::Error| LaunchError::Spawn { binary: self.binary.clone(), source })
    }
}

impl LaunchError {
    /// Whether the server ended because another process had its port.
    pub(crate) fn is_port_taken(&self) -> bool {
        matches!(self, LaunchError::Exited { log, .. } if log.contains("Address already in use"))
    }
}
