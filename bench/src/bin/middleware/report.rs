//! The tables.

use tollgate_bench::statistics::{median, median_ratio};

use crate::compare::{AddedCost, added_cost};
use crate::in_process::InProcess;
use crate::sockets::OverSockets;
use crate::variants::Variant;

/// Returns the table of the requests in process.
pub(crate) fn in_process_lines(measured: &[InProcess]) -> Vec<Vec<String>> {
    let of = |wanted| measured.iter().find(|it| it.variant == wanted);
    let (Some(base), Some(peer)) = (of(Variant::NoLayer), of(Variant::PeerWithHeaders)) else {
        return Vec::new();
    };
    let header = [
        "in process",
        "ns per request",
        "adds",
        "middle half",
        "x peer",
        "instructions",
        "adds",
        "x peer",
    ];
    let more = |it: &InProcess| it.instructions as f64 - base.instructions as f64;
    let time = |it: &InProcess| added_cost(&it.times_ns, &base.times_ns);
    let line = |it: &InProcess| {
        let name = it.variant.name().to_owned();
        let [took, count] = [median(it.times_ns.iter().copied()), it.instructions as f64];
        if it.variant == Variant::NoLayer {
            let [took, count] = [took, count].map(|number| format!("{number:.0}"));
            let none = || "-".to_owned();
            return vec![name, took, none(), none(), none(), count, none(), none()];
        }
        let AddedCost { median: adds, middle_half: [low, high] } = time(it);
        vec![
            name,
            format!("{took:.0}"),
            format!("{adds:.0}"),
            format!("{low:.0} to {high:.0}"),
            format!("{:.2}", adds / time(peer).median),
            format!("{count:.0}"),
            format!("{:.0}", more(it)),
            format!("{:.2}", more(it) / more(peer)),
        ]
    };
    table(header, measured.iter().map(line))
}

/// Returns the table of the requests over sockets.
pub(crate) fn socket_lines(measured: &[OverSockets]) -> Vec<Vec<String>> {
    let of = |wanted| measured.iter().find(|it| it.variant == wanted);
    let (Some(base), Some(peer)) = (of(Variant::NoLayer), of(Variant::PeerWithHeaders)) else {
        return Vec::new();
    };
    let header = [
        "over sockets",
        "1,000 requests per s",
        "x no layer",
        "CPU us per request",
        "adds",
        "middle half",
        "x peer",
    ];
    let cpu = |it: &OverSockets| added_cost(&it.cpu_us, &base.cpu_us);
    let line = |it: &OverSockets| {
        let name = it.variant.name().to_owned();
        let speed = format!("{:.1}", median(it.requests_per_s.iter().copied()) / 1e3);
        let cpu_us = format!("{:.2}", median(it.cpu_us.iter().copied()));
        let none = || "-".to_owned();
        if it.variant == Variant::NoLayer {
            return vec![name, speed, none(), cpu_us, none(), none(), none()];
        }
        let AddedCost { median: adds, middle_half: [low, high] } = cpu(it);
        vec![
            name,
            speed,
            format!("{:.2}", median_ratio(&it.requests_per_s, &base.requests_per_s)),
            cpu_us,
            format!("{adds:.2}"),
            format!("{low:.2} to {high:.2}"),
            format!("{:.2}", adds / cpu(peer).median),
        ]
    };
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

    #[test]
    fn added_time_is_compared_with_the_peer() {
        let it = |variant, time_ns, instructions| InProcess {
            variant,
            times_ns: vec![time_ns; 3],
            instructions,
        };
        let lines = in_process_lines(&[
            it(Variant::NoLayer, 400.0, 3_000),
            it(Variant::PeerWithHeaders, 800.0, 5_000),
            it(Variant::OursWithAll, 700.0, 4_000),
        ]);
        assert_eq!(lines[1][1..], ["400", "-", "-", "-", "3000", "-", "-"]);
        assert_eq!(lines[2][1..], ["800", "400", "400 to 400", "1.00", "5000", "2000", "1.00"]);
        assert_eq!(lines[3][1..], ["700", "300", "300 to 300", "0.75", "4000", "1000", "0.50"]);
        assert!(lines.iter().all(|line| line.len() == lines[0].len()));
    }

    #[test]
    fn added_cpu_time_over_sockets_is_compared_with_the_peer() {
        let it = |variant, requests_per_s, cpu_us| OverSockets {
            variant,
            requests_per_s: vec![requests_per_s; 3],
            cpu_us: vec![cpu_us; 3],
        };
        let lines = socket_lines(&[
            it(Variant::NoLayer, 100_000.0, 8.0),
            it(Variant::PeerWithHeaders, 80_000.0, 10.0),
            it(Variant::OursWithAll, 90_000.0, 9.0),
        ]);
        assert_eq!(lines[1][1..], ["100.0", "-", "8.00", "-", "-", "-"]);
        assert_eq!(lines[2][1..], ["80.0", "0.80", "10.00", "2.00", "2.00 to 2.00", "1.00"]);
        assert_eq!(lines[3][1..], ["90.0", "0.90", "9.00", "1.00", "1.00 to 1.00", "0.50"]);
        assert!(lines.iter().all(|line| line.len() == lines[0].len()));
    }
}
