//! Reads a trace: CSV with the columns `at_us,key,cost`, or with columns for holds too, one request on each line.
//!
//! - `entry`: a request of a trace
//! - `columns`: the header, and lines with only the columns `at_us,key,cost`; `operations`: lines with operations on holds
//! - `csv`: splits a line into columns, and reads numbers; `problem`: the problems of a trace

mod columns;
mod csv;
mod entry;
mod operations;
mod problem;

use std::io::{BufRead, BufReader, Read};

use tollgate_core::HoldTime;

pub(super) use columns::TraceColumns;
pub(super) use entry::{HoldStep, TraceAction, TraceEntry, TraceOperation};
use problem::TraceProblem;

/// The longest line. It is far longer than any sensible key, and keeps a file without line ends from filling the
/// memory.
const MAX_LINE_BYTES: usize = 1024 * 1024;

/// Requests that were read together.
pub(super) struct ReadAhead {
    pub(super) requests: Vec<TraceEntry<'static>>,
    /// How the trace ends after these requests; `None` if there may be more.
    pub(super) end: Option<Result<(), TraceError>>,
}

/// A problem of a trace, with the number of its line.
#[derive(Debug, thiserror::Error)]
#[error("{line}: {problem}")]
pub(super) struct TraceError {
    line: u64,
    problem: TraceProblem,
}

/// Reads a trace line by line, in memory bounded by its longest line.
pub(super) struct Trace<R> {
    reader: R,
    line: Vec<u8>,
    line_number: u64,
    read_bytes: u64,
    hold_for: Option<HoldTime>,
    /// The columns that the header names; `None` until the header is read.
    columns: Option<TraceColumns>,
}

impl<R: Read> Trace<BufReader<R>> {
    /// Returns whether reading the next request may wait for input: its line is not complete in the buffer.
    // Always inlined: with two callers the compiler would not inline it. In a replay in memory, the call would take a
    // measurable part of the time of a line.
    #[inline(always)]
    pub(super) fn must_wait_for_input(&self) -> bool {
        // Blank lines at the start of the buffer are skipped: the line end of one does not complete the next request.
        !self.reader.buffer().trim_ascii_start().contains(&b'\n')
    }

    /// Reads the next request, waiting for input if necessary, and then the requests that are complete in the buffer.
    /// Stops after `most` requests.
    pub(super) fn read_ahead(&mut self, most: usize) -> ReadAhead {
        let mut requests = Vec::with_capacity(most);
        loop {
            match self.next_request() {
                Ok(Some(request)) => requests.push(request.into_owned()),
                Ok(None) => return ReadAhead { requests, end: Some(Ok(())) },
                Err(error) => return ReadAhead { requests, end: Some(Err(error)) },
            }
            if requests.len() >= most || self.must_wait_for_input() {
                return ReadAhead { requests, end: None };
            }
        }
    }
}

impl<R: BufRead> Trace<R> {
    /// Reads a trace. A reservation without a hold time is for `hold_for`.
    pub(super) fn new(reader: R, hold_for: Option<HoldTime>) -> Trace<R> {
        Trace { reader, line: Vec::new(), line_number: 0, read_bytes: 0, hold_for, columns: None }
    }

    /// Returns the number of bytes read so far.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// Returns the columns that the header names. Reads it, unless that was done before.
    pub(super) fn columns(&mut self) -> Result<TraceColumns, TraceError> {
        match self.columns {
            Some(columns) => Ok(columns),
            None => self.read_header(),
        }
    }

    /// Reads the next request; `None` at the end.
    pub(super) fn next_request(&mut self) -> Result<Option<TraceEntry<'_>>, TraceError> {
        let columns = self.columns()?;
        if !self.read_line()? {
            return Ok(None);
        }
        let line = self.line_number;
        let entry = csv::text(&self.line).and_then(|text| columns.entry(text));
        entry.map(Some).map_err(|problem| TraceError { line, problem })
    }

    fn read_header(&mut self) -> Result<TraceColumns, TraceError> {
        if !self.read_line()? {
            return Err(TraceError { line: 1, problem: TraceProblem::Empty });
        }
        let columns = TraceColumns::of_header(&self.line, self.hold_for)
            .map_err(|problem| TraceError { line: self.line_number, problem })?;
        self.columns = Some(columns);
        Ok(columns)
    }

    /// Reads the next line that is not blank, without its line end. Returns false at the end of the trace.
    fn read_line(&mut self) -> Result<bool, TraceError> {
        loop {
            self.line_number += 1;
            self.line.clear();
            let read = self.fill_line();
            let bytes = read.map_err(|problem| TraceError { line: self.line_number, problem })?;
            if bytes == 0 {
                return Ok(false);
            }
            if self.line.ends_with(b"\n") {
                self.line.pop();
            }
            if self.line.ends_with(b"\r") {
                self.line.pop();
            }
            if !self.line.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    fn fill_line(&mut self) -> Result<usize, TraceProblem> {
        // OK because usize fits in u64 on all supported systems.
        let mut bounded = (&mut self.reader).take(MAX_LINE_BYTES as u64 + 1);
        let bytes = bounded.read_until(b'\n', &mut self.line).map_err(TraceProblem::Io)?;
        self.read_bytes += bytes as u64;
        if bytes > MAX_LINE_BYTES { Err(TraceProblem::TooLong) } else { Ok(bytes) }
    }
}
