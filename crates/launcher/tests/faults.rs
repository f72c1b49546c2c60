//! Servers can be frozen, killed, restarted and replicated.

#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use redis::cmd;
use tollgate_launcher::{Flavour, Launch, LaunchError, Server};

fn value(server: &Server, key: &str) -> Option<String> {
    server.ask(cmd("GET").arg(key)).unwrap()
}

fn set(server: &Server, key: &str, value: &str) {
    server.ask::<()>(cmd("SET").arg(key).arg(value)).unwrap();
}

#[test]
fn frozen_server_accepts_connections_and_answers_after_it_thaws() {
    for flavour in Flavour::ALL {
        let server = Launch::new(flavour).start().unwrap();
        server.freeze();
        server.freeze();
        let mut stream = TcpStream::connect(server.addr()).unwrap();
        stream.write_all(b"PING\r\n").unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let error = stream.read(&mut [0; 7]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{flavour}");

        server.thaw();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut reply = [0; 7];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"+PONG\r\n", "{flavour}");
    }
}

#[test]
fn frozen_server_is_stopped_when_dropped() {
    let server = Launch::new(Flavour::Redis).start().unwrap();
    server.freeze();
    let process = format!("/proc/{}", server.pid());
    drop(server);
    assert!(!Path::new(&process).exists());
}

#[test]
fn killed_server_restarts_empty_on_the_same_port() {
    for flavour in Flavour::ALL {
        let mut server = Launch::new(flavour).start().unwrap();
        let (addr, pid) = (server.addr(), server.pid());
        set(&server, "key", "kept");
        server.kill();
        server.kill();
        server.freeze();
        server.thaw();
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{flavour}");
        assert!(TcpStream::connect(addr).is_err(), "{flavour}");

        server.restart().unwrap();
        assert_eq!(server.addr(), addr);
        assert!(TcpStream::connect(addr).is_ok(), "{flavour}");
        assert_eq!(value(&server, "key"), None, "{flavour}");
    }
}

#[test]
fn server_keeps_its_data_on_disk_after_a_restart() {
    for flavour in Flavour::ALL {
        let launch = Launch::new(flavour).config("appendonly", "yes");
        let mut server = launch.config("appendfsync", "always").start().unwrap();
        set(&server, "key", "kept");
        server.restart().unwrap();
        assert_eq!(value(&server, "key").as_deref(), Some("kept"), "{flavour}");
        server.freeze();
        server.restart().unwrap();
        assert_eq!(value(&server, "key").as_deref(), Some("kept"), "{flavour}");
    }
}

#[test]
fn replica_copies_its_primary() {
    for flavour in Flavour::ALL {
        let primary = Launch::new(flavour).start().unwrap();
        set(&primary, "key", "copied");
        let replica = Launch::new(flavour).replica_of(&primary).start().unwrap();
        replica.wait_until_in_sync().unwrap();
        assert_eq!(value(&replica, "key").as_deref(), Some("copied"), "{flavour}");
    }
}

#[test]
fn replica_logs_in_to_a_primary_with_a_password() {
    for flavour in Flavour::ALL {
        let with_password = || {
            let launch = Launch::new(flavour).config("user", "default off");
            let launch = launch.config("user", "root on >secret ~* &* +@all");
            launch.admin("root", "secret")
        };
        let primary = with_password().start().unwrap();
        set(&primary, "key", "copied");
        let replica = with_password().config("masteruser", "root").config("masterauth", "secret");
        let replica = replica.replica_of(&primary).start().unwrap();
        replica.wait_until_in_sync().unwrap();
        assert_eq!(value(&replica, "key").as_deref(), Some("copied"), "{flavour}");
    }
}

#[test]
fn server_with_a_password_starts_and_refuses_commands() {
    let server = Launch::new(Flavour::Redis).config("requirepass", "secret").start().unwrap();
    let error = server.ask::<()>(cmd("GET").arg("key")).unwrap_err();
    let LaunchError::CommandFailed { command, source, .. } = error else { panic!("{error}") };
    assert_eq!((command.as_str(), source.code()), ("GET", Some("NOAUTH")));
}
