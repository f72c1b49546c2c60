//! wrk, the program that sends requests.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};

use crate::turns::time_us;

/// The result of wrk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counted {
    /// The number of answered requests.
    pub requests: f64,
    /// The answered requests in a second.
    pub requests_per_s: f64,
    /// The median time of an answer.
    pub p50_us: f64,
    /// The time that 99 in 100 answers did not exceed.
    pub p99_us: f64,
}

/// Fails early if there is no wrk.
pub fn find() -> Result<()> {
    // It knows no such option, but says its version before it fails.
    run(["--version"]).map(drop)
}

/// Sends requests for this many seconds, on 50 connections that stay open.
pub fn ask(url: &str, seconds: u32) -> Result<Counted> {
    ask_by(url, seconds, &[])
}

/// The same with more arguments: `-s`, a script, and after `--` what the script is given.
pub fn ask_by(url: &str, seconds: u32, args: &[&OsStr]) -> Result<Counted> {
    let length = format!("-d{seconds}s");
    let first = ["-t1", "-c50", &length, "--latency", url].map(OsStr::new);
    let output = run(first.iter().chain(args))?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "wrk of {url}: {}\n{text}", output.status);
    counted(&text).with_context(|| format!("wrk of {url} says\n{text}"))
}

fn run(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<Output> {
    match Command::new("wrk").args(args).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("wrk is missing; install it, for example with apt-get install wrk")
        }
        output => output.context("cannot run wrk"),
    }
}

fn counted(text: &str) -> Result<Counted> {
    for trouble in ["Non-2xx or 3xx responses", "Socket errors"] {
        ensure!(!text.contains(trouble), "not all requests were answered well");
    }
    let lines = || text.lines().map(str::trim);
    let after = |name| lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let requests = lines().find_map(|line| line.split_once(" requests in "));
    let number = |text: &str| text.parse().ok();
    Ok(Counted {
        requests: requests.and_then(|(count, _)| number(count)).context("no requests")?,
        requests_per_s: after("Requests/sec:").and_then(number).context("no requests a second")?,
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
    fn reads_what_wrk_counted() {
        let want = Counted {
            requests: 167_735.0,
            requests_per_s: 55_901.12,
            p50_us: 612.0,
            p99_us: 1_650.0,
        };
        assert_eq!(counted(TEXT).unwrap(), want);
    }

    #[test]
    fn refused_requests_do_not_count() {
        for trouble in [
            "  Non-2xx or 3xx responses: 3\n",
            "  Socket errors: connect 0, read 1, write 0, timeout 0\n",
        ] {
            assert!(counted(&format!("{TEXT}{trouble}")).is_err(), "{trouble}");
        }
    }

    #[test]
    fn finds_nothing_in_other_texts() {
        assert!(counted("unable to connect to 127.0.0.1:1 Connection refused\n").is_err());
    }

    #[test]
    fn a_time_has_its_unit() {
        assert_eq!(time_us("1.20s"), Some(1_200_000.0));
        assert_eq!(time_us("1.20m"), None);
        assert_eq!(time_us("1.20"), None);
    }
}
