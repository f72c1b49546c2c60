//! Runs the command without the environment variables of the test run.

use std::process::{Command, Output, Stdio};

pub(crate) fn tollgate(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(args).env_clear().env("COLUMNS", "100").stdin(Stdio::null());
    command
}

/// Returns the exit code, standard output and standard error.
pub(crate) fn run(args: &[&str]) -> (i32, String, String) {
    run_command(&mut tollgate(args))
}

/// Runs a command. Returns the exit code, standard output and standard error.
pub(crate) fn run_command(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}
