//! A server's clock can be set while it runs.

#![allow(clippy::unwrap_used)]

use std::time::{SystemTime, UNIX_EPOCH};

use redis::cmd;
use tollgate_launcher::{Flavour, Launch, LaunchError, Server};

/// Returns how far the server's clock is ahead, with an error of about one second.
fn ahead_s(server: &Server) -> i64 {
    let (seconds, _): (i64, i64) = server.ask(&cmd("TIME")).unwrap();
    let machine = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    seconds - i64::try_from(machine).unwrap()
}

fn assert_ahead(server: &Server, wanted_s: i64) {
    let ahead_s = ahead_s(server);
    assert!((ahead_s - wanted_s).abs() < 15, "{ahead_s} s, not {wanted_s} s");
}

#[test]
fn clock_steps_forwards_and_backwards() {
    let mut server = Launch::new(Flavour::Valkey).clock_offset(3_600).start().unwrap();
    assert_ahead(&server, 3_600);
    for offset_s in [7_200, 0, -100, 86_400 * 366, 50] {
        server.set_clock_offset(offset_s).unwrap();
        assert_ahead(&server, offset_s);
    }
    server.restart().unwrap();
    assert_ahead(&server, 50);
}

#[test]
fn key_expires_by_the_server_clock() {
    let server = Launch::new(Flavour::Valkey).clock_offset(0).start().unwrap();
    server.ask::<()>(cmd("SET").arg("key").arg("1").arg("EX").arg(1_000)).unwrap();
    server.set_clock_offset(900).unwrap();
    assert!(server.ask::<bool>(cmd("EXISTS").arg("key")).unwrap());
    server.set_clock_offset(1_100).unwrap();
    assert!(!server.ask::<bool>(cmd("EXISTS").arg("key")).unwrap());
}

#[test]
fn script_reads_the_set_clock() {
    let server = Launch::new(Flavour::Valkey).clock_offset(0).start().unwrap();
    let script = "return redis.call('TIME')";
    let time = || server.ask::<(i64, i64)>(cmd("EVAL").arg(script).arg(0)).unwrap().0;
    let before = time();
    server.set_clock_offset(-5_000).unwrap();
    assert!((before - time() - 5_000).abs() < 15);
}

#[test]
fn redis_cannot_have_its_own_clock() {
    let error = Launch::new(Flavour::Redis).clock_offset(0).start().unwrap_err();
    assert_eq!(
        error.to_string(),
        "a redis server cannot have its own clock, because it hangs in libfaketime; use valkey"
    );
}

#[test]
fn machine_clock_cannot_be_set() {
    let server = Launch::new(Flavour::Valkey).start().unwrap();
    let error = server.set_clock_offset(1).unwrap_err();
    assert!(matches!(error, LaunchError::ClockNotOwn { .. }), "{error}");
}

#[test]
fn missing_library_error_says_what_to_run() {
    assert_eq!(
        LaunchError::ClockNotFound.to_string(),
        "libfaketime not found; a server needs it to have its own clock; run `make servers`"
    );
}
