//! The table, with a row for each competitor.

use crate::competitors::{BASELINE, Competitor};
use crate::growth::Growth;
use crate::timing::Column;

/// The measurements of one competitor.
pub(crate) struct CompetitorRow {
    pub(crate) competitor: &'static Competitor,
    /// In the order of [`Column::all`].
    pub(crate) ns_per_check: Vec<f64>,
    pub(crate) growth: Growth,
}

/// Returns the header and the rows.
pub(crate) fn lines(rows: &[CompetitorRow]) -> Vec<Vec<String>> {
    let baseline = rows.iter().find(|row| row.competitor.name == BASELINE);
    let header = ["ns per check".to_owned()]
        .into_iter()
        .chain(Column::all().into_iter().map(Column::title))
        .chain(["bytes per key", "99.99% us", "worst us"].map(str::to_owned));
    let line = |row: &CompetitorRow| {
        line(row, baseline.filter(|it| it.competitor.name != row.competitor.name))
    };
    [header.collect()].into_iter().chain(rows.iter().map(line)).collect()
}

fn line(row: &CompetitorRow, baseline: Option<&CompetitorRow>) -> Vec<String> {
    let Growth { bytes_per_key, worst_us, p9999_us } = row.growth;
    let ns = row.ns_per_check.iter().enumerate().map(|(nth, &ns)| {
        let theirs = baseline.and_then(|row| row.ns_per_check.get(nth));
        time_and_ratio(ns, theirs.copied())
    });
    [row.competitor.name.to_owned()]
        .into_iter()
        .chain(ns)
        .chain([format!("{bytes_per_key:.0}"), format!("{p9999_us:.1}"), format!("{worst_us:.0}")])
        .collect()
}

/// Returns the text of a time, with the baseline's time divided by it in brackets.
fn time_and_ratio(ns: f64, baseline_ns: Option<f64>) -> String {
    if ns.is_infinite() {
        return "busy".to_owned();
    }
    match baseline_ns.filter(|ns| ns.is_finite()) {
        Some(baseline_ns) => format!("{ns:.0} ({:.2}x)", baseline_ns / ns),
        None => format!("{ns:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_ratio_shows_the_baseline_divided_by_the_time() {
        assert_eq!(time_and_ratio(30.4, Some(45.6)), "30 (1.50x)");
        assert_eq!(time_and_ratio(120.0, Some(60.0)), "120 (0.50x)");
        assert_eq!(time_and_ratio(45.6, None), "46");
    }

    #[test]
    fn time_is_busy_when_every_pass_was_disturbed() {
        assert_eq!(time_and_ratio(f64::INFINITY, Some(45.6)), "busy");
        assert_eq!(time_and_ratio(30.0, Some(f64::INFINITY)), "30");
    }

    #[test]
    fn baseline_row_has_no_ratio() {
        let growth = Growth { bytes_per_key: 49.6, worst_us: 80.2, p9999_us: 2.06 };
        let row = |name, ns| {
            let competitor = Competitor::named(name).unwrap();
            CompetitorRow { competitor, ns_per_check: vec![ns; Column::all().len()], growth }
        };
        let lines = lines(&[row("token-bucket", 20.0), row("governor", 50.0)]);
        assert!(lines.iter().all(|line| line.len() == lines[0].len()));
        assert_eq!(lines[1][..2], ["token-bucket", "20 (2.50x)"]);
        assert_eq!(lines[1][8..], ["50", "2.1", "80"]);
        assert_eq!(lines[2][..2], ["governor", "50"]);
    }
}
