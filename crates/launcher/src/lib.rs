//! Starts real Redis and Valkey servers for tests, each in a directory and on a port of its own.
//!
//! ```no_run
//! use tollgate_launcher::{Flavour, Launch};
//!
//! let server = Launch::new(Flavour::Redis).config("maxmemory", "10mb").start()?;
//! println!("{} and {}", server.url(), server.unix_url());
//! # Ok::<(), tollgate_launcher::LaunchError>(())
//! ```
//!
//! A server stops when it is dropped, also when a test panics; one in a `static` is never dropped.
//! `make servers` installs both. `TOLLGATE_REDIS_SERVER` and `TOLLGATE_VALKEY_SERVER` name others.

mod certificate;
mod error;
mod find;

#[cfg(feature = "tls")]
pub use certificate::Authority;
pub use certificate::Certified;
pub use error::LaunchError;

use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long a server may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// How often a port may be taken by another process between being found free and being used.
const MAX_PORTS_TRIED: u32 = 10;

/// Which server: they speak the same protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// `redis-server`.
    Redis,
    /// `valkey-server`.
    Valkey,
}

impl Flavour {
    /// Every flavour there is.
    pub const ALL: [Flavour; 2] = [Flavour::Redis, Flavour::Valkey];
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Flavour::Redis => "redis",
            Flavour::Valkey => "valkey",
        })
    }
}

/// A server to be started.
#[derive(Clone, Debug)]
pub struct Launch {
    flavour: Flavour,
    config: Vec<(String, String)>,
    tls: Option<Certified>,
}

impl Launch {
    /// A server of this flavour that keeps nothing on disk.
    pub fn new(flavour: Flavour) -> Launch {
        Launch { flavour, config: Vec::new(), tls: None }
    }

    /// Adds a line to its configuration; a later line overrides an earlier one and our own.
    pub fn config(mut self, name: &str, value: &str) -> Launch {
        self.config.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Speaks TLS, and nothing else, on its port; whether a server can depends on how it was built.
    pub fn tls(self, certified: Certified) -> Launch {
        Launch { tls: Some(certified), ..self }
    }

    /// Starts it, and waits until it answers.
    pub fn start(&self) -> Result<Server, LaunchError> {
        let binary = find::binary(self.flavour)?;
        for _ in 1..MAX_PORTS_TRIED {
            match self.start_on(&binary, free_port()?) {
                Err(LaunchError::Exited { log, .. }) if log.contains("Address already in use") => {}
                result => return result,
            }
        }
        self.start_on(&binary, free_port()?)
    }

    fn start_on(&self, binary: &Path, port: u16) -> Result<Server, LaunchError> {
        let directory = tempfile::tempdir()?;
        let config = directory.path().join("server.conf");
        fs::write(&config, self.config_text(port, directory.path()))?;
        if let Some(Certified { certificate, key }) = &self.tls {
            fs::write(directory.path().join(CERTIFICATE), certificate)?;
            fs::write(directory.path().join(KEY), key)?;
        }
        let log = fs::File::create(directory.path().join(LOG))?;
        let child = Command::new(binary)
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|source| LaunchError::Spawn { binary: binary.to_owned(), source })?;
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        let mut server = Server { child, scheme, port, binary: binary.to_owned(), directory };
        server.wait_until_it_answers()?;
        Ok(server)
    }

    fn config_text(&self, port: u16, directory: &Path) -> String {
        let directory = directory.display();
        let mut text = format!(
            "bind 127.0.0.1\nport {port}\nunixsocket \"{directory}/{SOCKET}\"\ndir \"{directory}\"\n\
             save \"\"\nappendonly no\n"
        );
        if self.tls.is_some() {
            text.push_str(&format!(
                "port 0\ntls-port {port}\ntls-auth-clients no\n\
                 tls-cert-file \"{directory}/{CERTIFICATE}\"\ntls-key-file \"{directory}/{KEY}\"\n"
            ));
        }
        for (name, value) in &self.config {
            text.push_str(&format!("{name} {value}\n"));
        }
        text
    }
}

const LOG: &str = "server.log";
const SOCKET: &str = "server.sock";
const CERTIFICATE: &str = "server.crt";
const KEY: &str = "server.key";

/// A port that nobody listens on at the moment.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// A running server; dropping it stops it and removes its directory.
#[derive(Debug)]
pub struct Server {
    child: Child,
    scheme: &'static str,
    port: u16,
    binary: PathBuf,
    directory: TempDir,
}

impl Server {
    /// Where it listens for TCP.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Its address as a URL: `redis://127.0.0.1:40123`, or `rediss://…` if it speaks TLS.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.addr())
    }

    /// Its Unix socket.
    pub fn unix_socket(&self) -> PathBuf {
        self.directory.path().join(SOCKET)
    }

    /// Its Unix socket as a URL: `redis+unix:///tmp/…/server.sock`.
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.unix_socket().display())
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything it has logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join(LOG)).unwrap_or_default()
    }

    /// Asks on the Unix socket, which nobody else can have taken; TCP is listened on before it.
    fn wait_until_it_answers(&mut self) -> Result<(), LaunchError> {
        let deadline = Instant::now() + START_TIMEOUT;
        while !self.answers() {
            if let Some(status) = self.child.try_wait()? {
                let (binary, log) = (self.binary.clone(), self.log());
                return Err(LaunchError::Exited { binary, status, log });
            }
            if Instant::now() > deadline {
                let (binary, log) = (self.binary.clone(), self.log());
                return Err(LaunchError::Silent { binary, waited: START_TIMEOUT, log });
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn answers(&self) -> bool {
        let pong = || -> io::Result<[u8; 5]> {
            let mut stream = UnixStream::connect(self.unix_socket())?;
            stream.set_read_timeout(Some(Duration::from_secs(1)))?;
            stream.write_all(b"PING\r\n")?;
            let mut reply = [0; 5];
            stream.read_exact(&mut reply)?;
            Ok(reply)
        };
        pong().is_ok_and(|reply| &reply == b"+PONG")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It keeps nothing, so there is nothing to save; and if it is gone already, so much the better.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
