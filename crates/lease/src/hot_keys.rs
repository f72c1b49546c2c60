//! Finds the keys that are checked often enough to be leased.

/// The checks within one lease time that make a key hot.
const HOT_CHECKS: u32 = 8;

/// A key that has become hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HotKey {
    /// The time of its first check that was counted.
    pub(crate) since_us: u64,
    /// The units of its checks.
    pub(crate) units: u64,
}

/// Counts the checks of keys without a lease, in a table of fixed size.
///
/// A key has one place in the table, by its hash. A place belongs to one key at a time: checks of other keys with the
/// same place count against it, and take the place when the count has fallen to 0. So cold keys cannot hide a hot key
/// that is checked more often than all of them. Two keys with the same hash are counted as one, which at worst makes a
/// cold key hot.
#[derive(Debug)]
pub(crate) struct HotKeys {
    places: Box<[CountedKey]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct CountedKey {
    hash: u64,
    since_us: u64,
    units: u64,
    checks: u32,
}

impl HotKeys {
    pub(crate) fn new(places: usize) -> HotKeys {
        HotKeys { places: vec![CountedKey::default(); places.max(1)].into_boxed_slice() }
    }

    /// Counts one check. Returns the key's count if the key is hot now, and forgets it.
    pub(crate) fn count(
        &mut self,
        hash: u64,
        now_us: u64,
        units: u64,
        lease_us: u64,
    ) -> Option<HotKey> {
        // OK because the remainder is below the number of places, which is a usize.
        let place = (hash % self.places.len() as u64) as usize;
        let counted = self.places.get_mut(place)?;
        let is_old = now_us.saturating_sub(counted.since_us) > lease_us;
        if counted.checks == 0 || is_old {
            *counted = CountedKey { hash, since_us: now_us, units, checks: 1 };
            return None;
        }
        if counted.hash != hash {
            counted.checks -= 1;
            return None;
        }
        counted.checks += 1;
        counted.units = counted.units.saturating_add(units);
        if counted.checks < HOT_CHECKS {
            return None;
        }
        let hot = HotKey { since_us: counted.since_us, units: counted.units };
        counted.checks = 0;
        Some(hot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE_US: u64 = 1_000_000;

    fn count(keys: &mut HotKeys, hash: u64, at_us: u64) -> Option<HotKey> {
        keys.count(hash, at_us, 2, LEASE_US)
    }

    #[test]
    fn eight_checks_within_a_lease_time_make_a_key_hot() {
        let mut keys = HotKeys::new(4);
        for check in 0..7 {
            assert_eq!(count(&mut keys, 5, check * 1_000), None);
        }
        assert_eq!(count(&mut keys, 5, 7_000), Some(HotKey { since_us: 0, units: 16 }));
        assert_eq!(count(&mut keys, 5, 7_001), None);
    }

    #[test]
    fn slow_checks_never_make_a_key_hot() {
        let mut keys = HotKeys::new(4);
        assert!((0..100).all(|check| count(&mut keys, 5, check * 150_000).is_none()));
    }

    #[test]
    fn place_passes_to_a_key_that_is_checked_more_often() {
        let mut keys = HotKeys::new(1);
        (0..5).for_each(|check| assert_eq!(count(&mut keys, 1, check), None));
        // 5 checks take the place, and 8 make the key hot.
        (0..12).for_each(|check| assert_eq!(count(&mut keys, 2, check), None));
        assert!(count(&mut keys, 2, 12).is_some());
    }

    #[test]
    fn cold_keys_do_not_hide_a_key_that_is_checked_more_often() {
        let mut keys = HotKeys::new(1);
        let mut was_hot = false;
        for check in 0..100 {
            was_hot |= count(&mut keys, 5, check).is_some();
            was_hot |= count(&mut keys, 5, check).is_some();
            assert_eq!(count(&mut keys, 1_000 + check, check), None);
        }
        assert!(was_hot);
    }
}
