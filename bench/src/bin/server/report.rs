//! The tables, one for each kind of request.

use tollgate_bench::statistics::{median, median_ratio};
use tollgate_bench::table::thousands;

use crate::contenders::ServerContender;
use crate::request_kinds::RequestKind;
use crate::rounds::ServerMeasurements;

/// Returns the tables.
pub(crate) fn tables(measured: &[ServerMeasurements]) -> Vec<Vec<Vec<String>>> {
    let of = |kind| measured.iter().filter(|it| it.kind == kind).collect::<Vec<_>>();
    RequestKind::ALL.iter().filter_map(|&kind| lines(kind, &of(kind))).collect()
}

/// Returns the table of a kind; `None` if the null server was not measured.
fn lines(kind: RequestKind, measured: &[&ServerMeasurements]) -> Option<Vec<Vec<String>>> {
    let of = |wanted| measured.iter().find(|it| it.contender == wanted);
    let (null, peer) = (of(ServerContender::Null)?, of(ServerContender::Peer));
    let header = [
        kind.name(),
        "per second",
        "x null",
        "x peer",
        "p50 us",
        "p99 us",
        "CPU us",
        "x null",
        "instructions",
        "x null",
    ];
    let usual = |values: &[f64]| median(values.iter().copied());
    let line = |it: &&ServerMeasurements| {
        let to_peer = peer.map(|peer| median_ratio(&it.requests_per_s, &peer.requests_per_s));
        vec![
            it.contender.name().to_owned(),
            thousands(usual(&it.requests_per_s)),
            format!("{:.2}", median_ratio(&it.requests_per_s, &null.requests_per_s)),
            to_peer.map_or_else(|| "-".to_owned(), |to_peer| format!("{to_peer:.2}")),
            format!("{:.0}", usual(&it.p50_us)),
            format!("{:.0}", usual(&it.p99_us)),
            format!("{:.2}", usual(&it.cpu_us)),
            format!("{:.2}", median_ratio(&it.cpu_us, &null.cpu_us)),
            thousands(it.instructions),
            format!("{:.2}", it.instructions / null.instructions),
        ]
    };
    let header = header.map(str::to_owned).to_vec();
    Some([header].into_iter().chain(measured.iter().map(line)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn it(
        kind: RequestKind,
        contender: ServerContender,
        requests_per_s: f64,
    ) -> ServerMeasurements {
        ServerMeasurements {
            requests_per_s: vec![requests_per_s; 3],
            p50_us: vec![500.0; 3],
            p99_us: vec![1_650.0; 3],
            cpu_us: vec![8e5 / requests_per_s; 3],
            instructions: 1e9 / requests_per_s,
            ..ServerMeasurements::new(kind, contender)
        }
    }

    #[test]
    fn servers_are_compared_with_the_null_server_and_the_peer() {
        let measured = [
            it(RequestKind::OneKey, ServerContender::Null, 100_000.0),
            it(RequestKind::OneKey, ServerContender::Peer, 50_000.0),
            it(RequestKind::OneKey, ServerContender::Ours, 80_000.0),
        ];
        let [lines] = &tables(&measured)[..] else { panic!("one table") };
        assert_eq!(lines[0][0], "one key");
        assert_eq!(
            lines[2][1..],
            ["50,000", "0.50", "1.00", "500", "1650", "16.00", "2.00", "20,000", "2.00"]
        );
        assert_eq!(
            lines[3][1..],
            ["80,000", "0.80", "1.60", "500", "1650", "10.00", "1.25", "12,500", "1.25"]
        );
        assert!(lines.iter().all(|line| line.len() == lines[0].len()));
    }

    #[test]
    fn table_without_the_peer_has_no_ratio_to_it() {
        let measured = [
            it(RequestKind::ByRules, ServerContender::Null, 100_000.0),
            it(RequestKind::ByRules, ServerContender::Ours, 80_000.0),
        ];
        assert_eq!(tables(&measured)[0][2][2..4], ["0.80", "-"]);
    }
}
