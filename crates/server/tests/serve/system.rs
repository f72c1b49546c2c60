//! The file descriptors and addresses that the system gives to the server.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use redis::cmd;
use rustix::process::{Resource, Rlimit, getrlimit, prlimit, setrlimit};
use tollgate_launcher::{Flavour, Launch};

use crate::eventually::eventually;
use crate::server::ServerProcess;

const CHECK: &str = r#"{"limit":"free","key":"user:42"}"#;

/// A number of connections that exceeds the server's file descriptors.
const CROWD: usize = 330;

#[test]
fn files_are_reserved_for_the_store() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let redis = Launch::new(Flavour::Redis).start().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 300 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_tollgate")]);
    command.args(["serve", "--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"]);
    // Silent connections stay open until they are evicted.
    command.args(["--first-byte-timeout", "1h", "--store-deadline", "1s", "--store", &redis.url()]);
    let (server, mut log) = ServerProcess::start_command(&mut command);
    let http = server.url.strip_prefix("http://").unwrap();
    let idle = |address: &str| TcpStream::connect(address).unwrap();
    let crowd: Vec<_> = (0..CROWD).flat_map(|_| [idle(http), idle(&server.grpc)]).collect();
    // The check is answered after all silent connections were accepted.
    assert!(server.check(CHECK).get("degraded").is_none());

    let killed: u64 = redis.ask(cmd("CLIENT").arg(&["KILL", "TYPE", "normal"])).unwrap();
    assert!(killed > 0, "the server had no connection to Redis");
    eventually("a check on a new connection to Redis", || {
        server.check(CHECK).get("degraded").is_none().then_some(())
    });
    assert_eq!(server.get("/healthz").send().unwrap().status(), 200);
    let mut rest = server.log();
    drop((crowd, server));
    log.read_to_string(&mut rest).unwrap();
    let warning = "--max-connections 8000: the system lets this process open 300 files, \
                   which are enough for 75 connections on each";
    assert_eq!(rest.matches(warning).count(), 1, "{rest}");
    assert!(!rest.contains("connections cannot be accepted"), "{rest}");
}

/// How long an honest client may wait during the crowd of silent connections. With one connection for each port, the
/// crowd would delay it by 10 s.
const MAX_HONEST_WAIT: Duration = Duration::from_secs(4);

/// Connects to the gRPC port and waits for the first frame of the server.
fn begin_http2(address: &str) -> [u8; 9] {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let empty_settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    stream.write_all(&empty_settings).unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    head
}

/// Sends a request to both ports, and returns how long the answers took.
fn ask_both_ports(server: &ServerProcess) -> Duration {
    let began = Instant::now();
    server.check(CHECK);
    assert_eq!(begin_http2(&server.grpc)[3], 4, "the first frame is SETTINGS");
    began.elapsed()
}

/// Opens connections to both ports on which nothing is sent.
fn silent_crowd(server: &ServerProcess, each: usize) -> Vec<TcpStream> {
    let http = server.url.strip_prefix("http://").unwrap();
    let ports = [http, &*server.grpc];
    (0..each).flat_map(|_| ports.map(|port| TcpStream::connect(port).unwrap())).collect()
}

#[test]
fn silent_crowd_does_not_lock_out_clients_of_a_server_with_64_files() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_tollgate")]);
    command.args(["serve", "--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"]);
    command.args(["--first-byte-timeout", "1h"]);
    let (server, _log) = ServerProcess::start_command(&mut command);
    let _crowd = silent_crowd(&server, 100);
    let took = ask_both_ports(&server);
    assert!(took < MAX_HONEST_WAIT, "{took:?}");
}

#[test]
fn silent_crowd_does_not_lock_out_clients_when_the_files_run_out() {
    let (server, _log) = ServerProcess::start_unread(&["--first-byte-timeout", "1h"], &[]);
    let pid = server.pid();
    let open = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap().count();
    // The server's maximum is 4,000 connections, but it has files for only 20 more.
    let few = Rlimit { current: Some(open as u64 + 20), ..getrlimit(Resource::Nofile) };
    prlimit(Some(pid), Resource::Nofile, few).unwrap();
    // One port at a time, because each port needs the files that the connections to the other port hold.
    for crowded in [server.url.strip_prefix("http://").unwrap(), &server.grpc] {
        let _crowd: Vec<_> = (0..60).map(|_| TcpStream::connect(crowded).unwrap()).collect();
        let took = ask_both_ports(&server);
        assert!(took < MAX_HONEST_WAIT, "{crowded}: {took:?}");
    }
}

#[test]
fn listening_on_all_ipv6_addresses_includes_ipv4() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["serve", "--listen", "[::]:0", "--grpc-listen", "[::]:0"]).env_clear();
    let (server, _log) = ServerProcess::start_command(&mut command);
    for address in [server.url.strip_prefix("http://").unwrap(), &server.grpc] {
        let port = address.parse::<SocketAddr>().unwrap().port();
        for to in [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()] {
            let connected = TcpStream::connect_timeout(&to, Duration::from_secs(10));
            assert!(connected.is_ok(), "{to}: {connected:?}");
        }
    }
    // A client on this machine is an operator over IPv4 as well.
    let port = server.url.rsplit_once(':').unwrap().1;
    let keys = format!("http://127.0.0.1:{port}/v1/limits/free/keys/user:42");
    assert_eq!(reqwest::blocking::get(keys).unwrap().status(), 200);
}
