//! `tollgate replay`: decides the requests of a trace at the trace's own times.
//!
//! - `trace`: reads the trace; `redis`: decides on Redis; `progress`: the progress bar

mod progress;
mod redis;
mod trace;

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use serde::Serialize;
use tollgate::{Limit, Limiter, Scope, StoreError};
use tollgate_core::LimitDecision;

use crate::cli::ReplayArgs;
use progress::ReplayProgress;
use redis::ReplayRedis;
use trace::{ReadAhead, Trace, TraceEntry};

const INPUT_BUFFER_BYTES: usize = 256 * 1024;

/// The output is written when the buffer has this size, or when the next input has to be waited for.
const OUTPUT_BUFFER_BYTES: usize = 64 * 1024;

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
        // The reader has closed the pipe: it has seen enough.
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
    use tollgate::Error::{Setting, Store};
    let remedy = match error {
        // `problem` has its own remedy.
        Setting { problem, .. } => return anyhow!("--store: {problem}"),
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
        tollgate::Error::MustReserve { .. } => {
            return anyhow!("--limit: a concurrency limit decides no checks, and each line is one");
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

/// A replay: its limit on a store, and the number of decisions so far.
struct Replay {
    store: ReplayStore,
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
        Ok(Replay { store, tally: ReplayTally::default() })
    }

    fn decide_all(&mut self, input: impl Read, output: &mut Output) -> Result<(), ReplayError> {
        let mut trace = Trace::new(BufReader::with_capacity(INPUT_BUFFER_BYTES, input));
        let Replay { store, tally } = self;
        let decided = match store {
            ReplayStore::Memory { scope, .. } => decide_each(scope, tally, &mut trace, output),
            ReplayStore::Redis(redis) => decide_batches(redis, tally, &mut trace, output),
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

/// Decides in memory, one request after the other.
fn decide_each<R: Read>(
    scope: &Scope,
    tally: &mut ReplayTally,
    trace: &mut Trace<BufReader<R>>,
    output: &mut Output,
) -> Result<(), ReplayError> {
    loop {
        if output.is_full() || trace.must_wait_for_input() {
            output.flush(trace.read_bytes())?;
        }
        let Some(request) = trace.next_request()? else { return Ok(()) };
        let check = scope.check(&*request.key).cost(request.cost.units()).at_us(request.at_us);
        let decision = *check.now()?.decided();
        tally.count(&decision);
        output.line(&ReplayLine::new(&request, &decision))?;
    }
}

/// Decides on a Redis server. The requests that can be read without waiting, up to [`MAX_AHEAD`], share a few round
/// trips.
fn decide_batches<R: Read>(
    redis: &ReplayRedis,
    tally: &mut ReplayTally,
    trace: &mut Trace<BufReader<R>>,
    output: &mut Output,
) -> Result<(), ReplayError> {
    loop {
        let ReadAhead { requests, end } = trace.read_ahead(MAX_AHEAD);
        for (request, decision) in requests.iter().zip(redis.decide(&requests)?) {
            let decision = decision?;
            tally.count(&decision);
            output.line(&ReplayLine::new(request, &decision))?;
        }
        output.flush(trace.read_bytes())?;
        if let Some(end) = end {
            return Ok(end?);
        }
    }
}

/// A request and its decision, as printed.
#[derive(Serialize)]
struct ReplayLine<'r> {
    at_us: u64,
    key: &'r str,
    cost: u64,
    allowed: bool,
    limit: u64,
    remaining: u64,
    retry_after_us: Option<u64>,
    reset_after_us: u64,
    delay_us: u64,
}

impl<'r> ReplayLine<'r> {
    fn new(request: &'r TraceEntry<'_>, decision: &LimitDecision) -> ReplayLine<'r> {
        ReplayLine {
            at_us: request.at_us,
            key: &request.key,
            cost: request.cost.units(),
            allowed: decision.is_allowed(),
            limit: decision.limit,
            remaining: decision.remaining,
            retry_after_us: decision.retry_after_us(),
            reset_after_us: decision.reset_after_us,
            delay_us: decision.delay_us(),
        }
    }
}

/// The buffer of decisions before standard output, and the progress bar, which must not mix with them on a terminal.
struct Output {
    buffer: Vec<u8>,
    progress: ReplayProgress,
}

impl Output {
    fn new(progress: ReplayProgress) -> Output {
        Output { buffer: Vec::with_capacity(OUTPUT_BUFFER_BYTES), progress }
    }

    // Always inlined: with two callers the compiler would not inline it. In a replay in memory, the call would take a
    // measurable part of the time of a line.
    #[inline(always)]
    fn line(&mut self, line: &ReplayLine<'_>) -> io::Result<()> {
        serde_json::to_writer(&mut self.buffer, line)?;
        self.buffer.push(b'\n');
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.buffer.len() >= OUTPUT_BUFFER_BYTES
    }

    fn flush(&mut self, read_bytes: u64) -> io::Result<()> {
        self.progress.at(read_bytes);
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.progress.suspend(|| {
            let mut stdout = io::stdout().lock();
            stdout.write_all(&self.buffer)?;
            stdout.flush()
        })?;
        self.buffer.clear();
        Ok(())
    }
}
