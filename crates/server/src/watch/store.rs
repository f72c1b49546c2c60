//! Notices when the store begins to fail, and when it answers again. No clock and no I/O.

use std::collections::BTreeMap;

use tollgate::{BreakerState, Health, StoreError};

use crate::ruleset::{DecisionCounts, RuleSet};
use crate::store::StoreMonitor;

/// The number of looks in a row that must find a server healthy before it counts as recovered. A look that finds it failing
/// starts the count again.
const HEALTHY_LOOKS: u32 = 3;

/// The fewest looks between the last logged change and a line about failures that opened no breaker.
const QUIET_LOOKS: u32 = 60;

/// The state of the store's servers at one look.
#[derive(Debug)]
pub(super) struct StoreSample<'a> {
    servers: Vec<(&'a str, BreakerState)>,
    /// Whether all of them answered the last probe.
    is_answering: bool,
    /// The number of requests that they failed to decide since the start.
    failed: u64,
    decisions: DecisionCounts,
    last_failure: Option<&'a StoreError>,
}

impl<'a> StoreSample<'a> {
    pub(super) fn new(
        health: &'a Health,
        store: &StoreMonitor,
        rules: &RuleSet,
    ) -> StoreSample<'a> {
        let servers = health.servers.iter().map(|server| (server.server.as_str(), server.breaker));
        StoreSample {
            servers: servers.collect(),
            is_answering: store.was_answering(),
            failed: store.failed_by_kind(health).iter().map(|(_, count)| count).sum(),
            decisions: rules.decisions(),
            last_failure: health.last_failure.as_ref(),
        }
    }

    /// Returns whether a server with this breaker is healthy: its breaker is closed, and a store with a single server has
    /// also answered the last probe. A breaker opens only after several failures, and the probe shows a failure earlier.
    /// With several servers, a failed probe does not show which of them failed.
    fn is_healthy(&self, breaker: BreakerState) -> bool {
        breaker == BreakerState::Closed && (self.is_answering || self.servers.len() > 1)
    }
}

/// Watches the servers of a store. Called once a second.
#[derive(Debug)]
pub(super) struct StoreWatch {
    /// The failing servers by their addresses.
    failing: BTreeMap<String, FailingServer>,
    /// All failures up to this value of [`StoreSample::failed`] have been reported.
    reported: u64,
    /// [`StoreSample::failed`] at the last look.
    seen: u64,
    /// [`StoreSample::decisions`] before the failures that are not reported yet.
    decisions_before: DecisionCounts,
    quiet_looks: u32,
}

#[derive(Debug)]
struct FailingServer {
    /// [`StoreSample::failed`] before the server began to fail.
    failed_before: u64,
    /// The number of looks in a row that found it healthy.
    healthy_looks: u32,
}

/// A change that is logged. `failed` is a number of requests that the store failed to decide, on any server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StoreChange {
    /// A server has begun to fail.
    Fails { server: String, failure: String },
    /// The server answers again; `failed` requests failed meanwhile.
    Answers { server: String, failed: u64 },
    /// A failing server is no longer part of the store: a cluster has lost it, or another server took over.
    Left { server: String, failed: u64 },
    /// Some requests failed, too few to open a breaker.
    SomeFailed { failed: u64, failure: String },
    /// The servers answer with errors: more than half of the last `of` decisions were made without the store.
    MostFailed { failed: u64, of: u64, failure: String },
}

impl Default for StoreWatch {
    fn default() -> StoreWatch {
        let (failing, reported, seen, decisions_before) = Default::default();
        StoreWatch { failing, reported, seen, decisions_before, quiet_looks: QUIET_LOOKS }
    }
}

impl StoreWatch {
    /// Returns what has changed since the last look.
    pub(super) fn look(&mut self, sample: &StoreSample<'_>) -> Vec<StoreChange> {
        let mut changes = self.remove_left_servers(sample);
        for &(server, breaker) in &sample.servers {
            changes.extend(match sample.is_healthy(breaker) {
                true => self.see_healthy(server, sample),
                false => self.see_failing(server, sample),
            });
        }
        if changes.is_empty() && self.failing.is_empty() {
            changes.extend(self.single_failures(sample));
        }
        self.quiet_looks = if changes.is_empty() { self.quiet_looks.saturating_add(1) } else { 0 };
        self.seen = sample.failed;
        if !changes.is_empty() && self.failing.is_empty() {
            self.reported = sample.failed;
        }
        if self.reported == sample.failed {
            self.decisions_before = sample.decisions;
        }
        changes
    }

    fn remove_left_servers(&mut self, sample: &StoreSample<'_>) -> Vec<StoreChange> {
        let is_there = |name: &str| sample.servers.iter().any(|server| server.0 == name);
        let left = self.failing.extract_if(.., |name, _| !is_there(name));
        let changes = left.map(|(server, failing)| StoreChange::Left {
            server,
            failed: sample.failed.saturating_sub(failing.failed_before),
        });
        changes.collect()
    }

    fn see_failing(&mut self, server: &str, sample: &StoreSample<'_>) -> Option<StoreChange> {
        if let Some(failing) = self.failing.get_mut(server) {
            failing.healthy_looks = 0;
            return None;
        }
        let failing = FailingServer { failed_before: self.reported, healthy_looks: 0 };
        self.failing.insert(server.to_owned(), failing);
        Some(StoreChange::Fails { server: server.to_owned(), failure: failure(sample) })
    }

    fn see_healthy(&mut self, server: &str, sample: &StoreSample<'_>) -> Option<StoreChange> {
        let failing = self.failing.get_mut(server)?;
        failing.healthy_looks += 1;
        if failing.healthy_looks < HEALTHY_LOOKS {
            return None;
        }
        let failed = sample.failed.saturating_sub(failing.failed_before);
        self.failing.remove(server);
        Some(StoreChange::Answers { server: server.to_owned(), failed })
    }

    /// Reports failures that opened no breaker, once a minute. Waits one look after the first failure, because a
    /// breaker may open after more of them.
    fn single_failures(&self, sample: &StoreSample<'_>) -> Option<StoreChange> {
        if self.seen <= self.reported || self.quiet_looks < QUIET_LOOKS {
            return None;
        }
        let failure = failure(sample);
        let DecisionCounts { all: of, without_store } =
            sample.decisions.since(self.decisions_before);
        if without_store > of / 2 {
            return Some(StoreChange::MostFailed { failed: without_store, of, failure });
        }
        Some(StoreChange::SomeFailed {
            failed: sample.failed.saturating_sub(self.reported),
            failure,
        })
    }
}

fn failure(sample: &StoreSample<'_>) -> String {
    match sample.last_failure {
        Some(failure) => failure.to_string(),
        None => "unknown".to_owned(),
    }
}

impl StoreChange {
    pub(super) fn log(&self) {
        match self {
            StoreChange::Fails { server, failure } => {
                tracing::warn!(server, failure, "the store fails");
            }
            StoreChange::Answers { server, failed } => {
                tracing::info!(server, failed, "the store answers again");
            }
            StoreChange::Left { server, failed } => {
                tracing::info!(server, failed, "a failing server is no longer part of the store");
            }
            StoreChange::SomeFailed { failed, failure } => {
                tracing::warn!(failed, failure, "the store fails some requests");
            }
            StoreChange::MostFailed { failed, of, failure } => {
                tracing::warn!(failed, of, failure, "the store answers, but fails most decisions");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use BreakerState::{Closed, HalfOpen, Open};

    /// Looks at servers once. `failed` of `all` decisions failed since the start.
    fn look(
        watch: &mut StoreWatch,
        servers: &[(&str, BreakerState)],
        is_answering: bool,
        (failed, all): (u64, u64),
    ) -> Vec<String> {
        let failure = StoreError::Refused { problem: "busy".to_owned() };
        let changes = watch.look(&StoreSample {
            servers: servers.to_vec(),
            is_answering,
            failed,
            decisions: DecisionCounts { all, without_store: failed },
            last_failure: Some(&failure),
        });
        let lines = changes.into_iter().map(|change| match change {
            StoreChange::Fails { server, failure } => format!("{server} fails: {failure}"),
            StoreChange::Answers { server, failed } => format!("{server} answers, {failed}"),
            StoreChange::Left { server, failed } => format!("{server} left, {failed}"),
            StoreChange::SomeFailed { failed, .. } => format!("some failed, {failed}"),
            StoreChange::MostFailed { failed, of, .. } => format!("{failed} of {of}"),
        });
        lines.collect()
    }

    /// Looks once for each row: the breakers of servers `a` and `b`, and the number of requests that failed since the
    /// start. Only one decision in 1,000 failed.
    fn looks(watch: &mut StoreWatch, rows: &[(BreakerState, BreakerState, u64)]) -> Vec<String> {
        let each = rows.iter().flat_map(|&(a, b, failed)| {
            look(watch, &[("a", a), ("b", b)], true, (failed, 1_000 * failed))
        });
        each.collect()
    }

    #[test]
    fn an_outage_is_two_lines_even_if_the_breaker_closes_in_between() {
        let mut watch = StoreWatch::default();
        let outage = [
            (Closed, Closed, 0),
            (Closed, Closed, 3), // the first failures, before the breaker opens
            (Open, Closed, 9),
            (HalfOpen, Closed, 12),
            (Closed, Closed, 13), // healthy for one look,
            (Open, Closed, 14),   // then failing again
            (Closed, Closed, 15),
            (Closed, Closed, 15),
            (Closed, Closed, 15),
            (Closed, Closed, 16), // a failure that is counted late
            (Closed, Closed, 16),
        ];
        let lines = looks(&mut watch, &outage);
        assert_eq!(lines, ["a fails: the server refused: busy", "a answers, 15"]);
        assert_eq!(looks(&mut watch, &[(Open, Closed, 20); 3]).len(), 1, "the next outage");
    }

    #[test]
    fn each_server_has_its_own_outage() {
        let mut watch = StoreWatch::default();
        let rows = [(Open, Closed, 1), (Open, Open, 2), (Closed, Open, 5)];
        let lines = looks(&mut watch, &[rows[0], rows[1], rows[2], rows[2], rows[2]]);
        let fails = |server| format!("{server} fails: the server refused: busy");
        assert_eq!(lines, [fails("a"), fails("b"), "a answers, 5".to_owned()]);
        assert_eq!(looks(&mut watch, &[(Closed, Closed, 6); 3]), ["b answers, 6"]);
    }

    #[test]
    fn single_failures_are_logged_once_a_minute() {
        let mut watch = StoreWatch::default();
        assert_eq!(looks(&mut watch, &[(Closed, Closed, 2)]), [""; 0], "the breaker may open yet");
        assert_eq!(looks(&mut watch, &[(Closed, Closed, 3)]), ["some failed, 3"]);
        let busy: Vec<_> = (4..=64).map(|failed| (Closed, Closed, failed)).collect();
        assert_eq!(looks(&mut watch, &busy), ["some failed, 61"]);
    }

    #[test]
    fn a_server_that_left_the_cluster_is_logged_once() {
        let mut watch = StoreWatch::default();
        looks(&mut watch, &[(Closed, Closed, 1), (Open, Closed, 3)]);
        assert_eq!(look(&mut watch, &[("b", Closed)], true, (5, 10)), ["a left, 5"]);
        assert_eq!(looks(&mut watch, &[(Closed, Closed, 5); 4]), [""; 0]);
    }

    #[test]
    fn a_single_server_without_an_answer_fails_before_its_breaker_opens() {
        let mut watch = StoreWatch::default();
        let only = [("a", Closed)];
        assert_eq!(look(&mut watch, &only, true, (0, 9)), [""; 0]);
        let lines = look(&mut watch, &only, false, (0, 9));
        assert_eq!(lines, ["a fails: the server refused: busy"]);
        for _ in 1..HEALTHY_LOOKS {
            assert_eq!(look(&mut watch, &only, true, (0, 9)), [""; 0]);
        }
        assert_eq!(look(&mut watch, &only, true, (0, 9)), ["a answers, 0"]);
        // With two servers, a failed probe does not say which of them failed.
        let two = [("a", Closed), ("b", Closed)];
        assert_eq!(look(&mut watch, &two, false, (0, 9)), [""; 0]);
    }

    #[test]
    fn a_store_that_answers_with_errors_is_logged_once_a_minute() {
        let (mut watch, only) = (StoreWatch::default(), [("a", Closed)]);
        // Many good decisions before the failures do not hide them.
        for all in [100_000, 200_000] {
            assert_eq!(look(&mut watch, &only, true, (0, all)), [""; 0]);
        }
        assert_eq!(look(&mut watch, &only, true, (3, 200_004)), [""; 0], "a breaker may open yet");
        assert_eq!(look(&mut watch, &only, true, (6, 200_008)), ["6 of 8"]);
        for second in 1..=60 {
            assert_eq!(look(&mut watch, &only, true, (6 + second, 200_008 + second)), [""; 0]);
        }
        assert_eq!(look(&mut watch, &only, true, (67, 200_069)), ["61 of 61"]);
        // Exactly half of the decisions is not most of them.
        for second in 1..=60 {
            look(&mut watch, &only, true, (67 + second, 200_069 + 2 * second));
        }
        assert_eq!(look(&mut watch, &only, true, (128, 200_191)), ["some failed, 61"]);
    }
}
