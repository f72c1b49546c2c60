//! A replay on Redis or Valkey, with many requests in a round trip.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::time::Duration;

use tokio::runtime::{self, Runtime};
use tollgate::{Answer, Check, Error, JointDecision, Limit, Limiter, OnFailure, Scope, StoreError};
use tollgate_core::LimitDecision;

use super::ReplayError;
use super::holds::{ReplayHolds, ReplayOutcome, WaitForAnswer};
use super::trace::{TraceAction, TraceEntry};

/// How long the server may take to answer the first request, which shows that it is there.
const FIRST_DEADLINE: Duration = Duration::from_secs(5);

/// How long the server may take for each later request. This is long, because no client waits for a replay, and a long
/// replay should not fail because the server was busy for a while.
const DEADLINE: Duration = Duration::from_secs(60);

/// The limit of a replay on a Redis server, with keys that no other run has.
pub(super) struct ReplayRedis {
    runtime: Runtime,
    limiter: Limiter,
    scope: Scope,
}

impl ReplayRedis {
    /// Connects to the server at this URL, and waits until it has answered.
    pub(super) fn open(url: &str, limit: Limit) -> Result<ReplayRedis, Error> {
        if !url.contains("://") {
            let problem = "neither `memory` nor a URL; use `memory`, or redis://host[:port] of a \
                           Redis or Valkey";
            return Err(Error::Setting { setting: "store", problem: problem.to_owned() });
        }
        let settings = tollgate::Redis::at(url)?.prefix(&unique_prefix())?;
        let settings = settings.on_failure(OnFailure::Closed);
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::Setting {
            setting: "store",
            problem: format!("cannot start a runtime for the connection: {error}"),
        })?;
        let connected = |deadline| {
            // A limiter's tasks run on the runtime that is current when it is built.
            let _inside = runtime.enter();
            let limiter = settings.clone().deadline(deadline).build()?;
            let scope = limiter.scope("replay", limit)?;
            let _ = runtime.block_on(scope.peek("").into_future())?;
            Ok::<_, Error>((limiter, scope))
        };
        // A wrong address or password is reported soon, and before a long trace is read.
        connected(FIRST_DEADLINE)?;
        let (limiter, scope) = connected(DEADLINE)?;
        Ok(ReplayRedis { runtime, limiter, scope })
    }

    /// Decides checks in order, or one operation on a hold, and passes each outcome to `print`. If one fails, the
    /// requests after it may or may not have been decided.
    pub(super) fn decide(
        &self,
        entries: &[TraceEntry<'_>],
        holds: &mut ReplayHolds,
        mut print: impl FnMut(&TraceEntry<'_>, ReplayOutcome) -> io::Result<()>,
    ) -> Result<(), ReplayError> {
        if let [entry @ TraceEntry { at_us, key, request: TraceAction::OnHold(step) }] = entries {
            let outcome = holds.decide(&self.scope, (*at_us, key), step, self)?;
            return Ok(print(entry, outcome)?);
        }
        let checks: Vec<[Check<'_>; 1]> = entries.iter().map(|entry| [self.check(entry)]).collect();
        let each: Vec<&[Check<'_>]> = checks.iter().map(|check| &check[..]).collect();
        let answers = self.runtime.block_on(self.limiter.batch(&each))?;
        for (entry, answer) in entries.iter().zip(answers) {
            let decision = only_decision(&answer?)?;
            print(entry, ReplayOutcome { decision, ended: None })?;
        }
        Ok(())
    }

    fn check<'e>(&'e self, entry: &'e TraceEntry<'_>) -> Check<'e> {
        self.scope.check(&*entry.key).cost(entry.units()).at_us(entry.at_us)
    }
}

impl WaitForAnswer for ReplayRedis {
    fn wait<T>(&self, answer: Answer<T>) -> Result<T, Error> {
        self.runtime.block_on(answer)
    }
}

fn only_decision(joint: &JointDecision) -> Result<LimitDecision, Error> {
    // OK because there is one answer for each check, and there was one check.
    joint.each().first().map(|decision| *decision.decided()).ok_or(StoreError::Gone.into())
}

/// Returns the prefix of this run's keys. Its 64 random bits keep runs apart.
fn unique_prefix() -> String {
    // The standard library's only source of randomness: each `RandomState` has random keys from the system.
    format!("tollgate:replay:{:016x}:", RandomState::new().build_hasher().finish())
}
