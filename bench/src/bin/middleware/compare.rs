//! The difference between two variants, computed round by round.

use tollgate_bench::statistics::quantile;

/// The additional cost of one variant: its median, and its range in the middle half of all rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AddedCost {
    pub(crate) median: f64,
    /// The range: a quarter of all rounds is below it, and a quarter is above it.
    pub(crate) middle_half: [f64; 2],
}

/// Returns by how much `values` exceed the values of `base` in the same rounds.
pub(crate) fn added_cost(values: &[f64], base: &[f64]) -> AddedCost {
    let mut differences: Vec<f64> = values.iter().zip(base).map(|(own, base)| own - base).collect();
    differences.sort_unstable_by(f64::total_cmp);
    let [low, median, high] = [0.25, 0.5, 0.75].map(|share| quantile(&differences, share));
    AddedCost { median, middle_half: [low, high] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_cost_compares_values_of_the_same_round() {
        // The machine was half as fast from the second round on, for both.
        let [own, base] = [[15.0, 30.0, 31.0, 29.0], [10.0, 20.0, 20.0, 20.0]];
        assert_eq!(added_cost(&own, &base), AddedCost { median: 9.0, middle_half: [5.0, 10.0] });
    }
}
