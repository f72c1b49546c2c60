//! `tollgate replay`: decides the requests of a trace at the trace's own times.

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
use progress::Progress;
use redis::Redis;
use trace::{Ahead, Request, Trace};

const INPUT_BUFFER_BYTES: usize = 256 * 1024;

/// Output waits in memory until it is this large, or until more input has to be read.
const OUTPUT_BUFFER_BYTES: usize = 64 * 1024;

/// The most requests that share round trips to a server.
const MAX_AHEAD: usize = 512;

pub(crate) fn run(args: &ReplayArgs) -> anyhow::Result<()> {
    let (input, total_bytes) = open(&args.trace)?;
    let mut replay =
        Replay::new(&args.store, args.limit).map_err(|error| failed(&args.store, &error))?;
    let mut output = Output::new(Progress::new(total_bytes));
    let outcome = replay.decide_all(input, &mut output);
    output.progress.finish();
    match outcome {
        Ok(()) => {
            eprintln!("{}", replay.summary(output.progress.elapsed()));
            Ok(())
        }
        // Whoever reads the decisions has seen enough.
        Err(ReplayError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(ReplayError::Output(error)) => Err(error).context("standard output"),
        Err(ReplayError::Store(error)) => {
            bail!(
                "{}\n  requests decided before it: {}",
                failed(&args.store, &error),
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

/// The trace, and its length if it has one.
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
    // A pipe's length is 0: not known.
    Ok((Box::new(file), metadata.is_file().then_some(metadata.len())))
}

/// What went wrong with the store, and what to do.
fn failed(store: &str, error: &tollgate::Error) -> anyhow::Error {
    use tollgate::Error::{Setting, Store};
    let remedy = match error {
        // It says what to do.
        Setting { problem, .. } => return anyhow!("--store: {problem}"),
        Store(StoreError::Unreachable { .. } | StoreError::Timeout { .. }) => {
            let scheme = store.split(':').next().unwrap_or_default();
            match scheme.split('+').next() {
                _ if scheme.ends_with("unix") => "see that a server listens there",
                Some("rediss" | "valkeys") => {
                    "see that a server listens there with TLS, and that its certificate is trusted"
                }
                _ => "see that a server listens there, and use rediss if it speaks TLS",
            }
        }
        Store(StoreError::Refused { .. }) => {
            "see that user and password are right, that the user may run scripts, and that the \
             server takes writes"
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

/// The one limit on a store, and a count of what was decided.
struct Replay {
    store: Store,
    tally: Tally,
}

/// Where the state lives.
enum Store {
    Memory { limiter: Limiter, scope: Scope },
    Redis(Redis),
}

/// How many requests were decided, and how.
#[derive(Default)]
struct Tally {
    allowed: u64,
    denied: u64,
}

impl Replay {
    fn new(store: &str, limit: Limit) -> Result<Replay, tollgate::Error> {
        let store = match store {
            "memory" => {
                let limiter = Limiter::builder().keep_every_key().build();
                let scope = limiter.scope("replay", limit)?;
                Store::Memory { limiter, scope }
            }
            url => Store::Redis(Redis::open(url, limit)?),
        };
        Ok(Replay { store, tally: Tally::default() })
    }

    fn decide_all(&mut self, input: impl Read, output: &mut Output) -> Result<(), ReplayError> {
        let mut trace = Trace::new(BufReader::with_capacity(INPUT_BUFFER_BYTES, input));
        let Replay { store, tally } = self;
        let decided = match store {
            Store::Memory { scope, .. } => decide_each(scope, tally, &mut trace, output),
            Store::Redis(redis) => decide_ahead(redis, tally, &mut trace, output),
        };
        // Also after a bad line: what was decided before it is printed.
        output.flush(trace.read_bytes())?;
        decided
    }

    fn requests(&self) -> u64 {
        self.tally.allowed + self.tally.denied
    }

    fn summary(&self, elapsed: std::time::Duration) -> String {
        let keys = match &self.store {
            Store::Memory { limiter, .. } => format!(", keys charged: {}", limiter.usage().keys),
            Store::Redis(_) => String::new(),
        };
        let Tally { allowed, denied } = self.tally;
        let (requests, seconds) = (self.requests(), elapsed.as_secs_f64());
        format!(
            "requests: {requests}, allowed: {allowed}, denied: {denied}{keys}, in {seconds:.2} s"
        )
    }
}

impl Tally {
    fn count(&mut self, decision: &LimitDecision) {
        if decision.is_allowed() { self.allowed += 1 } else { self.denied += 1 }
    }
}

/// Decides in memory, request by request.
fn decide_each<R: Read>(
    scope: &Scope,
    tally: &mut Tally,
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
        output.line(&Line::new(&request, &decision))?;
    }
}

/// Decides on a server what is at hand, all of it in a few round trips.
fn decide_ahead<R: Read>(
    redis: &Redis,
    tally: &mut Tally,
    trace: &mut Trace<BufReader<R>>,
    output: &mut Output,
) -> Result<(), ReplayError> {
    loop {
        let Ahead { requests, end } = trace.read_ahead(MAX_AHEAD);
        for (request, decision) in requests.iter().zip(redis.decide(&requests)?) {
            let decision = decision?;
            tally.count(&decision);
            output.line(&Line::new(request, &decision))?;
        }
        output.flush(trace.read_bytes())?;
        if let Some(end) = end {
            return Ok(end?);
        }
    }
}

/// One decision as it is printed.
#[derive(Serialize)]
struct Line<'r> {
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

impl<'r> Line<'r> {
    fn new(request: &'r Request<'_>, decision: &LimitDecision) -> Line<'r> {
        Line {
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

/// Decisions on their way to standard output.
struct Output {
    buffer: Vec<u8>,
    progress: Progress,
}

impl Output {
    fn new(progress: Progress) -> Output {
        Output { buffer: Vec::with_capacity(OUTPUT_BUFFER_BYTES), progress }
    }

    // Always: the loop over lines in memory is too fast for a call, and there are two callers.
    #[inline(always)]
    fn line(&mut self, line: &Line<'_>) -> io::Result<()> {
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
