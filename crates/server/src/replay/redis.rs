//! A replay's state on Redis or Valkey: many requests to a round trip.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use tokio::runtime::{self, Runtime};
use tollgate::{Check, Error, JointDecision, Limit, Limiter, OnFailure, Scope, StoreError};
use tollgate_core::LimitDecision;

use super::trace::Request;

/// How long a server may take to show that it is one.
const FIRST_DEADLINE: Duration = Duration::from_secs(5);

/// How long it may take from then on. Nobody is kept waiting by a replay, and much is lost when a
/// long one ends because a server was busy with something else for a while.
const DEADLINE: Duration = Duration::from_secs(60);

/// The one limit on a server, under keys that no other run has.
pub(super) struct Redis {
    runtime: Runtime,
    limiter: Limiter,
    scope: Scope,
}

impl Redis {
    /// On the server at this URL, which has answered when this returns.
    pub(super) fn open(url: &str, limit: Limit) -> Result<Redis, Error> {
        if !url.contains("://") {
            let problem = "neither `memory` nor a URL; use `memory`, or redis://host[:port] of a \
                           Redis or Valkey";
            return Err(Error::Setting { setting: "store", problem: problem.to_owned() });
        }
        let settings = tollgate::Redis::at(url)?.prefix(&own_prefix())?;
        let settings = settings.on_failure(OnFailure::Closed);
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::Setting {
            setting: "store",
            problem: format!("no runtime to reach a server with: {error}"),
        })?;
        let connected = |deadline| {
            // A limiter lives on the runtime that it is made in.
            let _inside = runtime.enter();
            let limiter = settings.clone().deadline(deadline).build()?;
            let scope = limiter.scope("replay", limit)?;
            let _ = runtime.block_on(scope.peek("").into_future())?;
            Ok::<_, Error>((limiter, scope))
        };
        // A wrong address or password is told soon, and before a long trace is waited for.
        connected(FIRST_DEADLINE)?;
        let (limiter, scope) = connected(DEADLINE)?;
        Ok(Redis { runtime, limiter, scope })
    }

    /// Decides the requests one after the other. Where one has an error, those behind it may have
    /// been decided or not.
    pub(super) fn decide(
        &self,
        requests: &[Request<'_>],
    ) -> Result<impl Iterator<Item = Result<LimitDecision, Error>>, Error> {
        let checks: Vec<[Check<'_>; 1]> = requests
            .iter()
            .map(|Request { at_us, key, cost }| {
                [self.scope.check(&**key).cost(cost.units()).at_us(*at_us)]
            })
            .collect();
        let each: Vec<&[Check<'_>]> = checks.iter().map(|check| &check[..]).collect();
        let answers = self.runtime.block_on(self.limiter.batch(&each))?;
        Ok(answers.into_iter().map(|answer| the_one(&answer?)))
    }
}

fn the_one(together: &JointDecision) -> Result<LimitDecision, Error> {
    // OK because there is one answer for each check, and there was one check.
    together.each().first().map(|decision| *decision.decided()).ok_or(StoreError::Gone.into())
}

/// What the keys of this run begin with: 64 random bits are enough for no two to meet.
fn own_prefix() -> String {
    // The standard library's source of randomness: its hashers are keyed by the system's.
    format!("tollgate:replay:{:016x}:", RandomState::new().build_hasher().finish())
}
