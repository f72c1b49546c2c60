//! Runs wrk, a program that sends requests over HTTP.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};

use crate::turns::time_us;

/// The result of wrk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WrkResult {
    /// The number of answered requests.
    pub requests: f64,
    /// The answered requests per second.
    pub requests_per_s: f64,
    /// The median time of an answer.
    pub p50_us: f64,
    /// The time that 99 in 100 answers did not exceed.
    pub p99_us: f64,
}

/// Fails if wrk is not installed.
pub fn find() -> Result<()> {
    // OK although wrk has no such option: it still prints its version, and then fails.
    execute(["--version"]).map(drop)
}

/// Sends requests for this many seconds, with one thread and 50 connections that stay open.
pub fn run(url: &str, seconds: u32) -> Result<WrkResult> {
    run_with(url, seconds, &[])
}

/// Does the same as [`run`] with more arguments: `-s`, a script, and after `--` the arguments of the script.
pub fn run_with(url: &str, seconds: u32, args: &[&OsStr]) -> Result<WrkResult> {
    let length = format!("-d{seconds}s");
    let first = ["-t1", "-c50", &length, "--latency", url].map(OsStr::new);
    let output = execute(first.iter().chain(args))?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "wrk for {url}: {}\n{text}", output.status);
    parse(&text).with_context(|| format!("unexpected output of wrk for {url}\n{text}"))
}

fn execute(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<Output> {
    match Command::new("wrk").args(args).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("wrk not found; install it, for example with `apt-get install wrk`")
        }
        output => output.context("cannot run wrk"),
    }
}

fn parse(text: &str) -> Result<WrkResult> {
    for trouble in ["Non-2xx or 3xx responses", "Socket errors"] {
        ensure!(!text.contains(trouble), "some requests failed");
    }
    let lines = || text.lines().map(str::trim);
    let after = |name| lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let requests = lines().find_map(|line| line.split_once(" requests in "));
    let number = |text: &str| text.parse().ok();
    Ok(WrkResult {
        requests: requests.and_then(|(count, _)| number(count)).context("no requests")?,
        requests_per_s: after("Requests/sec:")
            .and_then(number)
            .context("no requests per second")?,
        p50_us: after("50%").and_then(time_us).context("no p50")?,
        p99_us: after("99%").and_then(time_us).context("no p99")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Running 3s test @ http://127.0.0.1:8080/
  1 threads and 50 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   635.91us    0.89ms  12.92ms   93.69%
    Req/Sec    56.20k     8.07k   62.00k    86.67%
  Latency Distribution
     50%  612.00us
     75%    0.93ms
     90%    1.21ms
     99%    1.65ms
  167735 requests in 3.00s, 21.12MB read
Requests/sec:  55901.12
Transfer/sec:      7.04MB
";

    #[test]
    fn output_is_parsed() {
        let want = WrkResult {
            requests: 167_735.0,
            requests_per_s: 55_901.12,
            p50_us: 612.0,
            p99_us: 1_650.0,
        };
        assert_eq!(parse(TEXT).unwrap(), want);
    }

    #[test]
    fn output_with_failed_requests_is_an_error() {
        for trouble in [
            "  Non-2xx or 3xx responses: 3\n",
            "  Socket errors: connect 0, read 1, write 0, timeout 0\n",
        ] {
            assert!(parse(&format!("{TEXT}{trouble}")).is_err(), "{trouble}");
        }
    }

    #[test]
    fn other_text_is_an_error() {
        assert!(parse("unable to connect to 127.0.0.1:1 Connection refused\n").is_err());
    }

    #[test]
    fn duration_needs_a_known_unit() {
        assert_eq!(time_us("1.20s"), Some(1_200_000.0));
        assert_eq!(time_us("1.20m"), None);
        assert_eq!(time_us("1.20"), None);
    }
}
