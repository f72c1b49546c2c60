//! Numbers that summarise many measurements.

/// Returns the value that this share of sorted values does not exceed; 0 if there are no values.
pub fn quantile<T: Copy + Default>(sorted: &[T], share: f64) -> T {
    let count = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(count.saturating_sub(1)).copied().unwrap_or_default()
}

/// The value in the middle: 2 of 1, 9, 2.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    quantile(&values, 0.5)
}

/// Returns the median of `values` divided by `base` of the same round.
pub fn times(values: &[f64], base: &[f64]) -> f64 {
    median(values.iter().zip(base).map(|(own, base)| own / base))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_value_that_many_do_not_exceed() {
        let values: Vec<u32> = (1..=10_000).collect();
        assert_eq!(quantile(&values, 1.0), 10_000);
        assert_eq!(quantile(&values, 0.9999), 9_999);
        assert_eq!(quantile(&values, 0.5), 5_000);
        assert_eq!(quantile::<u32>(&[], 0.5), 0);
    }

    #[test]
    fn a_median_does_not_mind_one_wild_value() {
        assert_eq!(median([1.0, 9e9, 2.0]), 2.0);
    }

    #[test]
    fn a_round_is_compared_with_the_same_round() {
        // The machine was half as fast from the second round on, for both.
        assert_eq!(times(&[15.0, 30.0, 31.0], &[10.0, 20.0, 20.0]), 1.5);
    }
}
