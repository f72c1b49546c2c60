//! The competitors: our five algorithms, one of them in two modes, and published rate limiters. Each is used as its
//! documentation says.

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

use crate::measured_limiter::{MeasuredLimiter, limiter_by, our_limiter_by};
use crate::traffic::KEYS;

/// The row with which all others are compared.
pub(crate) const BASELINE: &str = "governor";

/// A rate limiter to be measured.
pub(crate) struct Competitor {
    pub(crate) name: &'static str,
    kind: CompetitorKind,
}

#[derive(Clone, Copy)]
enum CompetitorKind {
    /// Our limiter, with memory reserved for `keys` keys.
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

/// The competitors, ours first.
///
/// A generous limit allows a billion requests at once and a thousand more each second. The log, whose entries are
/// bounded, allows its maximum of 65,536 each millisecond.
pub(crate) const COMPETITORS: &[Competitor] = &[
    Competitor {
        name: "fixed-window",
        kind: CompetitorKind::Ours {
            generous: "fixed-window limit=1000000000 window=1m",
            stingy: "fixed-window limit=1 window=1d",
            keys: KEYS,
        },
    },
    Competitor {
        name: "sliding-window-log",
        kind: CompetitorKind::Ours {
            generous: "sliding-window-log limit=65536 window=1ms",
            stingy: "sliding-window-log limit=1 window=1d",
            keys: KEYS,
        },
    },
    Competitor {
        name: "sliding-window-counter",
        kind: CompetitorKind::Ours {
            generous: "sliding-window-counter limit=1000000000 window=1m",
            stingy: "sliding-window-counter limit=1 window=1d",
            keys: KEYS,
        },
    },
    Competitor {
        name: "token-bucket",
        kind: CompetitorKind::Ours {
            generous: "token-bucket capacity=1000000000 refill=1000/s",
            stingy: "token-bucket capacity=1 refill=1/d",
            keys: KEYS,
        },
    },
    Competitor {
        name: "leaky-bucket, policing",
        kind: CompetitorKind::Ours {
            generous: "leaky-bucket capacity=1000000000 leak=1000/s mode=policing",
            stingy: "leaky-bucket capacity=1 leak=1/d mode=policing",
            keys: KEYS,
        },
    },
    Competitor {
        name: "leaky-bucket, shaping",
        kind: CompetitorKind::Ours {
            generous: "leaky-bucket capacity=1000000000 leak=1000/s mode=shaping",
            stingy: "leaky-bucket capacity=1 leak=1/d mode=shaping",
            keys: KEYS,
        },
    },
    Competitor {
        name: "token-bucket, unreserved",
        kind: CompetitorKind::Ours {
            generous: "token-bucket capacity=1000000000 refill=1000/s",
            stingy: "token-bucket capacity=1 refill=1/d",
            keys: 0,
        },
    },
    Competitor { name: BASELINE, kind: CompetitorKind::Governor(GovernorStore::DashMap) },
    Competitor {
        name: "governor, ahash",
        kind: CompetitorKind::Governor(GovernorStore::DashMapAhash),
    },
    Competitor {
        name: "governor, HashMap",
        kind: CompetitorKind::Governor(GovernorStore::HashMap),
    },
    Competitor { name: "throttlecrab", kind: CompetitorKind::Throttlecrab },
];

impl Competitor {
    /// Returns the competitor with this name.
    pub(crate) fn named(name: &str) -> Result<&'static Competitor> {
        let found = COMPETITORS.iter().find(|competitor| competitor.name == name);
        found.with_context(|| {
            let names: Vec<&str> = COMPETITORS.iter().map(|competitor| competitor.name).collect();
            format!("unknown competitor `{name}`; use one of {}", names.join("; "))
        })
    }

    pub(crate) fn is_ours(&self) -> bool {
        matches!(self.kind, CompetitorKind::Ours { .. })
    }

    /// Returns a new limiter without any key.
    pub(crate) fn build(&self, limits: Limits) -> Result<Box<dyn MeasuredLimiter>> {
        match (self.kind, limits) {
            (CompetitorKind::Ours { generous, keys, .. }, Limits::Generous) => ours(generous, keys),
            (CompetitorKind::Ours { stingy, .. }, Limits::Stingy) => ours(stingy, 0),
            (CompetitorKind::Governor(store), _) => governor(store, limits),
            (CompetitorKind::Throttlecrab, _) => Ok(throttlecrab(limits)),
        }
    }
}

/// Returns our limiter with its default memory bound, and with memory reserved for `keys` keys.
pub(crate) fn ours(limit: &str, keys: usize) -> Result<Box<dyn MeasuredLimiter>> {
    let limit: Limit = limit.parse().with_context(|| limit.to_owned())?;
    let limiter = Limiter::builder().room_for(keys).build();
    let scope = limiter.scope("checks", limit)?;
    Ok(our_limiter_by(limiter, move |key| {
        scope.check(key).now().is_ok_and(|decision| decision.is_allowed())
    }))
}

/// Returns a limiter that stores nothing and reads the clock for half a microsecond, which is the time that ours takes
/// to add a key.
pub(crate) fn storing_nothing() -> Box<dyn MeasuredLimiter> {
    limiter_by(|_| {
        let began = Instant::now();
        while began.elapsed() < Duration::from_nanos(500) {}
        true
    })
}

/// The type that governor's own constructors return. This file calls `RateLimiter::new` instead, because those
/// constructors do not take a number of keys.
type PlainGovernor<S> =
    RateLimiter<String, S, DefaultClock, NoOpMiddleware<<DefaultClock as Clock>::Instant>>;

fn governor(store: GovernorStore, limits: Limits) -> Result<Box<dyn MeasuredLimiter>> {
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
            let limiter: PlainGovernor<_> = RateLimiter::new(quota, state, DefaultClock::default());
            limiter_by(move |key| limiter.check_key(key).is_ok())
        }
        GovernorStore::DashMapAhash => {
            let hasher = ahash::RandomState::new();
            let state = DashMapStateStore::with_capacity_and_hasher(KEYS, hasher);
            let limiter: PlainGovernor<_> = RateLimiter::new(quota, state, DefaultClock::default());
            limiter_by(move |key| limiter.check_key(key).is_ok())
        }
        GovernorStore::HashMap => {
            let state = HashMapStateStore::new(HashMap::with_capacity(KEYS));
            let limiter: PlainGovernor<_> = RateLimiter::new(quota, state, DefaultClock::default());
            limiter_by(move |key| limiter.check_key(key).is_ok())
        }
    })
}

/// Returns throttlecrab behind a mutex, as its documentation requires, with the store that sweeps least often.
fn throttlecrab(limits: Limits) -> Box<dyn MeasuredLimiter> {
    let (burst, count, period_s) = match limits {
        Limits::Generous => (1_000_000_000, 1_000, 1),
        // A burst of two: with a burst of one, throttlecrab 0.4.40 forgets every key at once and allows every request.
        Limits::Stingy => (2, 1, 86_400),
    };
    let limiter = Mutex::new(throttlecrab::RateLimiter::new(PeriodicStore::with_capacity(KEYS)));
    limiter_by(move |key| {
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
    fn generous_limits_allow_all_and_stingy_limits_at_most_two() {
        let sequence = Sequence { keys: vec!["user:00001234".to_owned(); 10], times: 100 };
        for competitor in COMPETITORS {
            let allowed = |limits| competitor.build(limits).unwrap().pass(&sequence);
            assert_eq!(allowed(Limits::Generous), 1_000, "{}", competitor.name);
            assert!(allowed(Limits::Stingy) <= 2, "{}", competitor.name);
        }
    }
}
