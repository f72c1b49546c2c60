//! When the store begins to fail and when it answers again, for the log. No clock and no I/O.

use std::time::Duration;

use tollgate_limiter::StoreError;

/// The target of both log lines, so that an application can filter them.
const TARGET: &str = "tollgate::outage";

/// An outage ends with the first answer that comes this long after the last failure. A store that fails
/// some requests and answers others is therefore one outage, and logs at most two lines a second.
const QUIET_US: u64 = 1_000_000;

/// The outages of one limiter's store.
#[derive(Default)]
pub(super) struct Outages {
    current: Option<Outage>,
}

/// An outage that has not ended.
struct Outage {
    began_us: u64,
    last_failure_us: u64,
    failed: u64,
    degraded: u64,
}

/// The first failure of an outage.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OutageStart {
    kind: &'static str,
    failure: String,
}

/// An outage that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OutageEnd {
    /// Requests that the store did not answer.
    failed: u64,
    /// The requests among them that were decided without the store, instead of with an error.
    degraded: u64,
    lasted: Duration,
}

impl Outages {
    /// Counts a request that the store failed to answer. Returns the outage that begins with it, if any.
    pub(super) fn note_failure(
        &mut self,
        now_us: u64,
        error: &StoreError,
        is_degraded: bool,
    ) -> Option<OutageStart> {
        let is_first = self.current.is_none();
        let outage = self.current.get_or_insert(Outage {
            began_us: now_us,
            last_failure_us: now_us,
            failed: 0,
            degraded: 0,
        });
        outage.last_failure_us = now_us.max(outage.last_failure_us);
        outage.failed += 1;
        outage.degraded += u64::from(is_degraded);
        is_first.then(|| OutageStart { kind: error.kind(), failure: described(error) })
    }

    /// Notes an answer of the store. Returns the outage that ends with it, if any.
    pub(super) fn note_answer(&mut self, now_us: u64) -> Option<OutageEnd> {
        let is_over =
            |outage: &mut Outage| now_us.saturating_sub(outage.last_failure_us) >= QUIET_US;
        let Outage { began_us, failed, degraded, .. } = self.current.take_if(is_over)?;
        let lasted = Duration::from_micros(now_us.saturating_sub(began_us));
        Some(OutageEnd { failed, degraded, lasted })
    }
}

impl OutageStart {
    pub(super) fn log(&self) {
        let OutageStart { kind, failure } = self;
        tracing::warn!(
            target: TARGET,
            kind,
            failure,
            "the store fails: until it answers again, requests are handled by their failure policy (`on_failure`)"
        );
    }
}

impl OutageEnd {
    pub(super) fn log(&self) {
        let OutageEnd { failed, degraded, lasted } = self;
        let lasted_ms = u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX);
        tracing::info!(target: TARGET, failed, degraded, lasted_ms, "the store answers again");
    }
}

/// Describes a failure without the client's key, which may be a secret.
fn described(error: &StoreError) -> String {
    match error {
        StoreError::Corrupt { .. } => {
            "a key holds data that is not a state; `Limiter::health` names the key".to_owned()
        }
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: u64 = 1_000_000;

    fn busy() -> StoreError {
        StoreError::refused("busy")
    }

    fn end(failed: u64, degraded: u64, lasted_ms: u64) -> Option<OutageEnd> {
        Some(OutageEnd { failed, degraded, lasted: Duration::from_millis(lasted_ms) })
    }

    #[test]
    fn outage_starts_once_and_ends_once_with_its_counts() {
        let mut outages = Outages::default();
        assert_eq!(outages.note_answer(0), None);
        let start = outages.note_failure(0, &busy(), true).unwrap();
        assert_eq!(start.failure, "the server refused: busy");
        for failure in 1..=14_694 {
            let is_degraded = failure % 2 == 0;
            assert_eq!(outages.note_failure(failure * 1_000, &busy(), is_degraded), None);
        }
        let answered_us = 14_694_000 + SECOND_US;
        assert_eq!(outages.note_answer(answered_us), end(14_695, 7_348, 15_694));
        assert_eq!(outages.note_answer(answered_us), None);
        assert!(outages.note_failure(answered_us, &busy(), true).is_some(), "the next outage");
    }

    #[test]
    fn store_that_fails_every_other_request_is_one_outage() {
        let mut outages = Outages::default();
        let mut lines = 0;
        for ms in 0..10_000 {
            let (now_us, is_answer) = (ms * 1_000, ms % 2 == 1);
            lines += match is_answer {
                true => u64::from(outages.note_answer(now_us).is_some()),
                false => u64::from(outages.note_failure(now_us, &busy(), true).is_some()),
            };
        }
        assert_eq!(lines, 1);
        assert_eq!(outages.note_answer(9_998_000 + SECOND_US - 1), None);
        assert_eq!(outages.note_answer(9_998_000 + SECOND_US), end(5_000, 5_000, 10_998));
    }

    #[test]
    fn clock_that_steps_back_does_not_end_an_outage_early() {
        let mut outages = Outages::default();
        assert!(outages.note_failure(60 * SECOND_US, &busy(), true).is_some());
        assert_eq!(outages.note_failure(0, &busy(), true), None);
        assert_eq!(outages.note_answer(SECOND_US), None);
        assert_eq!(outages.note_answer(61 * SECOND_US), end(2, 2, 1_000));
    }

    #[test]
    fn logged_failure_does_not_contain_a_key() {
        let error = StoreError::Corrupt { key: "tollgate:{secret}:api".to_owned() };
        let start = Outages::default().note_failure(0, &error, false).unwrap();
        assert_eq!(start.kind, "corrupt");
        assert!(!start.failure.contains("secret"), "{}", start.failure);
    }
}
