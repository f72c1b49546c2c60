//! The deadline of a check, and its failure policy.

use std::time::Duration;

use tollgate_core::Role;

use super::OnFailure;

/// The part of the caller's own deadline that is reserved for returning the answer.
const RETURN_TIME: Duration = Duration::from_millis(3);

/// How long a store has for a request, and how the request is decided when the store fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreTerms {
    pub(crate) deadline: Duration,
    pub(crate) on_failure: OnFailure,
}

/// Returns the store's deadline, shortened so that the answer can be returned within the caller's own deadline; zero if
/// there is no time for that.
pub(crate) fn bounded_deadline(deadline: Duration, callers: Option<Duration>) -> Duration {
    let callers = callers.map_or(Duration::MAX, |own| own.saturating_sub(RETURN_TIME));
    deadline.min(callers)
}

impl StoreTerms {
    /// Sets the deadline: at least 1 ms, at most an hour.
    pub(crate) fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline.clamp(Duration::from_millis(1), Duration::from_secs(3_600));
    }

    /// Returns the terms of one check of several limits: the shortest deadline and the strictest policy of
    /// the enforced limits. If all limits are shadows, all of them count, with open instead of closed: a shadow limit
    /// must not fail a check. Returns `None` without limits.
    ///
    /// For an enforced limit with the policy open and 10 ms, next to a shadow limit with the policy closed and 5 ms,
    /// the terms are open and 10 ms.
    pub(crate) fn of_all(parts: &[(Role, StoreTerms)]) -> Option<StoreTerms> {
        let of = |wanted| parts.iter().filter(move |(role, _)| *role == wanted);
        let enforced = of(Role::Enforced).map(|(_, terms)| *terms).reduce(StoreTerms::stricter);
        let for_shadow = || of(Role::Shadow).map(|(_, terms)| terms.for_shadow());
        enforced.or_else(|| for_shadow().reduce(StoreTerms::stricter))
    }

    /// Returns these terms for a caller with a deadline of its own: the store must answer 3 ms before it, so that
    /// there is time to return the answer.
    pub(crate) fn bounded(self, callers: Option<Duration>) -> StoreTerms {
        StoreTerms { deadline: bounded_deadline(self.deadline, callers), ..self }
    }

    fn for_shadow(self) -> StoreTerms {
        match self.on_failure {
            OnFailure::Closed => StoreTerms { on_failure: OnFailure::Open, ..self },
            _ => self,
        }
    }

    fn stricter(self, other: StoreTerms) -> StoreTerms {
        let on_failure = self.on_failure.stricter(other.on_failure);
        StoreTerms { deadline: self.deadline.min(other.deadline), on_failure }
    }
}

impl OnFailure {
    fn stricter(self, other: OnFailure) -> OnFailure {
        if other.strictness() > self.strictness() { other } else { self }
    }

    /// Ranks the policies: closed, then local with the most processes, then local with the number that the store knows,
    /// then open.
    fn strictness(self) -> (u8, u32) {
        match self {
            OnFailure::Open => (0, 0),
            OnFailure::Local { processes } => (1, processes.map_or(0, |count| count.max(1))),
            OnFailure::Closed => (2, 0),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::OnFailure::{Closed, Local, Open};
    use super::Role::{Enforced, Shadow};
    use super::*;

    const LIVE: OnFailure = Local { processes: None };
    const LARGE: OnFailure = Local { processes: Some(2) };
    const SMALL: OnFailure = Local { processes: Some(9) };

    fn of(parts: &[(Role, u64, OnFailure)]) -> (u64, OnFailure) {
        let part = |&(role, ms, on_failure)| {
            (role, StoreTerms { deadline: Duration::from_millis(ms), on_failure })
        };
        let terms = StoreTerms::of_all(&parts.iter().map(part).collect::<Vec<_>>()).unwrap();
        (u64::try_from(terms.deadline.as_millis()).unwrap(), terms.on_failure)
    }

    #[test]
    fn strictest_policy_wins_in_either_order() {
        let by_strictness = [Open, LIVE, LARGE, SMALL, Closed];
        for (rank, &one) in by_strictness.iter().enumerate() {
            for &other in &by_strictness[..=rank] {
                for pair in [[one, other], [other, one]] {
                    let parts = pair.map(|on_failure| (Enforced, 10, on_failure));
                    assert_eq!(of(&parts), (10, one), "{pair:?}");
                }
            }
        }
    }

    #[test]
    fn shortest_deadline_wins_whatever_the_policy() {
        assert_eq!(of(&[(Enforced, 20, Closed), (Enforced, 5, Open)]), (5, Closed));
        assert_eq!(of(&[(Enforced, 5, Closed), (Enforced, 20, Open)]), (5, Closed));
        assert_eq!(of(&[(Enforced, 5, LARGE), (Enforced, 7, SMALL)]), (5, SMALL));
    }

    #[test]
    fn shadow_terms_are_ignored_next_to_an_enforced_limit() {
        assert_eq!(of(&[(Shadow, 1, Closed), (Enforced, 10, Open)]), (10, Open));
        assert_eq!(of(&[(Enforced, 10, LARGE), (Shadow, 1, SMALL)]), (10, LARGE));
        assert_eq!(of(&[(Enforced, 10, Closed), (Shadow, 20, Open)]), (10, Closed));
    }

    #[test]
    fn shadow_terms_apply_without_an_enforced_limit_and_closed_becomes_open() {
        assert_eq!(of(&[(Shadow, 8, Open), (Shadow, 3, LARGE)]), (3, LARGE));
        assert_eq!(of(&[(Shadow, 3, Closed), (Shadow, 8, LARGE)]), (3, LARGE));
        assert_eq!(of(&[(Shadow, 3, Closed), (Shadow, 8, Closed)]), (3, Open));
    }

    #[test]
    fn zero_processes_count_as_one() {
        let [none, one] = [0, 1].map(|processes| Local { processes: Some(processes) });
        assert_eq!(of(&[(Enforced, 1, Open), (Enforced, 1, none)]), (1, none));
        assert_eq!(none.strictness(), one.strictness());
    }

    #[test]
    fn default_policy_is_local_with_the_live_processes() {
        assert_eq!(OnFailure::default(), LIVE);
    }

    #[test]
    fn check_without_limits_has_no_terms() {
        assert_eq!(StoreTerms::of_all(&[]), None);
    }

    #[test]
    fn deadline_is_clamped_to_between_1_ms_and_1_hour() {
        let mut terms =
            StoreTerms { deadline: Duration::from_millis(10), on_failure: OnFailure::default() };
        for (deadline, want_ms) in [(Duration::ZERO, 1), (Duration::MAX, 3_600_000)] {
            terms.set_deadline(deadline);
            assert_eq!(terms.deadline, Duration::from_millis(want_ms));
        }
    }
}
