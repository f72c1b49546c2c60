//! A server to be started.

use std::fmt::Display;
use std::fs;
use std::panic::resume_unwind;
use std::path::Path;
use std::thread::{self, ScopedJoinHandle};

use crate::server::{Admin, Program, SOCKET, Server};
use crate::{Flavour, LaunchError, ServerCertificate, faketime, find, ports};

/// The number of ports to try: another process may take a port after it was found free and before it is used.
const MAX_PORTS_TRIED: u32 = 10;

const CONFIG: &str = "server.conf";
const CERTIFICATE: &str = "server.crt";
const KEY: &str = "server.key";
const AUTHORITY: &str = "authority.crt";

/// A server to be started.
#[derive(Clone, Debug)]
pub struct Launch {
    pub(crate) flavour: Flavour,
    /// Lines of the launcher. They come before the lines of the caller, which override them.
    own_lines: Vec<(String, String)>,
    config: Vec<(String, String)>,
    tls: Option<ServerCertificate>,
    admin: Option<Admin>,
    clock_offset_s: Option<i64>,
    role: ProcessRole,
}

/// The role of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessRole {
    /// A server without a cluster.
    Alone,
    /// A node of a cluster.
    Node,
    /// A sentinel.
    Sentinel,
}

impl Launch {
    /// Returns a server of this flavour that stores nothing on disk.
    pub fn new(flavour: Flavour) -> Launch {
        let launch = Launch {
            flavour,
            own_lines: Vec::new(),
            config: Vec::new(),
            tls: None,
            admin: None,
            clock_offset_s: None,
            role: ProcessRole::Alone,
        };
        // A primary then brings its replicas in sync at once, not after 5 s.
        launch.own_line("repl-diskless-sync", "yes").own_line("repl-diskless-sync-delay", 0)
    }

    /// Adds a line to the configuration; a later line overrides an earlier one and the launcher's own.
    pub fn config(mut self, name: &str, value: &str) -> Launch {
        self.config.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Makes the server accept only TLS on its port. Some builds of the servers do not support TLS.
    pub fn tls(self, certificate: ServerCertificate) -> Launch {
        Launch { tls: Some(certificate), ..self }
    }

    /// Sets the user that the launcher logs in as, if `default` does not have all permissions.
    ///
    /// The user has to be in the configuration: `.config("user", "admin on >secret ~* &* +@all")`.
    pub fn admin(self, user: &str, password: &str) -> Launch {
        let admin = Admin { user: user.to_owned(), password: password.to_owned() };
        Launch { admin: Some(admin), ..self }
    }

    /// Makes the server a replica of `primary`. [`Server::wait_until_in_sync`] waits until the replica has caught
    /// up.
    ///
    /// If the primary requires a password, add `masterauth`, and for its user `masteruser`.
    pub fn replica_of(self, primary: &Server) -> Launch {
        let addr = primary.addr();
        let replica = self.own_line("replicaof", format_args!("{} {}", addr.ip(), addr.port()));
        if primary.speaks_tls() { replica.own_line("tls-replication", "yes") } else { replica }
    }

    /// Gives the server a clock of its own, this many seconds ahead of the machine's. Only Valkey supports
    /// it.
    ///
    /// [`Server::set_clock_offset`] changes the offset.
    pub fn clock_offset(self, seconds: i64) -> Launch {
        Launch { clock_offset_s: Some(seconds), ..self }
    }

    /// Starts the server, and waits until it answers.
    pub fn start(&self) -> Result<Server, LaunchError> {
        self.start_program(&find::binary(self.flavour)?)
    }

    /// Adds a line of the launcher, which lines of the caller override.
    pub(crate) fn own_line(mut self, name: &str, value: impl Display) -> Launch {
        self.own_lines.push((name.to_owned(), value.to_string()));
        self
    }

    pub(crate) fn role(self, role: ProcessRole) -> Launch {
        Launch { role, ..self }
    }

    pub(crate) fn start_program(&self, binary: &Path) -> Result<Server, LaunchError> {
        for _ in 1..MAX_PORTS_TRIED {
            match self.start_on(binary, ports::free_port()?) {
                Err(error) if error.is_port_taken() => {}
                result => return result,
            }
        }
        self.start_on(binary, ports::free_port()?)
    }

    /// Starts several servers in parallel, which is faster than one after the other.
    pub(crate) fn start_many(
        &self,
        binary: &Path,
        count: usize,
    ) -> Result<Vec<Server>, LaunchError> {
        thread::scope(|scope| {
            let start = || scope.spawn(|| self.start_program(binary));
            let starts: Vec<_> = (0..count).map(|_| start()).collect();
            let join = |start: ScopedJoinHandle<'_, _>| match start.join() {
                Ok(server) => server,
                Err(panic) => resume_unwind(panic),
            };
            starts.into_iter().map(join).collect()
        })
    }

    fn start_on(&self, binary: &Path, port: u16) -> Result<Server, LaunchError> {
        let directory = tempfile::tempdir()?;
        let bus_port =
            if self.role == ProcessRole::Node { Some(ports::free_port()?) } else { None };
        let config = directory.path().join(CONFIG);
        fs::write(&config, self.config_text(port, bus_port, directory.path()))?;
        if let Some(ServerCertificate { certificate, key, authority }) = &self.tls {
            fs::write(directory.path().join(CERTIFICATE), certificate)?;
            fs::write(directory.path().join(KEY), key)?;
            fs::write(directory.path().join(AUTHORITY), authority)?;
        }
        let mut program =
            Program { binary: binary.into(), arguments: vec![config.into()], environment: vec![] };
        if self.role == ProcessRole::Sentinel {
            program.arguments.push("--sentinel".into());
        }
        if let Some(seconds) = self.clock_offset_s {
            program.environment = faketime::environment(self.flavour, directory.path())?;
            faketime::write_offset(directory.path(), seconds)?;
        }
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        Server::start(program, directory, scheme, port, bus_port, self.admin.clone())
    }

    fn config_text(&self, port: u16, bus_port: Option<u16>, directory: &Path) -> String {
        let directory = directory.display();
        let mut text = format!(
            "bind 127.0.0.1\nport {port}\nunixsocket \"{directory}/{SOCKET}\"\ndir \"{directory}\"\n\
             save \"\"\nappendonly no\n"
        );
        if self.tls.is_some() {
            text.push_str(&format!(
                "port 0\ntls-port {port}\ntls-auth-clients no\n\
                 tls-cert-file \"{directory}/{CERTIFICATE}\"\ntls-key-file \"{directory}/{KEY}\"\n\
                 tls-ca-cert-file \"{directory}/{AUTHORITY}\"\n"
            ));
        }
        if let Some(bus_port) = bus_port {
            text.push_str(&format!("cluster-enabled yes\ncluster-port {bus_port}\n"));
        }
        if bus_port.is_some() && self.tls.is_some() {
            text.push_str("tls-cluster yes\ntls-replication yes\n");
        }
        for (name, value) in self.own_lines.iter().chain(&self.config) {
            text.push_str(&format!("{name} {value}\n"));
        }
        text
    }
}
