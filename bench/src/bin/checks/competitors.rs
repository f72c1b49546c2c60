//! The competitors: our six deciders and the published peers, each used as its documentation says.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use governor::clock::{Clock, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::{DashMapStateStore, HashMapStateStore};
use governor::{Quota, RateLimiter};
use throttlecrab::PeriodicStore;
use tollgate::{Limit, Limiter};

use crate::subject::{Subject, our_subject, subject};
use crate::traffic::KEYS;

/// The row all others are compared with.
pub(crate) const BASELINE: &str = "governor";

pub(crate) struct Competitor {
    pub(crate) name: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// Our limiter, with room reserved for `keys` keys.
    Ours {
        generous: &'static str,
        stingy: &'static str,
        keys: usize,
    },
    Governor(GovernorStore),
    Throttlecrab,
}

#[derive(Clone, Copy)]
enum GovernorStore {
    DashMap,
    DashMapAhash,
    HashMap,
}

/// Whether a competitor's limit lets everything through, or one request a day after the first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limits {
    Generous,
    Stingy,
}

/// A billion at once and a thousand more each second; the log, whose entries are bounded, as many as
/// it may hold in a millisecond.
pub(crate) const COMPETITORS: &[Competitor] = &[
    Competitor {
        name: "fixed-window",
        kind: Kind::Ours {
            generous: "fixed-window limit=1000000000 window=1m",
            stingy: "fixed-window limit=1 window=1d",
            keys: KEYS,
        },
    },
    Competitor {
        name: "sliding-window-log",
        kind: Kind::Ours {
            generous: "sliding-window-log limit=65536 window=1ms",
            stingy: "sliding-window-log limit=1 window=1d",
            keys: KEYS,
        },
    },
    Competitor {
        name: "sliding-window-counter",
        kind: Kind::Ours {
            generous: "sliding-window-counter limit=1000000000 window=1m",
            stingy: "sliding-window-counter limit=1 window=1d",
            keys: KEYS,
        },
    },
    Competitor {
        name: "token-bucket",
        kind: Kind::Ours {
            generous: "token-bucket capacity=1000000000 refill=1000/s",
            stingy: "token-bucket capacity=1 refill=1/d",
            keys: KEYS,
        },
    },
    Competitor {
        name: "leaky-bucket, policing",
        kind: Kind::Ours {
            generous: "leaky-bucket capacity=1000000000 leak=1000/s mode=policing",
            stingy: "leaky-bucket capacity=1 leak=1/d mode=policing",
            keys: KEYS,
        },
    },
    Competitor {
        name: "leaky-bucket, shaping",
        kind: Kind::Ours {
            generous: "leaky-bucket capacity=1000000000 leak=1000/s mode=shaping",
            stingy: "leaky-bucket capacity=1 leak=1/d mode=shaping",
            keys: KEYS,
        },
    },
    Competitor {
        name: "token-bucket, untold",
        kind: Kind::Ours {
            generous: "token-bucket capacity=1000000000 refill=1000/s",
            stingy: "token-bucket capacity=1 refill=1/d",
            keys: 0,
        },
    },
    Competitor { name: BASELINE, kind: Kind::Governor(GovernorStore::DashMap) },
    Competitor { name: "governor, ahash", kind: Kind::Governor(GovernorStore::DashMapAhash) },
    Competitor { name: "governor, HashMap", kind: Kind::Governor(GovernorStore::HashMap) },
    Competitor { name: "throttlecrab", kind: Kind::Throttlecrab },
];

impl Competitor {
    pub(crate) fn named(name: &str) -> Result<&'static Competitor> {
        let found = COMPETITORS.iter().find(|competitor| competitor.name == name);
        found.with_context(|| {
            let names: Vec<&str> = COMPETITORS.iter().map(|competitor| competitor.name).collect();
            format!("unknown competitor `{name}`; use one of {}", names.join("; "))
        })
    }

    pub(crate) fn is_ours(&self) -> bool {
        matches!(self.kind, Kind::Ours { .. })
    }

    /// A new limiter that holds no key yet.
    pub(crate) fn build(&self, limits: Limits) -> Result<Box<dyn Subject>> {
        match (self.kind, limits) {
            (Kind::Ours { generous, keys, .. }, Limits::Generous) => ours(generous, keys),
            (Kind::Ours { stingy, .. }, Limits::Stingy) => ours(stingy, 0),
            (Kind::Governor(store), _) => governor(store, limits),
            (Kind::Throttlecrab, _) => Ok(throttlecrab(limits)),
        }
    }
}

/// Returns our limiter with its default memory bound, and room reserved for `keys` keys.
pub(crate) fn ours(limit: &str, keys: usize) -> Result<Box<dyn Subject>> {
    let limit: Limit = limit.parse().with_context(|| limit.to_owned())?;
    let limiter = Limiter::builder().room_for(keys).build();
    let scope = limiter.scope("checks", limit)?;
    Ok(our_subject(limiter, move |key| {
        scope.check(key).now().is_ok_and(|decision| decision.is_allowed())
    }))
}

/// Returns a subject that keeps nothing and reads the clock for half a microsecond, as long as ours takes to add a key.
pub(crate) fn nothing() -> Box<dyn Subject> {
    subject(|_| {
        let began = Instant::now();
        while began.elapsed() < Duration::from_nanos(500) {}
        true
    })
}

/// The type that governor's own constructors return; they do not take a number of keys.
type Plain<S> =
    RateLimiter<String, S, DefaultClock, NoOpMiddleware<<DefaultClock as Clock>::Instant>>;

fn governor(store: GovernorStore, limits: Limits) -> Result<Box<dyn Subject>> {
    let quota = match limits {
        Limits::Generous => {
            let per_second = NonZeroU32::new(1_000).context("a rate of 0")?;
            let burst = NonZeroU32::new(1_000_000_000).context("a burst of 0")?;
            Quota::per_second(per_second).allow_burst(burst)
        }
        Limits::Stingy => Quota::with_period(Duration::from_hours(24)).context("a period of 0")?,
    };
    Ok(match store {
        GovernorStore::DashMap => {
            let state = DashMapStateStore::with_capacity(KEYS);
            let limiter: Plain<_> = RateLimiter::new(quota, state, DefaultClock::default());
            subject(move |key| limiter.check_key(key).is_ok())
        }
        GovernorStore::DashMapAhash => {
            let hasher = ahash::RandomState::new();
            let state = DashMapStateStore::with_capacity_and_hasher(KEYS, hasher);
            let limiter: Plain<_> = RateLimiter::new(quota, state, DefaultClock::default());
            subject(move |key| limiter.check_key(key).is_ok())
        }
        GovernorStore::HashMap => {
            let state = HashMapStateStore::new(HashMap::with_capacity(KEYS));
            let limiter: Plain<_> = RateLimiter::new(quota, state, DefaultClock::default());
            subject(move |key| limiter.check_key(key).is_ok())
        }
    })
}

/// Puts throttlecrab behind a mutex, as its documentation requires, with the store that sweeps least often.
fn throttlecrab(limits: Limits) -> Box<dyn Subject> {
    let (burst, count, period_s) = match limits {
        Limits::Generous => (1_000_000_000, 1_000, 1),
        // Two: with a burst of one, throttlecrab 0.4.40 forgets every key at once and allows all.
        Limits::Stingy => (2, 1, 86_400),
    };
    let limiter = Mutex::new(throttlecrab::RateLimiter::new(PeriodicStore::with_capacity(KEYS)));
    subject(move |key| {
        let now = SystemTime::now();
        let mut limiter = limiter.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = limiter.rate_limit(key, burst, count, period_s, 1, now);
        answer.is_ok_and(|(allowed, _)| allowed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::Sequence;

    #[test]
    fn generous_limits_allow_all_and_stingy_ones_next_to_none() {
        let sequence = Sequence { keys: vec!["user:00001234".to_owned(); 10], times: 100 };
        for competitor in COMPETITORS {
            let allowed = |limits| competitor.build(limits).unwrap().pass(&sequence);
            assert_eq!(allowed(Limits::Generous), 1_000, "{}", competitor.name);
            assert!(allowed(Limits::Stingy) <= 2, "{}", competitor.name);
        }
    }
}
