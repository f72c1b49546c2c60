//! A shared server is started once, and stops when the process ends.

#![allow(clippy::panic, clippy::unwrap_used)]

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_launcher::{Flavour, Launch, Server, SharedServers};

static SERVER: SharedServers<Server> = SharedServers::new();

/// The environment variable that says how a process with a shared server ends. Unset in the process of the tests.
const ENDS_BY: &str = "TOLLGATE_SHARED_ENDS_BY";

fn server() -> &'static Server {
    SERVER.get(|| Launch::new(Flavour::Redis).start()).unwrap()
}

#[test]
fn shared_server_is_started_once() {
    let threads = [(); 4].map(|()| thread::spawn(|| server().pid()));
    let pids = threads.map(|thread| thread.join().unwrap());
    assert!(pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
    assert!(TcpStream::connect(server().addr()).is_ok());
}

/// Not a test by itself: the tests below run it in another process.
#[test]
fn process_with_a_shared_server() {
    let Some(ends_by) = env::var_os(ENDS_BY) else { return };
    println!("\nserver {} {}", server().addr(), server().unix_socket().display());
    if ends_by == "panic" {
        panic!("expected by this test");
    }
    // Waits until the parent kills this process: standard input does not close before that.
    let _ = std::io::stdin().read(&mut [0]);
}

/// Starts a process that starts a shared server; returns the server's address and its directory.
fn start_process(ends_by: &str) -> (Child, SocketAddr, PathBuf) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "process_with_a_shared_server", "--nocapture"]);
    command.env(ENDS_BY, ends_by).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.find(|line| line.starts_with("server ")).unwrap();
    let mut words = line.split(' ').skip(1);
    let addr = words.next().unwrap().parse().unwrap();
    let socket = Path::new(words.next().unwrap()).to_owned();
    (child, addr, socket.parent().unwrap().to_owned())
}

fn assert_stops(addr: SocketAddr, directory: &Path) {
    let began = Instant::now();
    while TcpStream::connect(addr).is_ok() || directory.exists() {
        assert!(began.elapsed() < Duration::from_secs(30), "{addr} in {directory:?} still runs");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn shared_server_stops_when_a_test_of_the_process_fails() {
    let (mut child, addr, directory) = start_process("panic");
    assert!(!child.wait().unwrap().success());
    assert_stops(addr, &directory);
}

#[test]
fn shared_server_stops_when_the_process_is_killed() {
    let (mut child, addr, directory) = start_process("kill");
    assert!(TcpStream::connect(addr).is_ok() && directory.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_stops(addr, &directory);
}
