//! Starts a gateway with the configuration of its example, on free ports.

use std::env;
use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::{Method, redirect::Policy};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::eventually::eventually;
use crate::server::ServerProcess;

/// The addresses in the examples: the gateway's, its service's, and the two of Tollgate.
const ADDRESSES: [&str; 4] =
    ["127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:8080", "127.0.0.1:8081"];

/// A running gateway, which is stopped when this is dropped.
pub(crate) struct Gateway {
    child: Child,
    /// `http://127.0.0.1:40123`.
    pub(crate) url: String,
    directory: TempDir,
}

/// A copy of the examples, with other ports.
pub(crate) struct GatewayExample {
    directory: TempDir,
    ports: [u16; ADDRESSES.len()],
}

impl GatewayExample {
    /// Copies the example to a directory, with Tollgate at this port.
    pub(crate) fn of(folder: &str, tollgate: u16) -> GatewayExample {
        let mut ports = ADDRESSES.map(|_| free_port());
        ports[2] = tollgate;
        let directory = TempDir::with_prefix("tollgate-gateways-").unwrap();
        // The workers of nginx run as another user, who needs access.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let example = GatewayExample { directory, ports };
        fs::create_dir(example.path(folder)).unwrap();
        example.copy("forward-auth.yaml");
        for entry in fs::read_dir(examples().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            example.copy(&format!("{folder}/{name}"));
        }
        example
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    /// Returns the ports as variables for the script of an example.
    pub(crate) fn variables(&self) -> [(&'static str, String); ADDRESSES.len()] {
        let [own, service, http, grpc] = self.ports.map(|port| port.to_string());
        [("PORT", own), ("SERVICE_PORT", service), ("HTTP_PORT", http), ("GRPC_PORT", grpc)]
    }

    /// Replaces texts in a file. Each text must occur in the file.
    pub(crate) fn edit(&self, file: &str, changes: &[(&str, &str)]) {
        let mut text = fs::read_to_string(self.path(file)).unwrap();
        for (from, to) in changes {
            assert!(text.contains(from), "{from} in {file}");
            text = text.replace(from, to);
        }
        fs::write(self.path(file), text).unwrap();
    }

    fn copy(&self, file: &str) {
        let mut text = fs::read_to_string(examples().join(file)).unwrap();
        for (address, port) in ADDRESSES.iter().zip(self.ports) {
            text = text.replace(address, &format!("127.0.0.1:{port}"));
        }
        fs::write(self.path(file), text).unwrap();
    }

    /// Runs a command of the example, and waits until it listens on its port.
    pub(crate) fn start(self, command: &mut Command) -> Gateway {
        let log = self.path("log");
        let to_log = || fs::File::options().create(true).append(true).open(&log).unwrap();
        let command = command.stdin(Stdio::null()).stdout(to_log()).stderr(to_log());
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("{:?}: {error}; run `make gateways`", command.get_program())
        });
        let url = format!("http://127.0.0.1:{}", self.ports[0]);
        let mut gateway = Gateway { child, url, directory: self.directory };
        for port in &self.ports[..2] {
            eventually("the gateway listens", || {
                let ended = gateway.child.try_wait().unwrap();
                assert!(ended.is_none(), "the gateway did not start: {}", gateway.log());
                TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).ok()
            });
        }
        gateway
    }
}

impl Gateway {
    /// Returns the gateway's output.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Returns a request of a client at this address.
    pub(crate) fn request(&self, client: &str, method: Method, path: &str) -> RequestBuilder {
        let client = Client::builder()
            .local_address(Some(client.parse().unwrap()))
            .redirect(Policy::none())
            .timeout(Duration::from_secs(30))
            .build()
            .unwrap();
        client.request(method, format!("{}{path}", self.url))
    }

    pub(crate) fn get(&self, client: &str, path: &str) -> Response {
        self.request(client, Method::GET, path).send().unwrap()
    }

    pub(crate) fn status(&self, client: &str, path: &str) -> u16 {
        self.get(client, path).status().as_u16()
    }

    /// Interrupts the gateway as Ctrl-C would, and waits until it has ended. Returns whether it succeeded.
    pub(crate) fn interrupt(mut self) -> bool {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        // Waits with a timeout, because a shell that was started with the signal ignored cannot trap it.
        eventually("the interrupted gateway ends", || self.child.try_wait().unwrap()).success()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // SIGKILL would not let nginx end its workers.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

pub(crate) fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// Returns the configuration that the script of an example gives to its gateway. Fake programs save the configuration, and
/// no program listens on the ports.
pub(crate) fn configuration(folder: &str, variables: &[(&str, &str)]) -> String {
    let directory = TempDir::with_prefix("tollgate-gateways-").unwrap();
    let [program, kept] = [folder, "kept"].map(|name| directory.path().join(name));
    let keep = format!("for file; do [ -f \"$file\" ] && cp \"$file\" {}; done", kept.display());
    fs::write(&program, format!("#!/bin/sh\n[ \"$1\" = serve ] && exec sleep 600\n{keep}\n"))
        .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", directory.path().display(), env::var("PATH").unwrap());
    let mut command = Command::new(examples().join(folder).join("run"));
    command.env("PATH", path).env("TOLLGATE", &program).env("ENVOY", &program);
    command.envs(variables.iter().copied()).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null()).status().unwrap();
    fs::read_to_string(kept).unwrap()
}

/// Replaces the ports that follow a prefix in a text.
pub(crate) fn with_ports(text: &str, prefix: &str, moved: &[(&str, &str)]) -> String {
    let mut parts = text.split(prefix);
    let mut changed = parts.next().unwrap().to_owned();
    for part in parts {
        let (from, to) = moved.iter().find(|(from, _)| part.starts_with(from)).unwrap();
        changed += &format!("{prefix}{to}{}", &part[from.len()..]);
    }
    changed
}

pub(crate) fn free_port() -> u16 {
    tollgate_launcher::free_port().unwrap()
}

/// Returns the HTTP port of a server.
pub(crate) fn port_of(server: &ServerProcess) -> u16 {
    server.url.rsplit_once(':').unwrap().1.parse().unwrap()
}

/// Returns a header of a response; empty if the header is missing.
pub(crate) fn header<'r>(response: &'r Response, name: &str) -> &'r str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

/// Whether the port of a URL is free again.
pub(crate) fn is_free(url: &str) -> bool {
    TcpListener::bind(url.strip_prefix("http://").unwrap()).is_ok()
}
