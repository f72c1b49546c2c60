//! The decisions of a replay, as they are printed.

use std::io::{self, Write};

use serde::Serialize;
use tollgate::EndedHold;
use tollgate_core::LimitDecision;

use super::progress::ReplayProgress;
use super::trace::{TraceColumns, TraceEntry};

/// The output is written when the buffer has this size, or when the next input has to be waited for.
const OUTPUT_BUFFER_BYTES: usize = 64 * 1024;

/// A request and its decision, as printed.
#[derive(Serialize)]
pub(super) struct ReplayLine<'r> {
    at_us: u64,
    key: &'r str,
    cost: u64,
    /// Only if the trace has this column.
    #[serde(skip_serializing_if = "Option::is_none")]
    op: Option<&'static str>,
    /// Only if the trace has this column. `null` for a check.
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<Option<&'r str>>,
    allowed: bool,
    limit: u64,
    remaining: u64,
    retry_after_us: Option<u64>,
    reset_after_us: u64,
    delay_us: u64,
    /// Only if the operation had no effect, because the hold had ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    hold_state: Option<&'static str>,
}

impl<'r> ReplayLine<'r> {
    #[inline(always)]
    pub(super) fn new(
        columns: TraceColumns,
        request: &'r TraceEntry<'_>,
        decision: &LimitDecision,
        ended: Option<EndedHold>,
    ) -> ReplayLine<'r> {
        ReplayLine {
            at_us: request.at_us,
            key: &request.key,
            cost: request.units(),
            op: columns.has_op().then(|| request.operation().name()),
            hold: columns.has_hold().then(|| request.hold()),
            allowed: decision.is_allowed(),
            limit: decision.limit,
            remaining: decision.remaining,
            retry_after_us: decision.retry_after_us(),
            reset_after_us: decision.reset_after_us,
            delay_us: decision.delay_us(),
            hold_state: ended.map(|ended| match ended {
                EndedHold::Expired => "expired",
                EndedHold::Unknown => "unknown",
            }),
        }
    }
}

/// The buffer of decisions before standard output, and the progress bar, which must not mix with them on a terminal.
pub(super) struct Output {
    buffer: Vec<u8>,
    pub(super) progress: ReplayProgress,
}

impl Output {
    pub(super) fn new(progress: ReplayProgress) -> Output {
        Output { buffer: Vec::with_capacity(OUTPUT_BUFFER_BYTES), progress }
    }

    // Always inlined: with two callers the compiler would not inline it. In a replay in memory, the call would take a
    // measurable part of the time of a line.
    #[inline(always)]
    pub(super) fn line(&mut self, line: &ReplayLine<'_>) -> io::Result<()> {
        serde_json::to_writer(&mut self.buffer, line)?;
        self.buffer.push(b'\n');
        Ok(())
    }

    pub(super) fn is_full(&self) -> bool {
        self.buffer.len() >= OUTPUT_BUFFER_BYTES
    }

    pub(super) fn flush(&mut self, read_bytes: u64) -> io::Result<()> {
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
