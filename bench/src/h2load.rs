//! h2load, the program that sends requests over HTTP/2.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};

use crate::turns::time_us;

/// The result of h2load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counted {
    /// The number of answered requests.
    pub requests: f64,
    /// The answered requests in a second.
    pub requests_per_s: f64,
    /// The mean time of an answer.
    pub mean_us: f64,
}

/// Fails early if there is no h2load.
pub fn find() -> Result<()> {
    run(["--version"]).map(drop)
}

/// Posts a body of gRPC for this many seconds, by one thread on 8 connections, each with 32 requests at a time.
pub fn post(url: &str, body: &Path, seconds: u32) -> Result<Counted> {
    let length = format!("-D{seconds}");
    let first = ["-t1", "-c8", "-m32", &length, "-d"].map(OsStr::new);
    let headers =
        ["-H", "content-type: application/grpc", "-H", "te: trailers", url].map(OsStr::new);
    let output = run(first.iter().copied().chain([body.as_os_str()]).chain(headers))?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "h2load of {url}: {}\n{text}", output.status);
    counted(&text).with_context(|| format!("h2load of {url} says\n{text}"))
}

fn run(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<Output> {
    match Command::new("h2load").args(args).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("h2load is missing; install it, for example with apt-get install nghttp2-client")
        }
        output => output.context("cannot run h2load"),
    }
}

fn counted(text: &str) -> Result<Counted> {
    let after = |name| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let finished =
        after("finished in ").and_then(|line| line.split(", ").nth(1)?.strip_suffix(" req/s"));
    let requests = after("requests:").context("no requests")?;
    let of = |kind: &str| {
        let own = requests.split(", ").find_map(|part| part.strip_suffix(kind));
        own.and_then(|count| count.trim().parse::<f64>().ok())
            .with_context(|| format!("no number{kind}"))
    };
    for trouble in [" failed", " errored", " timeout"] {
        ensure!(of(trouble)? == 0.0, "not all requests were answered well");
    }
    let times: Vec<_> = after("time for request:").unwrap_or_default().split_whitespace().collect();
    Ok(Counted {
        requests: of(" succeeded")?,
        requests_per_s: finished
            .and_then(|text| text.parse().ok())
            .context("no requests a second")?,
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
    fn reads_what_h2load_counted() {
        let want = Counted { requests: 157_801.0, requests_per_s: 52_600.33, mean_us: 4_830.0 };
        assert_eq!(counted(TEXT).unwrap(), want);
    }

    #[test]
    fn refused_requests_do_not_count() {
        for (well, badly) in
            [("0 failed", "3 failed"), ("0 errored", "1 errored"), ("0 timeout", "2 timeout")]
        {
            assert!(counted(&TEXT.replace(well, badly)).is_err(), "{badly}");
        }
    }

    #[test]
    fn finds_nothing_in_other_texts() {
        assert!(counted("could not connect to the host\n").is_err());
    }
}
