//! The example: one command starts its programs, and one signal stops them.

use std::fs;
use std::process::{Child, Command, ExitStatus, Stdio};

use reqwest::blocking::Client;
use rustix::process::{Pid, Signal, kill_process};
use tollgate_launcher::free_port;

use crate::envoy::config::examples;
use crate::envoy::front::header;
use crate::envoy::process::program;
use crate::eventually::eventually;
use crate::gateway::{configuration, with_ports};

/// The running example, which is stopped when this is dropped.
struct RunningExample(Child);

impl RunningExample {
    fn stop(&mut self) -> ExitStatus {
        // OK because an error means that the example has already stopped.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        self.0.wait().unwrap()
    }
}

impl Drop for RunningExample {
    fn drop(&mut self) {
        self.stop();
    }
}

#[test]
fn one_command_starts_the_example_and_one_signal_stops_it() {
    let names = ["PORT", "ADMIN_PORT", "SERVICE_PORT", "HTTP_PORT", "GRPC_PORT"];
    let ports = names.map(|name| (name, free_port().unwrap().to_string()));
    let mut command = Command::new(examples().join("run"));
    command.envs(ports.iter().map(|(name, port)| (name, port)));
    command.env("ENVOY", program()).env("TOLLGATE", env!("CARGO_BIN_EXE_tollgate"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut run = RunningExample(command.spawn().unwrap());
    let url = format!("http://127.0.0.1:{}", ports[0].1);
    let client = Client::new();
    let get =
        |path: &str, key: &str| client.get(format!("{url}{path}")).header("x-api-key", key).send();
    let left = |path, key| {
        let answer = get(path, key).ok()?;
        let left = header(&answer, "x-ratelimit-remaining")?;
        Some((answer.status().as_u16(), left.parse::<u64>().unwrap()))
    };
    // Envoy can listen before the service does.
    let looked = eventually("the example answers", || left("/quota", "").filter(|it| it.0 == 200));
    assert_eq!(looked, (200, 10));
    // A busy machine can miss the timeout of 20 ms. Envoy then lets the request pass without headers.
    let ask = |path, key| eventually("a decision in time", || left(path, key));
    assert_eq!(ask("/reports", ""), (200, 5));
    assert_eq!(ask("/", "k_123"), (200, 599));
    eventually("the tenth is refused", || (ask("/", "") == (429, 0)).then_some(()));
    assert!(run.stop().success());
    for (name, port) in ports {
        let answer = client.get(format!("http://127.0.0.1:{port}")).send();
        assert!(answer.is_err_and(|error| error.is_connect()), "{name} is still open");
    }
}

#[test]
fn ports_of_the_example_can_be_changed() {
    let ports = [("10000", "9901"), ("9901", "8081"), ("8081", "10000")];
    let names = [("PORT", "9901"), ("ADMIN_PORT", "8081"), ("GRPC_PORT", "10000")];
    let service = free_port().unwrap().to_string();
    let given = configuration("envoy", &[&names[..], &[("SERVICE_PORT", &service)]].concat());
    let example = fs::read_to_string(examples().join("envoy.yaml")).unwrap();
    let moved = [&ports[..], &[("8082", &service)]].concat();
    assert_eq!(given, with_ports(&example, "port_value: ", &moved));
}
