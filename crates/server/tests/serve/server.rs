//! Starts and stops a server on free ports.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use reqwest::Method;
use reqwest::blocking::{Client, RequestBuilder, Response};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A running server, which is killed when this is dropped.
pub(crate) struct ServerProcess {
    child: Child,
    /// `http://127.0.0.1:40123`.
    pub(crate) url: String,
    /// `127.0.0.1:40124`.
    pub(crate) grpc: String,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
    client: Client,
}

impl ServerProcess {
    /// Starts a server with these flags, and with flags for free ports.
    pub(crate) fn start(flags: &[&str]) -> ServerProcess {
        ServerProcess::start_with(flags, &[])
    }

    /// Starts a server with flags and environment variables.
    pub(crate) fn start_with(flags: &[&str], variables: &[(&str, &str)]) -> ServerProcess {
        let (mut server, stderr) = ServerProcess::start_unread(flags, variables);
        let collected = Arc::clone(&server.log);
        server.reader = Some(std::thread::spawn(move || collect(stderr, &collected)));
        server
    }

    /// Starts a server whose log the caller can read or leave unread.
    pub(crate) fn start_unread(
        flags: &[&str],
        variables: &[(&str, &str)],
    ) -> (ServerProcess, BufReader<ChildStderr>) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"]);
        // A number of connections for which every machine has enough file descriptors, so that the server logs no warning.
        command.args(flags).env_clear().env("TOLLGATE_MAX_CONNECTIONS", "4000");
        command.envs(variables.iter().copied());
        ServerProcess::start_command(&mut command)
    }

    /// Starts a server with a command that the test has built.
    pub(crate) fn start_command(command: &mut Command) -> (ServerProcess, BufReader<ChildStderr>) {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let log = Arc::new(Mutex::new(String::new()));
        let (url, grpc) = addresses(&mut stderr, &log);
        let client = Client::builder().timeout(Duration::from_secs(30)).build().unwrap();
        (ServerProcess { child, url, grpc, log, reader: None, client }, stderr)
    }

    /// Starts a server that logs to a file or device, such as `/dev/full`. The ports are read from `/proc`, because the
    /// server cannot always log them.
    pub(crate) fn start_logging_to(log: &str) -> ServerProcess {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"]);
        command.env_clear().env("TOLLGATE_MAX_CONNECTIONS", "4000").env("TOLLGATE_LOG", "debug");
        let stderr = std::fs::File::options().write(true).open(log).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        let child = command.spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let [one, other] = loop {
            if let Ok(ports) = <[u16; 2]>::try_from(listening_ports(child.id())) {
                break ports;
            }
            assert!(Instant::now() < until, "the server never listened");
            std::thread::sleep(Duration::from_millis(10));
        };
        // The HTTP port is opened first, but the order in `/proc` is not guaranteed, so a request shows which port speaks
        // HTTP/1.1.
        let client = Client::builder().timeout(Duration::from_secs(30)).build().unwrap();
        let speaks_http = |port: &u16| {
            let healthz = client.get(format!("http://127.0.0.1:{port}/healthz"));
            healthz.send().is_ok_and(|answer| answer.status() == 200)
        };
        let (http, grpc) = if speaks_http(&one) { (one, other) } else { (other, one) };
        let (url, grpc) = (format!("http://127.0.0.1:{http}"), format!("127.0.0.1:{grpc}"));
        ServerProcess { child, url, grpc, log: Arc::default(), reader: None, client }
    }

    /// Returns the server's standard error so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the log meets a condition, for at most a minute, and returns the log.
    pub(crate) fn wait_for_log(&self, is_met: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let log = self.log();
            if is_met(&log) {
                return log;
            }
            assert!(Instant::now() < until, "timed out waiting for the log: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits until the server has ended, and returns its exit status and its log.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().unwrap();
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        (status, self.log())
    }

    pub(crate) fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(format!("{}{path}", self.url))
    }

    pub(crate) fn delete(&self, path: &str) -> RequestBuilder {
        self.client.delete(format!("{}{path}", self.url))
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url))
    }

    /// Returns a POST with the content type JSON. The body need not be JSON.
    pub(crate) fn post(&self, path: &str, body: impl Into<String>) -> RequestBuilder {
        let request = self.client.post(format!("{}{path}", self.url)).body(body.into());
        request.header("content-type", "application/json")
    }

    /// Sends a check, which must be answered with 200.
    pub(crate) fn check(&self, body: &str) -> Value {
        let response = self.post("/v1/check", body).send().unwrap();
        let status = response.status();
        let text = response.text().unwrap();
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the body of an answer as JSON.
pub(crate) fn body_of(response: Response) -> Value {
    let text = response.text().unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns the TCP ports of 127.0.0.1 on which a process listens.
fn listening_ports(pid: u32) -> Vec<u16> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let sockets: Vec<_> = files
        .filter_map(|file| {
            std::fs::read_link(file.ok()?.path()).ok()?.into_os_string().into_string().ok()
        })
        .collect();
    // Columns: slot, local address and port in hexadecimal, remote address, state (0A: listening), ..., inode (10th).
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let port = |line: &str| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let is_own = sockets.contains(&format!("socket:[{}]", columns.get(9)?));
        let (_, port) = columns.get(1)?.split_once(':')?;
        (is_own && columns[3] == "0A").then(|| u16::from_str_radix(port, 16).ok())?
    };
    table.lines().filter_map(port).collect()
}

/// Reads the server's addresses from its log. Panics if the log ends without them, because the server did not start.
fn addresses(stderr: &mut impl BufRead, log: &Mutex<String>) -> (String, String) {
    let mut line = String::new();
    while stderr.read_line(&mut line).unwrap() > 0 {
        log.lock().unwrap().push_str(&line);
        if let Some(addresses) = parse(&line) {
            return addresses;
        }
        line.clear();
    }
    panic!("the server did not start: {}", log.lock().unwrap())
}

/// Parses `tollgate 0.1.0: http://127.0.0.1:40123, gRPC 127.0.0.1:40124`, or a JSON object with both addresses.
fn parse(line: &str) -> Option<(String, String)> {
    if let Ok(object) = serde_json::from_str::<Value>(line) {
        return Some((object["http"].as_str()?.to_owned(), object["grpc"].as_str()?.to_owned()));
    }
    let from_http = line.get(line.find("http://")?..)?;
    let (http, grpc) = from_http.trim_end().split_once(", gRPC ")?;
    Some((http.to_owned(), grpc.to_owned()))
}

fn collect(stderr: impl BufRead, log: &Mutex<String>) {
    for line in stderr.lines().map_while(Result::ok) {
        let mut log = log.lock().unwrap();
        log.push_str(&line);
        log.push('\n');
    }
}
