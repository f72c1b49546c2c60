//! Counting instructions with callgrind.

use std::env;
use std::io::ErrorKind;
use std::process::Command;

use anyhow::{Context, Result, bail};

const FEW: u64 = 1_000;
const MANY: u64 = 11_000;

/// The instructions that one more request takes, when this executable is run with `args` and a number
/// of requests: what start-up and preparation take cancels out.
pub fn instructions_per_request(args: &[&str]) -> Result<u64> {
    let few = count(args, FEW)?;
    let many = count(args, MANY)?;
    let extra = many.checked_sub(few).context("more requests took fewer instructions")?;
    Ok((extra as f64 / (MANY - FEW) as f64).round() as u64)
}

fn count(args: &[&str], requests: u64) -> Result<u64> {
    let this = env::current_exe().context("cannot find this executable")?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(this)
        .args(args)
        .arg(requests.to_string())
        .output();
    let output = match output {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("valgrind is missing; install it, for example with apt-get install valgrind")
        }
        output => output.context("cannot run valgrind")?,
    };
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("valgrind of {args:?}: {}\n{log}", output.status);
    }
    collected(&log).with_context(|| format!("valgrind printed no `Collected : <number>`\n{log}"))
}

/// The number after `Collected :` in callgrind's log.
pub fn collected(log: &str) -> Option<u64> {
    let (_, rest) = log.lines().find_map(|line| line.split_once("Collected :"))?;
    rest.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_total_from_callgrinds_log() {
        let log = "==80== Events    : Ir\n==80== Collected : 126545\n==80== \n\
                   ==80== I   refs:      126,545\n";
        assert_eq!(collected(log), Some(126_545));
    }

    #[test]
    fn finds_no_total_in_a_log_without_one() {
        assert_eq!(collected("==80== Command: /bin/true\n"), None);
        assert_eq!(collected("==80== Collected : many\n"), None);
    }
}
