//! Functions that summarise measurements.

/// Returns the smallest value that at least `share` of the sorted values do not exceed; 0 if there are no values.
pub fn quantile<T: Copy + Default>(sorted: &[T], share: f64) -> T {
    let count = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(count.saturating_sub(1)).copied().unwrap_or_default()
}

/// Returns the value in the middle: 2 for 1, 9 and 2.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    quantile(&values, 0.5)
}

/// Returns the median of the ratios of `values` to the values of `base` in the same rounds.
pub fn median_ratio(values: &[f64], base: &[f64]) -> f64 {
    median(values.iter().zip(base).map(|(own, base)| own / base))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_is_not_exceeded_by_its_share_of_the_values() {
        let values: Vec<u32> = (1..=10_000).collect();
        assert_eq!(quantile(&values, 1.0), 10_000);
        assert_eq!(quantile(&values, 0.9999), 9_999);
        assert_eq!(quantile(&values, 0.5), 5_000);
        assert_eq!(quantile::<u32>(&[], 0.5), 0);
    }

    #[test]
    fn median_ignores_one_extreme_value() {
        assert_eq!(median([1.0, 9e9, 2.0]), 2.0);
    }

    #[test]
    fn median_ratio_compares_values_of_the_same_round() {
        // The machine was half as fast from the second round on, for both.
        assert_eq!(median_ratio(&[15.0, 30.0, 31.0], &[10.0, 20.0, 20.0]), 1.5);
    }
}
