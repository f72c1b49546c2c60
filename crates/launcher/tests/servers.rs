//! Redis and Valkey servers start, answer, and stop when they are dropped.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use tollgate_launcher::{Flavour, Launch, LaunchError, Server};

/// Sends one inline command over TCP, and returns whether the reply begins with `wanted`.
fn replies_with(server: &Server, command: &str, wanted: &str) -> bool {
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    let mut reply = vec![0; wanted.len()];
    stream.read_exact(&mut reply).unwrap();
    reply == wanted.as_bytes()
}

#[test]
fn server_answers_until_it_is_dropped() {
    for flavour in Flavour::ALL {
        let server = Launch::new(flavour).start().unwrap();
        assert!(replies_with(&server, "PING", "+PONG"), "{flavour}");
        let (addr, socket) = (server.addr(), server.unix_socket());
        let process = format!("/proc/{}", server.pid());
        drop(server);
        assert!(TcpStream::connect(addr).is_err(), "{flavour}");
        assert!(!socket.exists(), "{flavour}");
        assert!(!Path::new(&process).exists(), "{flavour}");
    }
}

#[test]
fn server_stops_when_its_test_panics() {
    let (send, receive) = std::sync::mpsc::channel();
    let test = std::thread::spawn(move || {
        let server = Launch::new(Flavour::Redis).start().unwrap();
        send.send(server.addr()).unwrap();
        panic!("expected by this test");
    });
    assert!(test.join().is_err());
    assert!(TcpStream::connect(receive.recv().unwrap()).is_err());
}

#[test]
fn server_gets_the_configuration_lines() {
    for flavour in Flavour::ALL {
        let server = Launch::new(flavour).config("maxmemory", "7mb").start().unwrap();
        let wanted = "*2\r\n$9\r\nmaxmemory\r\n$7\r\n7340032\r\n";
        assert!(replies_with(&server, "CONFIG GET maxmemory", wanted), "{flavour}");
    }
}

#[test]
fn launch_error_shows_the_log_of_a_server_that_does_not_start() {
    let error = Launch::new(Flavour::Redis).config("no-such-line", "1").start().unwrap_err();
    assert!(matches!(error, LaunchError::Exited { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("redis-server") && text.contains("no-such-line"), "{text}");
}

#[test]
fn concurrent_servers_have_different_ports() {
    let servers: Vec<_> = (0..3).map(|_| Launch::new(Flavour::Redis).start().unwrap()).collect();
    for pair in servers.windows(2) {
        assert_ne!(pair[0].addr(), pair[1].addr());
    }
}

#[test]
fn launch_fails_when_the_port_stays_taken() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for flavour in Flavour::ALL {
        let error = Launch::new(flavour).config("port", &port).start().unwrap_err();
        assert!(error.to_string().contains("Address already in use"), "{error}");
    }
}

#[test]
fn missing_server_error_says_what_to_run() {
    let variable = "TOLLGATE_VALKEY_SERVER";
    let error = LaunchError::NotFound { flavour: Flavour::Valkey, variable };
    assert_eq!(
        error.to_string(),
        "no valkey server found; run `make servers`, or set TOLLGATE_VALKEY_SERVER to its path"
    );
}
