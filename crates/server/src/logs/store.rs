//! When the store begins to fail, and when it answers again. No clock and no I/O.

use std::collections::BTreeMap;

use tollgate::{BreakerState, Health, StoreError};

/// So many looks in a row must find a server well: one that comes and goes is failing.
const WELL_LOOKS: u32 = 3;

/// Failures that make no server fail are told no sooner than so many looks after the last news.
const QUIET_LOOKS: u32 = 60;

/// How the servers are, at one look.
#[derive(Debug)]
pub(super) struct Look<'a> {
    servers: Vec<(&'a str, BreakerState)>,
    failed: u64,
    last_failure: Option<&'a StoreError>,
}

impl<'a> From<&'a Health> for Look<'a> {
    fn from(health: &'a Health) -> Look<'a> {
        let servers = health.servers.iter().map(|server| (server.server.as_str(), server.breaker));
        let last_failure = health.last_failure.as_ref();
        Look { servers: servers.collect(), failed: health.failed, last_failure }
    }
}

/// What was seen of the servers so far. It is looked once a second.
#[derive(Debug)]
pub(super) struct StoreWatch {
    /// Those that fail, by their addresses.
    failing: BTreeMap<String, Failing>,
    /// `Health::failed` when there was last nothing to be told of.
    told: u64,
    /// And at the last look.
    seen: u64,
    quiet_looks: u32,
}

#[derive(Debug)]
struct Failing {
    /// `Health::failed` before it began.
    failed_before: u64,
    well_looks: u32,
}

/// What is to be told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// A server has begun to fail.
    Fails { server: String, failure: String },
    /// It answers again. So many requests failed meanwhile, on any server.
    Answers { server: String, without: u64 },
    /// Requests failed, but not so many that a server is left alone.
    NowAndThen { without: u64, failure: String },
}

impl Default for StoreWatch {
    fn default() -> StoreWatch {
        StoreWatch { failing: BTreeMap::new(), told: 0, seen: 0, quiet_looks: QUIET_LOOKS }
    }
}

impl StoreWatch {
    /// What has changed since the last look.
    pub(super) fn look(&mut self, look: &Look<'_>) -> Vec<News> {
        let mut news = Vec::new();
        // A cluster may lose one.
        self.failing.retain(|name, _| look.servers.iter().any(|server| server.0 == name));
        for &(server, breaker) in &look.servers {
            news.extend(match breaker {
                BreakerState::Closed => self.is_well(server, look),
                BreakerState::Open | BreakerState::HalfOpen => self.is_failing(server, look),
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
        news
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
        let without = look.failed.saturating_sub(failing.failed_before);
        self.failing.remove(server);
        Some(News::Answers { server: server.to_owned(), without })
    }

    /// Of failures before the last look: those since may be the first of many.
    fn now_and_then(&self, look: &Look<'_>) -> Option<News> {
        let without = self.seen.saturating_sub(self.told);
        if without == 0 || self.quiet_looks < QUIET_LOOKS {
            return None;
        }
        let without = look.failed.saturating_sub(self.told);
        Some(News::NowAndThen { without, failure: failure(look) })
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
            News::Answers { server, without } => {
                tracing::info!(server, decided_without = without, "the store answers again");
            }
            News::NowAndThen { without, failure } => {
                tracing::warn!(decided_without = without, failure, "the store fails now and then");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use BreakerState::{Closed, HalfOpen, Open};

    /// Looks once for each row: the breakers of servers `a` and `b`, and how many requests failed so far.
    fn looks(watch: &mut StoreWatch, rows: &[(BreakerState, BreakerState, u64)]) -> Vec<String> {
        let failure = StoreError::Refused { problem: "busy".to_owned() };
        let mut told = Vec::new();
        for &(a, b, failed) in rows {
            let servers = vec![("a", a), ("b", b)];
            for news in watch.look(&Look { servers, failed, last_failure: Some(&failure) }) {
                told.push(match news {
                    News::Fails { server, failure } => format!("{server} fails: {failure}"),
                    News::Answers { server, without } => format!("{server} answers, {without}"),
                    News::NowAndThen { without, .. } => format!("now and then, {without}"),
                });
            }
        }
        told
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
    fn a_server_that_left_the_cluster_is_forgotten() {
        let mut watch = StoreWatch::default();
        looks(&mut watch, &[(Open, Closed, 1)]);
        let servers = vec![("b", Closed)];
        assert_eq!(watch.look(&Look { servers, failed: 1, last_failure: None }), []);
        assert_eq!(looks(&mut watch, &[(Closed, Closed, 1); 4]), [""; 0]);
    }
}
