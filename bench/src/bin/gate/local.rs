//! The operations that run in one process. The instructions of its `measured_loop` are counted.

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tollgate::rules::{Attributes, Config, Rules};
use tollgate::{Limit, Limiter, ManualClock, Scope};
use tollgate_bench::callgrind::instructions_inside;
use tollgate_bench::service;

use crate::servers::{self, InProcessServer};

/// The number of requests that are counted in one run.
const REQUESTS: u64 = 3_000;

/// The number of requests before these that are not counted: they create the keys and fill the caches.
const WARM_UP: u64 = 100;

const RULES: &str = "
limits:
  free: token-bucket capacity=1000000 refill=1000000/s
rules:
  - { name: login-attempts, domain: api, when: { method: POST, path: /login }, key: [ip], limit: free }
  - { name: per-client, domain: api, key: [{ first_of: [api_key, ip] }], limit: free }
  - { name: whole-service, domain: api, key: [], limit: free }
";

/// An operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    FixedWindow,
    SlidingWindowLog,
    SlidingWindowCounter,
    TokenBucket,
    Policing,
    Shaping,
    Refusal,
    SeveralLimits,
    ReserveAndSettle,
    Rules,
    Middleware,
    RedisBatch,
    HttpCheck,
    HttpCheckByRules,
    ShouldRateLimit,
}

impl Operation {
    pub(crate) const ALL: [Operation; 15] = [
        Operation::FixedWindow,
        Operation::SlidingWindowLog,
        Operation::SlidingWindowCounter,
        Operation::TokenBucket,
        Operation::Policing,
        Operation::Shaping,
        Operation::Refusal,
        Operation::SeveralLimits,
        Operation::ReserveAndSettle,
        Operation::Rules,
        Operation::Middleware,
        Operation::RedisBatch,
        Operation::HttpCheck,
        Operation::HttpCheckByRules,
        Operation::ShouldRateLimit,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Operation::FixedWindow => "check in memory, fixed window",
            Operation::SlidingWindowLog => "check in memory, sliding window log",
            Operation::SlidingWindowCounter => "check in memory, sliding window counter",
            Operation::TokenBucket => "check in memory, token bucket",
            Operation::Policing => "check in memory, leaky bucket, policing",
            Operation::Shaping => "check in memory, leaky bucket, shaping",
            Operation::Refusal => "refusal in memory, token bucket",
            Operation::SeveralLimits => "check of three limits in memory",
            Operation::ReserveAndSettle => "reservation and settlement in memory, token bucket",
            Operation::Rules => "check by rules in memory, two of three apply",
            Operation::Middleware => "request through the layer, all headers",
            Operation::RedisBatch => "encoding of a Redis batch of 32 checks",
            Operation::HttpCheck => "POST /v1/check by a limit, with its client",
            Operation::HttpCheckByRules => "POST /v1/check by rules, with its client",
            Operation::ShouldRateLimit => "ShouldRateLimit over gRPC, with its client",
        }
    }

    /// Returns the instructions of one request. An operation of the server is run three times and the smallest count is
    /// returned, because the times at which the kernel has data ready differ a little.
    pub(crate) fn instructions(self) -> Result<u64> {
        let runs = match self {
            Operation::HttpCheck | Operation::HttpCheckByRules | Operation::ShouldRateLimit => 3,
            _ => 1,
        };
        let run = |_| instructions_inside("*measured_loop*", &["run", self.name()]);
        let least = (0..runs).map(run).collect::<Result<Vec<u64>>>()?.into_iter().min();
        Ok(least.context("no run")? / REQUESTS)
    }

    fn limit(self) -> &'static str {
        match self {
            Operation::FixedWindow => "fixed-window limit=1000000 window=60s",
            Operation::SlidingWindowLog => "sliding-window-log limit=2000 window=60s",
            Operation::SlidingWindowCounter => "sliding-window-counter limit=1000000 window=60s",
            Operation::Policing => "leaky-bucket capacity=1000 leak=25/s mode=policing",
            Operation::Shaping => "leaky-bucket capacity=1000 leak=25/s mode=shaping",
            Operation::Refusal => "token-bucket capacity=1 refill=1/d",
            _ => "token-bucket capacity=1000 refill=25/s",
        }
    }
}

/// Runs an operation. Callgrind counts only the instructions inside `measured_loop`.
pub(crate) fn run(name: &str) -> Result<()> {
    let operation = Operation::ALL.into_iter().find(|operation| operation.name() == name);
    let operation = operation.with_context(|| format!("unknown operation `{name}`"))?;
    // 50 ms pass between requests, so that limits of 25 a second admit them.
    let clock = ManualClock::at_us(1_800_000_000_000_000);
    let limiter = Limiter::builder().clock(&clock).build();
    let advance = || clock.advance(Duration::from_millis(50));
    let limit: Limit = operation.limit().parse()?;
    match operation {
        Operation::SeveralLimits => {
            let scope = |name: &str| limiter.scope(name, limit);
            let scopes = [scope("a")?, scope("b")?, scope("c")?];
            repeat(|| {
                advance();
                let checks = [0, 1, 2].map(|at: usize| scopes[at].check("user:42"));
                Ok(limiter.check_all_now(&checks)?.is_allowed())
            })
        }
        Operation::ReserveAndSettle => {
            let scope = limiter.scope("scope", limit)?;
            repeat(|| {
                advance();
                let reserved = black_box(&scope).reserve(black_box("user:42")).cost(10).now()?;
                let hold = reserved.into_hold().context("the reservation was refused")?;
                Ok(hold.settle_now(black_box(1))?.charged_units() == 1)
            })
        }
        Operation::Rules => {
            let rules = Rules::new(&limiter, &Config::parse("rules.yaml", RULES)?)?;
            let pairs = [("method", "GET"), ("path", "/reports"), ("ip", "203.0.113.9")];
            repeat(|| {
                advance();
                let attributes: Attributes<'_> = pairs.into_iter().collect();
                Ok(rules.check("api", &attributes).now()?.is_allowed())
            })
        }
        Operation::Middleware => {
            let mut router = service::limited(&limiter, "token-bucket capacity=1000 refill=25/s")?;
            repeat(|| {
                advance();
                service::request(&mut router).map(|response| response.status().is_success())
            })
        }
        Operation::RedisBatch => {
            let batch = tollgate_redis::bench::CheckBatch::of_checks(limit, 32);
            repeat(|| Ok(!black_box(batch.encode()).is_empty()))
        }
        Operation::HttpCheck => repeat(InProcessServer::start()?.check(servers::BY_LIMIT)?),
        Operation::HttpCheckByRules => repeat(InProcessServer::start()?.check(servers::BY_RULES)?),
        Operation::ShouldRateLimit => repeat(InProcessServer::start()?.should_rate_limit()?),
        _ => {
            let scope = limiter.scope("scope", limit)?;
            let is_refusal = operation == Operation::Refusal;
            if is_refusal {
                ensure!(scope.check("user:42").now()?.is_allowed(), "the first request is refused");
            }
            repeat(|| {
                advance();
                Ok(check(&scope)? != is_refusal)
            })
        }
    }
}

/// Returns whether a check is allowed.
fn check(scope: &Scope) -> Result<bool> {
    Ok(black_box(black_box(scope).check(black_box("user:42")).now()?).is_allowed())
}

/// Makes the requests that are not counted, and then the counted ones. Each must return true.
fn repeat(mut request: impl FnMut() -> Result<bool>) -> Result<()> {
    for _ in 0..WARM_UP {
        ensure!(request()?, "a request did not have the expected outcome");
    }
    let as_expected = measured_loop(&mut request)?;
    ensure!(
        as_expected == REQUESTS,
        "{as_expected} of {REQUESTS} requests had the expected outcome"
    );
    Ok(())
}

/// Makes the requests that are counted: callgrind counts the instructions of this function.
#[inline(never)]
fn measured_loop(request: &mut impl FnMut() -> Result<bool>) -> Result<u64> {
    let mut as_expected = 0;
    for _ in 0..REQUESTS {
        as_expected += u64::from(request()?);
    }
    Ok(as_expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_the_expected_outcome() {
        for operation in Operation::ALL {
            run(operation.name()).unwrap_or_else(|error| panic!("{operation:?}: {error:#}"));
        }
    }
}
