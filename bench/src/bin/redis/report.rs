//! The tables.

use tollgate_bench::table::thousands;

use crate::latency::Latency;
use crate::throughput::Throughput;

/// Returns the table of the throughput.
pub(crate) fn throughput_lines(measured: &[Throughput]) -> Vec<Vec<String>> {
    let header = ["64 callers", "checks per second", "x tollgate", "Redis us per check"];
    let line = |it: &Throughput| {
        vec![
            it.contender.name().to_owned(),
            thousands(it.checks_per_s),
            format!("{:.2}", it.to_ours),
            format!("{:.2}", it.redis_us),
        ]
    };
    table(header, measured.iter().map(line))
}

/// Returns the table of the latency.
pub(crate) fn latency_lines(measured: &[Latency]) -> Vec<Vec<String>> {
    let header = ["1 caller", "median us", "99% us", "x tollgate"];
    let line = |it: &Latency| {
        vec![
            it.contender.name().to_owned(),
            format!("{:.1}", it.median_us),
            format!("{:.0}", it.p99_us),
            format!("{:.2}", it.to_ours),
        ]
    };
    table(header, measured.iter().map(line))
}

/// Returns a table of names, and bytes with one decimal.
pub(crate) fn memory_lines(
    header: [&str; 2],
    measured: &[(&'static str, f64)],
) -> Vec<Vec<String>> {
    let line = |(name, bytes): &(&str, f64)| vec![(*name).to_owned(), format!("{bytes:.1}")];
    table(header, measured.iter().map(line))
}

fn table<const N: usize>(
    header: [&str; N],
    lines: impl Iterator<Item = Vec<String>>,
) -> Vec<Vec<String>> {
    [header.map(str::to_owned).to_vec()].into_iter().chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contenders::RedisContender;

    #[test]
    fn lines_have_a_cell_for_each_title() {
        let contender = RedisContender::Script;
        let throughput =
            Throughput { contender, checks_per_s: 45_678.4, redis_us: 12.345, to_ours: 0.5 };
        let lines = throughput_lines(&[throughput]);
        assert_eq!(lines[1][1..], ["45,678", "0.50", "12.35"]);
        let latency = Latency { contender, median_us: 60.0, p99_us: 120.4, to_ours: 1.2 };
        let lines = latency_lines(&[latency]);
        assert_eq!(lines[1][1..], ["60.0", "120", "1.20"]);
        assert_eq!(lines[0].len(), lines[1].len());
    }
}
