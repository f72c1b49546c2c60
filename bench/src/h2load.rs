//! Runs h2load, a program that sends requests over HTTP/2.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};

use crate::turns::time_us;

/// The result of h2load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct H2loadResult {
    /// The number of answered requests.
    pub requests: f64,
    /// The answered requests per second.
    pub requests_per_s: f64,
    /// The mean time of an answer.
    pub mean_us: f64,
}

/// Fails if h2load is not installed.
pub fn find() -> Result<()> {
    run(["--version"]).map(drop)
}

/// Posts a gRPC body repeatedly for this many seconds, with one thread and 8 connections, each with 32 concurrent requests.
pub fn post(url: &str, body: &Path, seconds: u32) -> Result<H2loadResult> {
    let length = format!("-D{seconds}");
    let first = ["-t1", "-c8", "-m32", &length, "-d"].map(OsStr::new);
    let headers =
        ["-H", "content-type: application/grpc", "-H", "te: trailers", url].map(OsStr::new);
    let output = run(first.iter().copied().chain([body.as_os_str()]).chain(headers))?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "h2load for {url}: {}\n{text}", output.status);
    parse(&text).with_context(|| format!("unexpected output of h2load for {url}\n{text}"))
}

fn run(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<Output> {
    match Command::new("h2load").args(args).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("h2load not found; install it, for example with `apt-get install nghttp2-client`")
        }
        output => output.context("cannot run h2load"),
    }
}

fn parse(text: &str) -> Result<H2loadResult> {
    let after = |name| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let finished =
        after("finished in ").and_then(|line| line.split(", ").nth(1)?.strip_suffix(" req/s"));
    let requests = after("requests:").context("no requests")?;
    let count_of = |kind: &str| {
        let own = requests.split(", ").find_map(|part| part.strip_suffix(kind));
        own.and_then(|count| count.trim().parse::<f64>().ok())
            .with_context(|| format!("no number{kind}"))
    };
    for trouble in [" failed", " errored", " timeout"] {
        ensure!(count_of(trouble)? == 0.0, "some requests failed");
    }
    let times: Vec<_> = after("time for request:").unwrap_or_default().split_whitespace().collect();
    Ok(H2loadResult {
        requests: count_of(" succeeded")?,
        requests_per_s: finished
            .and_then(|text| text.parse().ok())
            .context("no requests per second")?,
        mean_us: times.get(2).and_then(|text| time_us(text)).context("no mean time")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
finished in 3.00s, 52600.33 req/s, 4.62MB/s
requests: 157801 total, 158057 started, 157801 done, 157801 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 157801 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 13.87MB (14541234) total, 1.81MB (1893612) headers (space savings 93.33%), 4.21MB (4418428) data
                     min         max         mean         sd        +/- sd
time for request:      412us     12.92ms      4.83ms       970us    85.46%
time for connect:       95us       412us       210us        99us    62.50%
";

    #[test]
    fn output_is_parsed() {
        let want =
            H2loadResult { requests: 157_801.0, requests_per_s: 52_600.33, mean_us: 4_830.0 };
        assert_eq!(parse(TEXT).unwrap(), want);
    }

    #[test]
    fn output_with_failed_requests_is_an_error() {
        for (none, some) in
            [("0 failed", "3 failed"), ("0 errored", "1 errored"), ("0 timeout", "2 timeout")]
        {
            assert!(parse(&TEXT.replace(none, some)).is_err(), "{some}");
        }
    }

    #[test]
    fn other_text_is_an_error() {
        assert!(parse("could not connect to the host\n").is_err());
    }
}
