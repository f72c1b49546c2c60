//! What the system gives the server: files and addresses.

use std::io::Read;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use redis::cmd;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tollgate_launcher::{Flavour, Launch};

use crate::eventually::eventually;
use crate::server::Server;

const CHECK: &str = r#"{"limit":"free","key":"user:42"}"#;

/// More than there are files for.
const CROWD: usize = 330;

#[test]
fn without_files_for_all_clients_there_are_still_some_for_the_store() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let redis = Launch::new(Flavour::Redis).start().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 300 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_tollgate")]);
    command.args(["serve", "--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"]);
    // Whoever is silent stays, until there is need for its place.
    command.args(["--first-byte-timeout", "1h", "--store-deadline", "1s", "--store", &redis.url()]);
    let (server, mut log) = Server::start_command(&mut command);
    let http = server.url.strip_prefix("http://").unwrap();
    let idle = |address: &str| TcpStream::connect(address).unwrap();
    let crowd: Vec<_> = (0..CROWD).flat_map(|_| [idle(http), idle(&server.grpc)]).collect();
    // Those who came later are let in too: a check is answered after they are.
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
                   which are enough for 22 connections on each";
    assert_eq!(rest.matches(warning).count(), 1, "{rest}");
    assert!(!rest.contains("connections cannot be accepted"), "{rest}");
}

#[test]
fn all_addresses_of_ipv6_are_those_of_ipv4_too() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["serve", "--listen", "[::]:0", "--grpc-listen", "[::]:0"]).env_clear();
    let (server, _log) = Server::start_command(&mut command);
    for address in [server.url.strip_prefix("http://").unwrap(), &server.grpc] {
        let port = address.parse::<SocketAddr>().unwrap().port();
        for to in [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()] {
            let connected = TcpStream::connect_timeout(&to, Duration::from_secs(10));
            assert!(connected.is_ok(), "{to}: {connected:?}");
        }
    }
    // Whoever comes from this machine by IPv4 is an operator as well.
    let port = server.url.rsplit_once(':').unwrap().1;
    let keys = format!("http://127.0.0.1:{port}/v1/limits/free/keys/user:42");
    assert_eq!(reqwest::blocking::get(keys).unwrap().status(), 200);
}
