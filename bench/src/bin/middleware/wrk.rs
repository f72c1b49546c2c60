//! The program that asks: wrk.

use std::io::ErrorKind;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};

/// What wrk counted.
#[derive(Debug, PartialEq)]
pub(crate) struct Counted {
    pub(crate) requests: f64,
    pub(crate) requests_per_s: f64,
}

/// Fails early if there is no wrk.
pub(crate) fn find() -> Result<()> {
    // It knows no such option, but says its version before it fails.
    run(&["--version"]).map(drop)
}

/// Asks for so many seconds, on 50 connections that stay open.
pub(crate) fn ask(url: &str, seconds: u32) -> Result<Counted> {
    let output = run(&["-t1", "-c50", &format!("-d{seconds}s"), url])?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "wrk of {url}: {}\n{text}", output.status);
    counted(&text).with_context(|| format!("wrk of {url} says\n{text}"))
}

fn run(args: &[&str]) -> Result<Output> {
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
    let number = |before: &str, after: &str| {
        let line = text.lines().map(str::trim);
        let found = line.filter_map(|line| line.strip_prefix(before)?.split(after).next());
        found.filter_map(|number| number.trim().parse().ok()).next()
    };
    Ok(Counted {
        requests: number("", " requests in ").context("no number of requests")?,
        requests_per_s: number("Requests/sec:", "\n").context("no requests a second")?,
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
  167735 requests in 3.00s, 21.12MB read
Requests/sec:  55901.12
Transfer/sec:      7.04MB
";

    #[test]
    fn reads_what_wrk_counted() {
        let want = Counted { requests: 167_735.0, requests_per_s: 55_901.12 };
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
}
