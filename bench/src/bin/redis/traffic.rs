//! The keys of the checks. All are made before the clock starts.

use std::sync::LazyLock;

use tollgate_bench::random::Random;

/// The number of keys when checks are timed.
pub(crate) const KEYS: usize = 10_000;

/// The number of keys when memory is measured.
pub(crate) const MANY_KEYS: usize = 100_000;

static IDS: LazyLock<Vec<String>> =
    LazyLock::new(|| (0..MANY_KEYS).map(|nth| format!("user:{nth:08}")).collect());

/// Returns an endless sequence of random keys, each one of 10,000. Each caller gets a different sequence.
pub(crate) fn uniform(caller: u32) -> impl Iterator<Item = &'static str> + Send {
    let mut random = Random::new(caller);
    std::iter::repeat_with(move || IDS[random.below(KEYS)].as_str())
}

/// Returns one caller's share of `count` keys. Together, the shares of all callers have each key once.
pub(crate) fn share(
    caller: usize,
    callers: usize,
    count: usize,
) -> impl Iterator<Item = &'static str> + Send {
    IDS.iter().take(count).skip(caller).step_by(callers).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn shares_of_all_callers_have_each_key_once() {
        let shares = (0..64).flat_map(|caller| share(caller, 64, MANY_KEYS));
        let keys: Vec<&str> = shares.collect();
        assert_eq!(keys.len(), MANY_KEYS);
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), MANY_KEYS);
        assert!(keys.iter().all(|key| key.len() == 13));
    }

    #[test]
    fn callers_have_different_sequences() {
        assert!(!uniform(0).take(9).eq(uniform(1).take(9)));
    }
}
