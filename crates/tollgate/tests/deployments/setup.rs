//! Limiters on several servers.

use std::time::Duration;

use tollgate::{Limit, Limiter, OnFailure, Redis, Scope};

/// Every algorithm with a limit of 100. No unit comes back while a test runs.
pub(crate) const LIMITS: [&str; 6] = [
    "fixed-window limit=100 window=366d",
    "sliding-window-log limit=100 window=366d",
    "sliding-window-counter limit=100 window=366d",
    "token-bucket capacity=100 refill=100/366d",
    "leaky-bucket capacity=100 leak=100/366d mode=policing",
    "leaky-bucket capacity=100 leak=100/366d mode=shaping",
];

/// Long enough for any machine: a test that reaches it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A builder with the policy `Closed` and a deadline of 30 s.
pub(crate) fn builder(url: &str) -> Redis {
    Redis::at(url).unwrap().on_failure(OnFailure::Closed).deadline(PATIENCE)
}

pub(crate) fn at(url: &str) -> Limiter {
    builder(url).build().unwrap()
}

pub(crate) fn named(limiter: &Limiter, name: &str, text: &str) -> Scope {
    limiter.scope(name, text.parse::<Limit>().unwrap()).unwrap()
}
