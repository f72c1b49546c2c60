//! The Dockerfile.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use crate::files::{root, run, seconds, text, tollgate, tool};

/// Returns the arguments of every use of an instruction.
fn instructions(name: &str) -> Vec<String> {
    let text = text("Dockerfile").replace("\\\n", " ");
    let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Returns the ports that the image exposes.
pub(crate) fn exposed() -> Vec<u16> {
    let ports = instructions("EXPOSE");
    ports.iter().flat_map(|line| line.split(' ')).map(|port| port.parse().unwrap()).collect()
}

/// Whether a container runs as this user.
pub(crate) fn runs_as_user(user: &str) -> bool {
    instructions("USER").last().is_some_and(|set| set.split(':').next() == Some(user))
}

#[test]
fn hadolint_finds_no_problem() {
    assert_eq!(run(tool("hadolint").args(["--failure-threshold", "style", "Dockerfile"])), "");
}

#[test]
fn container_listens_on_all_interfaces_at_its_exposed_ports() {
    let [env] = instructions("ENV").try_into().unwrap();
    let addresses = env.split(' ').map(|pair| pair.split_once('=').unwrap().1);
    let expected: Vec<_> = exposed().iter().map(|port| format!("0.0.0.0:{port}")).collect();
    assert_eq!(addresses.collect::<Vec<_>>(), expected);
}

#[test]
fn image_runs_commands_that_exist() {
    let json = |text: &str| -> Vec<String> { serde_json::from_str(text).unwrap() };
    assert_eq!(json(&instructions("ENTRYPOINT")[0]), ["tollgate"]);
    let [healthcheck] = instructions("HEALTHCHECK").try_into().unwrap();
    let health = json(healthcheck.split_once("CMD ").unwrap().1);
    assert_eq!(health[0], "tollgate");
    for command in [&json(&instructions("CMD")[0])[..], &health[1..]] {
        let mut args: Vec<&str> = command.iter().map(String::as_str).collect();
        args.push("--help");
        run(&mut tollgate(&args));
    }
    assert_eq!(instructions("STOPSIGNAL"), ["SIGTERM"]);
    assert!(runs_as_user("65532"));
}

/// If the health check took longer, the engine would kill it, and its message would be lost.
#[test]
fn silent_server_is_unhealthy_before_the_timeout_of_the_engine() {
    let [healthcheck] = instructions("HEALTHCHECK").try_into().unwrap();
    let timeout = healthcheck.split(' ').find_map(|word| word.strip_prefix("--timeout=")).unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let output = tollgate(&["healthy", "--server", &url]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    let waited = errors.split_once(": did not answer within ").unwrap().1.lines().next().unwrap();
    assert!(seconds(waited) < seconds(timeout), "{errors}");
    assert!(!errors.contains("charged"), "{errors}");
}

#[test]
fn image_uses_the_workspaces_compiler_and_version() {
    let images = instructions("FROM");
    let rust = concat!("rust:", env!("CARGO_PKG_RUST_VERSION"), "-slim-trixie AS build");
    // The C library of the build must not be newer than that of the image.
    assert_eq!(images, [rust, "debian:trixie-slim"]);
    let version = concat!("image.version=\"", env!("CARGO_PKG_VERSION"), "\"");
    assert!(instructions("LABEL")[0].contains(version));
    let build = instructions("RUN").concat();
    assert!(build.contains("cargo build --release --locked -p tollgate-server"), "{build}");
}

/// The files that `.dockerignore` does not exclude are a complete Cargo workspace.
#[test]
fn build_context_is_complete() {
    let context = tempfile::tempdir().unwrap();
    let ignored = text(".dockerignore");
    let mut lines = ignored.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(lines.next(), Some("*"), "everything is excluded first");
    for path in lines.map(|line| line.strip_prefix('!').unwrap()) {
        let target = context.path().join(path);
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        run(Command::new("cp").arg("-r").arg(root().join(path)).arg(target));
    }
    let manifest = context.path().join("Cargo.toml");
    let args = ["metadata", "--offline", "--locked", "--no-deps", "--format-version=1"];
    run(Command::new(env!("CARGO")).args(args).arg("--manifest-path").arg(manifest));
    let rules = "examples/rules.yaml";
    assert!(Path::new(&context.path().join(rules)).exists(), "the server embeds this file");
}
