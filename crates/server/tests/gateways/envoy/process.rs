//! Starts and stops an Envoy on free ports.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use reqwest::blocking::Client;
use serde_json::Value;
use tempfile::TempDir;

use crate::envoy::config::EnvoyConfig;
use crate::eventually::eventually;

/// A running Envoy, which is stopped when this is dropped.
pub(crate) struct Envoy {
    child: Child,
    /// The URL for requests, such as `http://127.0.0.1:40123`.
    pub(crate) url: String,
    admin: String,
    client: Client,
    written: Arc<Mutex<String>>,
    _directory: TempDir,
}

impl Envoy {
    pub(crate) fn start(config: &EnvoyConfig) -> Envoy {
        let directory = tempfile::tempdir().unwrap();
        let [file, address] = ["envoy.yaml", "admin"].map(|name| directory.path().join(name));
        fs::write(&file, config.text()).unwrap();
        let mut command = Command::new(program());
        command.arg("-c").arg(&file).arg("--admin-address-path").arg(&address);
        command.args(["--concurrency", "1", "--log-level", "error", "--disable-hot-restart"]);
        command.args(["--file-flush-interval-msec", "20", "--drain-time-s", "1"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let written = Arc::new(Mutex::new(String::new()));
        collect(child.stdout.take().unwrap(), &written);
        collect(child.stderr.take().unwrap(), &written);
        let client = Client::builder().timeout(Duration::from_secs(60)).build().unwrap();
        let mut envoy = Envoy {
            child,
            url: String::new(),
            admin: String::new(),
            client,
            written,
            _directory: directory,
        };
        envoy.admin = eventually("Envoy writes the address of its admin port", || {
            envoy.assert_alive();
            fs::read_to_string(&address).ok().filter(|text| text.contains(':'))
        });
        eventually("Envoy is ready", || {
            envoy.assert_alive();
            envoy.ask("/ready").filter(|text| text.trim() == "LIVE")
        });
        let listeners = envoy.ask("/listeners?format=json").unwrap();
        let listeners: Value = serde_json::from_str(&listeners).unwrap();
        let address = &listeners["listener_statuses"][0]["local_address"]["socket_address"];
        envoy.url = format!("http://127.0.0.1:{}", address["port_value"]);
        envoy
    }

    /// Returns a counter of Envoy, such as `cluster.service.ratelimit.ok`; 0 as long as Envoy does not list it.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let page = self.ask("/stats").unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.map_or(0, |value| value.parse().unwrap())
    }

    /// Waits until Envoy's output, which includes its access log, meets a condition.
    pub(crate) fn wait_for_log(&self, is_met: impl Fn(&str) -> bool) -> String {
        eventually("the expected line is in Envoy's log", || {
            Some(self.written.lock().unwrap().clone()).filter(|text| is_met(text))
        })
    }

    fn ask(&self, path: &str) -> Option<String> {
        let answer = self.client.get(format!("http://{}{path}", self.admin)).send().ok()?;
        answer.error_for_status().ok()?.text().ok()
    }

    fn assert_alive(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "Envoy did not start: {}", self.written.lock().unwrap());
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the path of the Envoy that `make envoy` installs.
pub(crate) fn program() -> PathBuf {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.tools/envoy/envoy/_bin/envoy");
    assert!(path.exists(), "{} is missing: run `make envoy`", path.display());
    path
}

fn collect(output: impl Read + Send + 'static, written: &Arc<Mutex<String>>) {
    let written = Arc::clone(written);
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let mut written = written.lock().unwrap();
            written.push_str(&line);
            written.push('\n');
        }
    });
}
