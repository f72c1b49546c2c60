//! Counts instructions with callgrind.

use std::env;
use std::io::ErrorKind;
use std::process::Command;

use anyhow::{Context, Result, bail};

const FEW: u64 = 1_000;
const MANY: u64 = 11_000;

/// Returns the instructions of one more request, when this executable is run with `args` and a number of requests.
/// The instructions of start-up and preparation cancel out.
pub fn instructions_per_request(args: &[&str]) -> Result<u64> {
    let count = |requests: u64| collect(&[], &[args, &[&requests.to_string()]].concat());
    let (few, many) = (count(FEW)?, count(MANY)?);
    let extra = many.checked_sub(few).context("more requests took fewer instructions")?;
    Ok((extra as f64 / (MANY - FEW) as f64).round() as u64)
}

/// Returns the instructions inside a function, when this executable is run with `args`. `function` is a pattern such as
/// `*measured_loop*`. Start-up and preparation are not counted.
pub fn instructions_inside(function: &str, args: &[&str]) -> Result<u64> {
    collect(&[&format!("--toggle-collect={function}")], args)
}

/// Runs this executable under valgrind, and returns the instructions that were counted.
fn collect(options: &[&str], args: &[&str]) -> Result<u64> {
    let mut this = Command::new(env::current_exe().context("cannot find this executable")?);
    this.args(args);
    let mut command = under_valgrind(&this, options);
    let output = match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("valgrind not found; install it, for example with `apt-get install valgrind`")
        }
        output => output.context("cannot run valgrind")?,
    };
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("valgrind of {args:?}: {}\n{log}", output.status);
    }
    collected(&log).with_context(|| format!("valgrind printed no `Collected : <number>`\n{log}"))
}

/// Returns a command that runs `command` under callgrind, with `options` for callgrind.
pub fn under_valgrind(command: &Command, options: &[&str]) -> Command {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).args(options);
    valgrind.arg(command.get_program()).args(command.get_args());
    valgrind.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    valgrind
}

/// Returns the number after `Collected :` in callgrind's log.
pub fn collected(log: &str) -> Option<u64> {
    let (_, rest) = log.lines().find_map(|line| line.split_once("Collected :"))?;
    rest.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collected_reads_the_total_of_a_log() {
        let log = "==80== Events    : Ir\n==80== Collected : 126545\n==80== \n\
                   ==80== I   refs:      126,545\n";
        assert_eq!(collected(log), Some(126_545));
    }

    #[test]
    fn collected_is_none_when_the_log_has_no_total() {
        assert_eq!(collected("==80== Command: /bin/true\n"), None);
        assert_eq!(collected("==80== Collected : many\n"), None);
    }
}
