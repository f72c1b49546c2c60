//! Starts a server on free ports, and stops it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use reqwest::blocking::{Client, RequestBuilder};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A server that runs, until this is dropped.
pub(crate) struct Server {
    child: Child,
    /// `http://127.0.0.1:40123`.
    pub(crate) url: String,
    /// `127.0.0.1:40124`.
    pub(crate) grpc: String,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
    client: Client,
}

impl Server {
    /// With flags beside those for free ports.
    pub(crate) fn start(flags: &[&str]) -> Server {
        Server::start_with(flags, &[])
    }

    /// And with variables of the environment.
    pub(crate) fn start_with(flags: &[&str], variables: &[(&str, &str)]) -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["serve", "--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"])
            .args(flags)
            .env_clear()
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let log = Arc::new(Mutex::new(String::new()));
        let (url, grpc) = addresses(&mut stderr, &log);
        let collected = Arc::clone(&log);
        let reader = std::thread::spawn(move || collect(stderr, &collected));
        let client = Client::builder().timeout(Duration::from_secs(30)).build().unwrap();
        Server { child, url, grpc, log, reader: Some(reader), client }
    }

    /// What it wrote to standard error so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits until it is gone; what it wrote, and how it ended.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
        (status, self.log())
    }

    pub(crate) fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(format!("{}{path}", self.url))
    }

    pub(crate) fn delete(&self, path: &str) -> RequestBuilder {
        self.client.delete(format!("{}{path}", self.url))
    }

    /// With a body of JSON, or of what is not.
    pub(crate) fn post(&self, path: &str, body: impl Into<String>) -> RequestBuilder {
        let request = self.client.post(format!("{}{path}", self.url)).body(body.into());
        request.header("content-type", "application/json")
    }

    /// Asks `/v1/check`, which must answer with 200.
    pub(crate) fn check(&self, body: &str) -> Value {
        let response = self.post("/v1/check", body).send().unwrap();
        let status = response.status();
        let text = response.text().unwrap();
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// From the lines that say where it listens. If there are none, the server could not start.
fn addresses(stderr: &mut impl BufRead, log: &Mutex<String>) -> (String, String) {
    let parse = |line: &str| {
        let from_http = line.get(line.find("http://")?..)?;
        let (http, grpc) = from_http.trim_end().split_once(", gRPC ")?;
        Some((http.to_owned(), grpc.to_owned()))
    };
    let mut log = log.lock().unwrap();
    loop {
        // There may be warnings before it.
        let mut line = String::new();
        let is_over = stderr.read_line(&mut line).unwrap() == 0;
        log.push_str(&line);
        match parse(&line) {
            Some(addresses) => return addresses,
            None => assert!(!is_over, "the server did not start: {log}"),
        }
    }
}

fn collect(stderr: impl BufRead, log: &Mutex<String>) {
    for line in stderr.lines().map_while(Result::ok) {
        let mut log = log.lock().unwrap();
        log.push_str(&line);
        log.push('\n');
    }
}
