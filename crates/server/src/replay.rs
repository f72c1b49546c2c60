//! `tollgate replay`: decides the requests of a trace at the trace's own times.

mod progress;
mod trace;

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::path::Path;

use anyhow::{Context, bail};
use serde::Serialize;
use tollgate::{Limit, Limiter, Scope};
use tollgate_core::Decision;

use crate::cli::ReplayArgs;
use progress::Progress;
use trace::{Request, Trace};

const INPUT_BUFFER_BYTES: usize = 256 * 1024;

/// Output waits in memory until it is this large, or until more input has to be read.
const OUTPUT_BUFFER_BYTES: usize = 64 * 1024;

pub(crate) fn run(args: &ReplayArgs) -> anyhow::Result<()> {
    if args.store != "memory" {
        bail!("--store: this version keeps replayed state in memory alone; use `memory`");
    }
    let (input, total_bytes) = open(&args.trace)?;
    let mut output = Output::new(Progress::new(total_bytes));
    let mut replay = Replay::new(args.limit)?;
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
        Err(ReplayError::Store(error)) => Err(error).context("the store"),
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

/// A limiter with the one limit, and a count of what was decided.
struct Replay {
    limiter: Limiter,
    scope: Scope,
    allowed: u64,
    denied: u64,
}

impl Replay {
    fn new(limit: Limit) -> Result<Replay, tollgate::Error> {
        let limiter = Limiter::builder().keep_every_key().build();
        let scope = limiter.scope("replay", limit)?;
        Ok(Replay { limiter, scope, allowed: 0, denied: 0 })
    }

    fn decide_all(&mut self, input: impl Read, output: &mut Output) -> Result<(), ReplayError> {
        let mut trace = Trace::new(BufReader::with_capacity(INPUT_BUFFER_BYTES, input));
        let decided = self.decide_each(&mut trace, output);
        // Also after a bad line: what was decided before it is printed.
        output.flush(trace.read_bytes())?;
        decided
    }

    fn decide_each<R: Read>(
        &mut self,
        trace: &mut Trace<BufReader<R>>,
        output: &mut Output,
    ) -> Result<(), ReplayError> {
        loop {
            if output.is_full() || trace.must_wait_for_input() {
                output.flush(trace.read_bytes())?;
            }
            let Some(request) = trace.next_request()? else { return Ok(()) };
            let decision = self.decide(&request)?;
            output.line(&Line::new(&request, &decision))?;
        }
    }

    fn decide(&mut self, request: &Request<'_>) -> Result<Decision, tollgate::Error> {
        let check = self.scope.check(&*request.key).cost(request.cost.units()).at_us(request.at_us);
        let decision = *check.now()?.decided();
        if decision.is_allowed() {
            self.allowed += 1
        } else {
            self.denied += 1
        }
        Ok(decision)
    }

    fn requests(&self) -> u64 {
        self.allowed + self.denied
    }

    fn summary(&self, elapsed: std::time::Duration) -> String {
        format!(
            "requests: {}, allowed: {}, denied: {}, keys charged: {}, in {:.2} s",
            self.requests(),
            self.allowed,
            self.denied,
            self.limiter.usage().keys,
            elapsed.as_secs_f64()
        )
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
    fn new(request: &'r Request<'_>, decision: &Decision) -> Line<'r> {
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
