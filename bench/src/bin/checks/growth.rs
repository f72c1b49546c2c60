//! The cost of 1,000,000 new keys: memory, and the slowest calls. Each measurement runs in its own process, so that
//! no competitor reuses memory that another one got from the kernel.

use std::env;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::competitors::{Competitor, Limits, ours, storing_nothing};
use crate::traffic::{KEYS, Sequence, keys};
use tollgate_bench::statistics::quantile;

/// The number of repetitions. The smallest value of each number counts, because other programs also use the machine.
const REPEATS: usize = 5;

/// The name of the limiter that stores nothing.
const NOTHING: &str = "nothing";

const LOG: &str = "sliding-window-log limit=100 window=1h";
const LOG_KEYS: usize = 10_000;
const LOG_ENTRIES: usize = 100;

/// The cost of growing from no key to 1,000,000.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Growth {
    pub(crate) bytes_per_key: f64,
    pub(crate) worst_us: f64,
    /// One call in 10,000 took longer.
    pub(crate) p9999_us: f64,
}

impl Growth {
    /// Returns the smaller value of each number.
    fn least(self, other: Growth) -> Growth {
        Growth {
            bytes_per_key: self.bytes_per_key.min(other.bytes_per_key),
            worst_us: self.worst_us.min(other.worst_us),
            p9999_us: self.p9999_us.min(other.p9999_us),
        }
    }
}

/// Measures a competitor.
pub(crate) fn measure(competitor: &Competitor) -> Result<Growth> {
    least_of(competitor.name)
}

/// Measures a limiter that stores nothing and takes the same time, so that the machine causes its slowest calls.
pub(crate) fn measure_nothing() -> Result<Growth> {
    least_of(NOTHING)
}

fn least_of(name: &str) -> Result<Growth> {
    let mut least: Option<Growth> = None;
    for _ in 0..REPEATS {
        let growth = match *child(&["grow", name])? {
            [bytes_per_key, worst_us, p9999_us] => Growth { bytes_per_key, worst_us, p9999_us },
            ref numbers => anyhow::bail!("`checks grow` printed {numbers:?}"),
        };
        least = Some(least.map_or(growth, |least| least.least(growth)));
    }
    least.context("no repeat")
}

/// Returns the bytes that our log takes for an entry, when 10,000 keys have 100 entries each.
pub(crate) fn bytes_per_log_entry() -> Result<f64> {
    child(&["fill-logs"])?.first().copied().context("`checks fill-logs` printed nothing")
}

/// Runs this program again, and returns the numbers that it prints.
fn child(args: &[&str]) -> Result<Vec<f64>> {
    let this = env::current_exe().context("cannot find this executable")?;
    let output = Command::new(this).args(args).output().context("cannot run this executable")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "checks {}: {}", args.join(" "), errors.trim());
    let numbers = str::from_utf8(&output.stdout)?.split_whitespace();
    numbers.map(|number| number.parse().with_context(|| number.to_owned())).collect()
}

/// Measures once and prints the numbers: the part of [`measure`] that runs in its own process.
pub(crate) fn grow(name: &str) -> Result<()> {
    let keys = keys(KEYS);
    // Filled with ones, because the kernel provides a page of zeros only when the program writes to it.
    let mut calls_ns = vec![1; KEYS];
    let before = resident_bytes()?;
    let limiter = match name {
        NOTHING => storing_nothing(),
        _ => Competitor::named(name)?.build(Limits::Generous)?,
    };
    limiter.timed_calls(&keys, &mut calls_ns);
    let grown = resident_bytes()? - before;
    ensure!(limiter.overflowed() == 0, "{name} had no memory for {KEYS} keys");
    calls_ns.sort_unstable();
    let [worst_us, p9999_us] =
        [1.0, 0.9999].map(|share| f64::from(quantile(&calls_ns, share)) / 1_000.0);
    println!("{} {worst_us} {p9999_us}", grown / KEYS as f64);
    Ok(())
}

/// Prints the bytes per entry: the part of [`bytes_per_log_entry`] that runs in its own process.
pub(crate) fn fill_logs() -> Result<()> {
    let sequence = Sequence { keys: keys(LOG_KEYS), times: LOG_ENTRIES };
    let before = resident_bytes()?;
    let limiter = ours(LOG, LOG_KEYS)?;
    let allowed = limiter.pass(&sequence);
    let grown = resident_bytes()? - before;
    ensure!(allowed == sequence.checks(), "the log allowed {allowed} of {}", sequence.checks());
    println!("{}", grown / allowed as f64);
    Ok(())
}

/// Returns the resident memory of this process.
fn resident_bytes() -> Result<f64> {
    let path = "/proc/self/smaps_rollup";
    let text = fs::read_to_string(path).with_context(|| format!("{path}: Linux is needed"))?;
    resident_kib(&text).map(|kib| kib * 1024.0).with_context(|| format!("{path} has no `Rss:`"))
}

/// Returns the number after `Rss:`.
fn resident_kib(smaps: &str) -> Option<f64> {
    let line = smaps.lines().find_map(|line| line.strip_prefix("Rss:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_keeps_the_smaller_value_of_each_number() {
        let one = Growth { bytes_per_key: 50.0, worst_us: 90.0, p9999_us: 3.0 };
        let other = Growth { bytes_per_key: 51.0, worst_us: 80.0, p9999_us: 2.0 };
        let want = Growth { bytes_per_key: 50.0, worst_us: 80.0, p9999_us: 2.0 };
        assert_eq!(one.least(other), want);
    }

    #[test]
    fn resident_kib_reads_the_rss_line() {
        let smaps = "55d0-7fff ---p 00000000 00:00 0 [rollup]\nRss:        1234 kB\nPss: 9 kB\n";
        assert_eq!(resident_kib(smaps), Some(1234.0));
        assert_eq!(resident_kib("Pss: 9 kB\n"), None);
        assert!(resident_bytes().unwrap() > 0.0);
    }
}
