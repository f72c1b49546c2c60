//! How much more one variant takes than another, round by round.

use tollgate_bench::statistics::quantile;

/// The difference of two variants: its median, and its range in the middle half of all rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Added {
    pub(crate) median: f64,
    /// A quarter of all rounds is below, and one above.
    pub(crate) middle_half: [f64; 2],
}

/// Returns by how much `values` exceed `base` of the same round.
pub(crate) fn added(values: &[f64], base: &[f64]) -> Added {
    let mut differences: Vec<f64> = values.iter().zip(base).map(|(own, base)| own - base).collect();
    differences.sort_unstable_by(f64::total_cmp);
    let [low, median, high] = [0.25, 0.5, 0.75].map(|share| quantile(&differences, share));
    Added { median, middle_half: [low, high] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_compared_with_the_same_round() {
        // The machine was half as fast from the second round on, for both.
        let [own, base] = [[15.0, 30.0, 31.0, 29.0], [10.0, 20.0, 20.0, 20.0]];
        assert_eq!(added(&own, &base), Added { median: 9.0, middle_half: [5.0, 10.0] });
    }
}
