//! `tollgate replay`: decides the requests of a trace at the trace's own times.
//!
//! - `trace`: reads the trace; `redis`: decides on Redis; `progress`: the progress bar
//! - `holds`: the holds that a trace names; `output`: the decisions as they are printed

mod holds;
mod output;
mod progress;
mod redis;
mod trace;

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use futures_util::FutureExt;
use tollgate::{Answer, Limit, Limiter, Scope, StoreError};
use tollgate_core::LimitDecision;

use crate::cli::ReplayArgs;
use holds::{ReplayHolds, ReplayOutcome, WaitForAnswer};
use output::{Output, ReplayLine};
use progress::ReplayProgress;
use redis::ReplayRedis;
use trace::{ReadAhead, Trace, TraceAction};

const INPUT_BUFFER_BYTES: usize = 256 * 1024;

/// The most requests that are sent to a Redis server together.
const MAX_AHEAD: usize = 512;

pub(crate) fn run(args: &ReplayArgs) -> anyhow::Result<()> {
    let (input, total_bytes) = open(&args.trace)?;
    let mut replay =
        Replay::new(&args.store, args.limit).map_err(|error| store_error(&args.store, &error))?;
    let mut output = Output::new(ReplayProgress::new(total_bytes));
    let outcome = replay.decide_all(input, &mut output);
    output.progress.finish();
    match outcome {
        Ok(()) => {
            eprintln!("{}", replay.summary(output.progress.elapsed()));
            Ok(())
        }
        // The reader has closed the pipe, and needs no more output.
        Err(ReplayError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(ReplayError::Output(error)) => Err(error).context("standard output"),
        Err(ReplayError::Store(error)) => {
            bail!(
                "{}\n  requests decided before it: {}",
                store_error(&args.store, &error),
                replay.requests()
            )
        }
        Err(ReplayError::Trace(error)) => {
            let trace = if is_stdin(&args.trace) {
                "standard input".into()
            } else {
                args.trace.display().to_string()
            };
            bail!(
                "{trace}:{error}\n  requests decided before it: {}; after it: none",
                replay.requests()
            )
        }
    }
}

/// Opens the trace. Returns its length in bytes too, if it is known.
fn open(path: &Path) -> anyhow::Result<(Box<dyn Read>, Option<u64>)> {
    if is_stdin(path) {
        return Ok((Box::new(io::stdin().lock()), None));
    }
    let remedy =
        || format!("{}: cannot be read; name a CSV file, or - for standard input", path.display());
    let file = File::open(path).with_context(remedy)?;
    let metadata = file.metadata().with_context(remedy)?;
    if metadata.is_dir() {
        bail!("{}: is a directory; name a CSV file, or - for standard input", path.display());
    }
    // The metadata of a pipe say 0 bytes, although its length is not known.
    Ok((Box::new(file), metadata.is_file().then_some(metadata.len())))
}

/// Describes a failure of the store, with a remedy.
fn store_error(store: &str, error: &tollgate::Error) -> anyhow::Error {
    use tollgate::Error::{Hold, MustReserve, Setting, Store};
    let remedy = match error {
        // `problem` has its own remedy.
        Setting { problem, .. } => return anyhow!("--store: {problem}"),
        Hold(problem) => return anyhow!("--limit: {problem}"),
        MustReserve { .. } => {
            return anyhow!(
                "--limit: a concurrency limit counts what runs at the same time, so it cannot be checked; reserve and settle \
                 in the trace, with the columns `at_us,key,cost,op,hold,for_us`"
            );
        }
        Store(StoreError::Unreachable { .. } | StoreError::Timeout { .. }) => {
            let scheme = store.split(':').next().unwrap_or_default();
            match scheme.split('+').next() {
                _ if scheme.ends_with("unix") => "check that a server listens there",
                Some("rediss" | "valkeys") => {
                    "check that a server listens there with TLS, and that its certificate is trusted"
                }
                _ => "check that a server listens there, and use rediss if it speaks TLS",
            }
        }
        Store(StoreError::Refused { .. }) => {
            "check that user and password are right, that the user may run scripts, and that the \
             server accepts writes"
        }
        _ => return anyhow!("--store: {error}"),
    };
    anyhow!("--store: {error}; {remedy}")
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

#[derive(Debug, thiserror::Error)]
enum ReplayError {
    #[error(transparent)]
    Trace(#[from] trace::TraceError),
    #[error(transparent)]
    Output(#[from] io::Error),
    #[error(transparent)]
    Store(#[from] tollgate::Error),
}

/// A replay: its limit on a store, its holds, and the number of decisions so far.
struct Replay {
    limit: Limit,
    store: ReplayStore,
    holds: ReplayHolds,
    tally: ReplayTally,
}

/// The store of a replay, with its one limit.
enum ReplayStore {
    Memory { limiter: Limiter, scope: Scope },
    Redis(ReplayRedis),
}

/// The numbers of allowed and denied requests.
#[derive(Default)]
struct ReplayTally {
    allowed: u64,
    denied: u64,
}

impl Replay {
    fn new(store: &str, limit: Limit) -> Result<Replay, tollgate::Error> {
        let store = match store {
            "memory" => {
                let limiter = Limiter::builder().keep_every_key().build();
                let scope = limiter.scope("replay", limit)?;
                ReplayStore::Memory { limiter, scope }
            }
            url => ReplayStore::Redis(ReplayRedis::open(url, limit)?),
        };
        Ok(Replay { limit, store, holds: ReplayHolds::default(), tally: ReplayTally::default() })
    }

    fn decide_all(&mut self, input: impl Read, output: &mut Output) -> Result<(), ReplayError> {
        let input = BufReader::with_capacity(INPUT_BUFFER_BYTES, input);
        let mut trace = Trace::new(input, self.limit.hold_for());
        let Replay { store, holds, tally, .. } = self;
        let decided = match store {
            ReplayStore::Memory { scope, .. } => {
                decide_each(scope, holds, tally, &mut trace, output)
            }
            ReplayStore::Redis(redis) => decide_batches(redis, holds, tally, &mut trace, output),
        };
        // Also after a bad line, so that the decisions before it are printed.
        output.flush(trace.read_bytes())?;
        decided
    }

    fn requests(&self) -> u64 {
        self.tally.allowed + self.tally.denied
    }

    fn summary(&self, elapsed: std::time::Duration) -> String {
        let keys = match &self.store {
            ReplayStore::Memory { limiter, .. } => {
                format!(", keys charged: {}", limiter.usage().keys)
            }
            ReplayStore::Redis(_) => String::new(),
        };
        let ReplayTally { allowed, denied } = self.tally;
        let (requests, seconds) = (self.requests(), elapsed.as_secs_f64());
        format!(
            "requests: {requests}, allowed: {allowed}, denied: {denied}{keys}, in {seconds:.2} s"
        )
    }
}

impl ReplayTally {
    fn count(&mut self, decision: &LimitDecision) {
        if decision.is_allowed() { self.allowed += 1 } else { self.denied += 1 }
    }
}

/// In memory every answer is ready at once.
struct InMemory;

impl WaitForAnswer for InMemory {
    fn wait<T>(&self, answer: Answer<T>) -> Result<T, tollgate::Error> {
        answer.now_or_never().unwrap_or(Err(tollgate::Error::MustWait))
    }
}

/// Decides in memory, one request after the other.
fn decide_each<R: Read>(
    scope: &Scope,
    holds: &mut ReplayHolds,
    tally: &mut ReplayTally,
    trace: &mut Trace<BufReader<R>>,
    output: &mut Output,
) -> Result<(), ReplayError> {
    let columns = trace.columns()?;
    loop {
        if output.is_full() || trace.must_wait_for_input() {
            output.flush(trace.read_bytes())?;
        }
        let Some(entry) = trace.next_request()? else { return Ok(()) };
        let (decision, ended) = match &entry.request {
            TraceAction::Check(cost) => {
                let check = scope.check(&*entry.key).cost(cost.units()).at_us(entry.at_us);
                (*check.now()?.decided(), None)
            }
            TraceAction::OnHold(step) => {
                let outcome = holds.decide(scope, (entry.at_us, &entry.key), step, &InMemory)?;
                (outcome.decision, outcome.ended)
            }
        };
        tally.count(&decision);
        output.line(&ReplayLine::new(columns, &entry, &decision, ended))?;
    }
}

/// Decides on a Redis server. The checks that can be read without waiting, up to [`MAX_AHEAD`], share a few round trips.
/// An operation on a hold has a round trip of its own.
fn decide_batches<R: Read>(
    redis: &ReplayRedis,
    holds: &mut ReplayHolds,
    tally: &mut ReplayTally,
    trace: &mut Trace<BufReader<R>>,
    output: &mut Output,
) -> Result<(), ReplayError> {
    let columns = trace.columns()?;
    loop {
        let ReadAhead { requests, end } = trace.read_ahead(MAX_AHEAD);
        for alike in requests.chunk_by(|one, next| one.is_check() && next.is_check()) {
            redis.decide(alike, holds, |entry, outcome| {
                tally.count(&outcome.decision);
                let ReplayOutcome { decision, ended } = outcome;
                output.line(&ReplayLine::new(columns, entry, &decision, ended))
            })?;
        }
        output.flush(trace.read_bytes())?;
        if let Some(end) = end {
            return Ok(end?);
        }
    }
}
