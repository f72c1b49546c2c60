//! The table.

use tollgate_bench::statistics::{median, median_ratio};
use tollgate_bench::table::thousands;

use crate::rounds::RlsMeasurements;

/// Returns the table. All services are compared with the first one, the null service.
pub(crate) fn lines(measured: &[RlsMeasurements]) -> Vec<Vec<String>> {
    let header = ["service", "per second", "x null", "mean us", "CPU us", "x null"];
    let usual = |values: &[f64]| median(values.iter().copied());
    let line = |(it, null): (&RlsMeasurements, &RlsMeasurements)| {
        vec![
            it.contender.name().to_owned(),
            thousands(usual(&it.requests_per_s)),
            format!("{:.2}", median_ratio(&it.requests_per_s, &null.requests_per_s)),
            format!("{:.0}", usual(&it.mean_us)),
            format!("{:.2}", usual(&it.cpu_us)),
            format!("{:.2}", median_ratio(&it.cpu_us, &null.cpu_us)),
        ]
    };
    let null = measured.iter().take(1).cycle();
    let header = header.map(str::to_owned).to_vec();
    [header].into_iter().chain(measured.iter().zip(null).map(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contenders::RlsContender;

    #[test]
    fn ours_is_compared_with_the_null_service() {
        let it = |contender, requests_per_s: f64| RlsMeasurements {
            requests_per_s: vec![requests_per_s; 3],
            mean_us: vec![3_200.4; 3],
            cpu_us: vec![8e5 / requests_per_s; 3],
            ..RlsMeasurements::new(contender)
        };
        let lines = lines(&[it(RlsContender::Null, 100_000.0), it(RlsContender::Ours, 80_000.0)]);
        assert_eq!(lines[1], ["null service", "100,000", "1.00", "3200", "8.00", "1.00"]);
        assert_eq!(lines[2], ["tollgate", "80,000", "0.80", "3200", "10.00", "1.25"]);
    }
}
