//! The keys of the checks, made before anything is timed.

use std::sync::LazyLock;

use tollgate_bench::random::Random;

/// How many keys the checks are spread over.
pub(crate) const KEYS: usize = 10_000;

/// How many keys there are when memory is measured.
pub(crate) const MANY_KEYS: usize = 100_000;

static IDS: LazyLock<Vec<String>> =
    LazyLock::new(|| (0..MANY_KEYS).map(|nth| format!("user:{nth:08}")).collect());

/// Any of 10,000 keys, for ever; another sequence for each caller.
pub(crate) fn uniform(caller: u32) -> impl Iterator<Item = &'static str> + Send {
    let mut random = Random::new(caller);
    std::iter::repeat_with(move || IDS[random.below(KEYS)].as_str())
}

/// Returns every nth of `count` keys, beginning with the caller's own: together, the callers check each key once.
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
    fn callers_share_all_keys_and_each_has_13_bytes() {
        let shares = (0..64).flat_map(|caller| share(caller, 64, MANY_KEYS));
        let keys: Vec<&str> = shares.collect();
        assert_eq!(keys.len(), MANY_KEYS);
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), MANY_KEYS);
        assert!(keys.iter().all(|key| key.len() == 13));
    }

    #[test]
    fn callers_ask_in_different_orders() {
        assert!(!uniform(0).take(9).eq(uniform(1).take(9)));
    }
}
