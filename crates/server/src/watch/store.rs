//! When the store begins to fail, and when it answers again. No clock and no I/O.

use std::collections::BTreeMap;

use tollgate::{BreakerState, Health, StoreError};

use crate::ruleset::{Decisions, RuleSet};
use crate::store::StoreMonitor;

/// So many looks in a row must find a server well: one that comes and goes is failing.
const WELL_LOOKS: u32 = 3;

/// Failures that make no server fail are told no sooner than so many looks after the last news.
const QUIET_LOOKS: u32 = 60;

/// How the servers are, at one look.
#[derive(Debug)]
pub(super) struct Look<'a> {
    servers: Vec<(&'a str, BreakerState)>,
    /// Whether all of them answered when they were last asked whether they do.
    is_answered: bool,
    /// How many requests they failed to decide so far.
    failed: u64,
    decisions: Decisions,
    last_failure: Option<&'a StoreError>,
}

impl<'a> Look<'a> {
    pub(super) fn new(health: &'a Health, store: &StoreMonitor, rules: &RuleSet) -> Look<'a> {
        let servers = health.servers.iter().map(|server| (server.server.as_str(), server.breaker));
        Look {
            servers: servers.collect(),
            is_answered: store.was_answering(),
            failed: store.failed_by_kind(health).iter().map(|(_, count)| count).sum(),
            decisions: rules.decisions(),
            last_failure: health.last_failure.as_ref(),
        }
    }

    /// Its breaker opens after some failures. If there is no other, it is known after the first.
    fn is_well(&self, breaker: BreakerState) -> bool {
        breaker == BreakerState::Closed && (self.is_answered || self.servers.len() > 1)
    }
}

/// What was seen of the servers so far. It is looked once a second.
#[derive(Debug)]
pub(super) struct StoreWatch {
    /// Those that fail, by their addresses.
    failing: BTreeMap<String, Failing>,
    /// [`Look::failed`] when there was last nothing to be told of.
    told: u64,
    /// And at the last look.
    seen: u64,
    /// [`Look::decisions`] before the failures that are not told yet.
    decided_before: Decisions,
    quiet_looks: u32,
}

#[derive(Debug)]
struct Failing {
    /// [`Look::failed`] before it began.
    failed_before: u64,
    well_looks: u32,
}

/// What is to be told. Requests failed if the store failed to decide them, on any server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// A server has begun to fail.
    Fails { server: String, failure: String },
    /// It answers again. So many requests failed meanwhile.
    Answers { server: String, failed: u64 },
    /// It failed to the end: a cluster has lost it, or another took over.
    Left { server: String, failed: u64 },
    /// Requests failed, but not so many that a server is left alone.
    NowAndThen { failed: u64, failure: String },
    /// Servers answer, but that they do not decide: of so many decisions most were made without them.
    Mostly { failed: u64, of: u64, failure: String },
}

impl Default for StoreWatch {
    fn default() -> StoreWatch {
        let (failing, told, seen, decided_before) = Default::default();
        StoreWatch { failing, told, seen, decided_before, quiet_looks: QUIET_LOOKS }
    }
}

impl StoreWatch {
    /// What has changed since the last look.
    pub(super) fn look(&mut self, look: &Look<'_>) -> Vec<News> {
        let mut news = self.left(look);
        for &(server, breaker) in &look.servers {
            news.extend(match look.is_well(breaker) {
                true => self.is_well(server, look),
                false => self.is_failing(server, look),
            });
        }
        if news.is_empty() && self.failing.is_empty() {
            news.extend(self.now_and_then(look));
        }
        self.quiet_looks = if news.is_empty() { self.quiet_looks.saturating_add(1) } else { 0 };
        self.seen = look.failed;
        if !news.is_empty() && self.failing.is_empty() {
            self.told = look.failed;
        }
        if self.told == look.failed {
            self.decided_before = look.decisions;
        }
        news
    }

    fn left(&mut self, look: &Look<'_>) -> Vec<News> {
        let is_there = |name: &str| look.servers.iter().any(|server| server.0 == name);
        let left = self.failing.extract_if(.., |name, _| !is_there(name));
        let news = left.map(|(server, failing)| News::Left {
            server,
            failed: look.failed.saturating_sub(failing.failed_before),
        });
        news.collect()
    }

    fn is_failing(&mut self, server: &str, look: &Look<'_>) -> Option<News> {
        if let Some(failing) = self.failing.get_mut(server) {
            failing.well_looks = 0;
            return None;
        }
        let failing = Failing { failed_before: self.told, well_looks: 0 };
        self.failing.insert(server.to_owned(), failing);
        Some(News::Fails { server: server.to_owned(), failure: failure(look) })
    }

    fn is_well(&mut self, server: &str, look: &Look<'_>) -> Option<News> {
        let failing = self.failing.get_mut(server)?;
        failing.well_looks += 1;
        if failing.well_looks < WELL_LOOKS {
            return None;
        }
        let failed = look.failed.saturating_sub(failing.failed_before);
        self.failing.remove(server);
        Some(News::Answers { server: server.to_owned(), failed })
    }

    /// Of failures before the last look: those since may be the first of many.
    fn now_and_then(&self, look: &Look<'_>) -> Option<News> {
        if self.seen <= self.told || self.quiet_looks < QUIET_LOOKS {
            return None;
        }
        let failure = failure(look);
        let Decisions { all: of, without_store } = look.decisions.since(self.decided_before);
        if without_store > of / 2 {
            return Some(News::Mostly { failed: without_store, of, failure });
        }
        Some(News::NowAndThen { failed: look.failed.saturating_sub(self.told), failure })
    }
}

fn failure(look: &Look<'_>) -> String {
    match look.last_failure {
        Some(failure) => failure.to_string(),
        None => "unknown".to_owned(),
    }
}

impl News {
    pub(super) fn say(&self) {
        match self {
            News::Fails { server, failure } => tracing::warn!(server, failure, "the store fails"),
            News::Answers { server, failed } => {
                tracing::info!(server, failed, "the store answers again");
            }
            News::Left { server, failed } => {
                tracing::info!(server, failed, "what failed is no longer part of the store");
            }
            News::NowAndThen { failed, failure } => {
                tracing::warn!(failed, failure, "the store fails now and then");
            }
            News::Mostly { failed, of, failure } => {
                tracing::warn!(failed, of, failure, "the store answers, but fails most decisions");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use BreakerState::{Closed, HalfOpen, Open};

    /// Looks at servers, of whose requests so many failed so far, and of how many decisions.
    fn look(
        watch: &mut StoreWatch,
        servers: &[(&str, BreakerState)],
        is_answered: bool,
        (failed, all): (u64, u64),
    ) -> Vec<String> {
        let failure = StoreError::Refused { problem: "busy".to_owned() };
        let news = watch.look(&Look {
            servers: servers.to_vec(),
            is_answered,
            failed,
            decisions: Decisions { all, without_store: failed },
            last_failure: Some(&failure),
        });
        let told = news.into_iter().map(|news| match news {
            News::Fails { server, failure } => format!("{server} fails: {failure}"),
            News::Answers { server, failed } => format!("{server} answers, {failed}"),
            News::Left { server, failed } => format!("{server} left, {failed}"),
            News::NowAndThen { failed, .. } => format!("now and then, {failed}"),
            News::Mostly { failed, of, .. } => format!("{failed} of {of}"),
        });
        told.collect()
    }

    /// Looks once for each row: the breakers of servers `a` and `b`, and how many requests failed so far, of
    /// very many.
    fn looks(watch: &mut StoreWatch, rows: &[(BreakerState, BreakerState, u64)]) -> Vec<String> {
        let each = rows.iter().flat_map(|&(a, b, failed)| {
            look(watch, &[("a", a), ("b", b)], true, (failed, 1_000 * failed))
        });
        each.collect()
    }

    #[test]
    fn an_outage_is_two_lines_whatever_the_breaker_does_meanwhile() {
        let mut watch = StoreWatch::default();
        let outage = [
            (Closed, Closed, 0),
            (Closed, Closed, 3), // the first failures, before the breaker opens
            (Open, Closed, 9),
            (HalfOpen, Closed, 12),
            (Closed, Closed, 13), // it comes,
            (Open, Closed, 14),   // and goes
            (Closed, Closed, 15),
            (Closed, Closed, 15),
            (Closed, Closed, 15),
            (Closed, Closed, 16), // and one that came late
            (Closed, Closed, 16),
        ];
        let told = looks(&mut watch, &outage);
        assert_eq!(told, ["a fails: the server refused: busy", "a answers, 15"]);
        assert_eq!(looks(&mut watch, &[(Open, Closed, 20); 3]).len(), 1, "the next is another");
    }

    #[test]
    fn each_server_has_its_own_outage() {
        let mut watch = StoreWatch::default();
        let rows = [(Open, Closed, 1), (Open, Open, 2), (Closed, Open, 5)];
        let told = looks(&mut watch, &[rows[0], rows[1], rows[2], rows[2], rows[2]]);
        let fails = |server| format!("{server} fails: the server refused: busy");
        assert_eq!(told, [fails("a"), fails("b"), "a answers, 5".to_owned()]);
        assert_eq!(looks(&mut watch, &[(Closed, Closed, 6); 3]), ["b answers, 6"]);
    }

    #[test]
    fn single_failures_are_told_once_a_minute() {
        let mut watch = StoreWatch::default();
        assert_eq!(looks(&mut watch, &[(Closed, Closed, 2)]), [""; 0], "the breaker may open yet");
        assert_eq!(looks(&mut watch, &[(Closed, Closed, 3)]), ["now and then, 3"]);
        let busy: Vec<_> = (4..=64).map(|failed| (Closed, Closed, failed)).collect();
        assert_eq!(looks(&mut watch, &busy), ["now and then, 61"]);
    }

    #[test]
    fn a_server_that_left_the_cluster_is_told_of_once() {
        let mut watch = StoreWatch::default();
        looks(&mut watch, &[(Closed, Closed, 1), (Open, Closed, 3)]);
        assert_eq!(look(&mut watch, &[("b", Closed)], true, (5, 10)), ["a left, 5"]);
        assert_eq!(looks(&mut watch, &[(Closed, Closed, 5); 4]), [""; 0]);
    }

    #[test]
    fn an_only_server_that_does_not_answer_fails_before_its_breaker_opens() {
        let mut watch = StoreWatch::default();
        let only = [("a", Closed)];
        assert_eq!(look(&mut watch, &only, true, (0, 9)), [""; 0]);
        let told = look(&mut watch, &only, false, (0, 9));
        assert_eq!(told, ["a fails: the server refused: busy"]);
        for _ in 1..WELL_LOOKS {
            assert_eq!(look(&mut watch, &only, true, (0, 9)), [""; 0]);
        }
        assert_eq!(look(&mut watch, &only, true, (0, 9)), ["a answers, 0"]);
        // Of two nobody knows which it is, until a breaker opens.
        let two = [("a", Closed), ("b", Closed)];
        assert_eq!(look(&mut watch, &two, false, (0, 9)), [""; 0]);
    }

    #[test]
    fn a_store_that_answers_and_decides_nothing_fails_once_a_minute() {
        let (mut watch, only) = (StoreWatch::default(), [("a", Closed)]);
        // A good hour before it does not hide that.
        for all in [100_000, 200_000] {
            assert_eq!(look(&mut watch, &only, true, (0, all)), [""; 0]);
        }
        assert_eq!(look(&mut watch, &only, true, (3, 200_004)), [""; 0], "a breaker may open yet");
        assert_eq!(look(&mut watch, &only, true, (6, 200_008)), ["6 of 8"]);
        for second in 1..=60 {
            assert_eq!(look(&mut watch, &only, true, (6 + second, 200_008 + second)), [""; 0]);
        }
        assert_eq!(look(&mut watch, &only, true, (67, 200_069)), ["61 of 61"]);
        // Half of them is not most.
        for second in 1..=60 {
            look(&mut watch, &only, true, (67 + second, 200_069 + 2 * second));
        }
        assert_eq!(look(&mut watch, &only, true, (128, 200_191)), ["now and then, 61"]);
    }
}
