//! Reads a trace: CSV with the columns `at_us,key,cost`, one request on each line.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read};

use tollgate_core::{Cost, CostError, Excerpt, MAX_TIME_US, MAX_UNITS};

/// The longest line. It is far longer than any sensible key, and keeps a file without line ends from filling the
/// memory.
const MAX_LINE_BYTES: usize = 1024 * 1024;

const BYTE_ORDER_MARK: char = '\u{feff}';

/// A request of a trace: one line of the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TraceEntry<'t> {
    pub(super) at_us: u64,
    pub(super) key: Cow<'t, str>,
    pub(super) cost: Cost,
}

impl TraceEntry<'_> {
    fn into_owned(self) -> TraceEntry<'static> {
        let TraceEntry { at_us, key, cost } = self;
        TraceEntry { at_us, key: key.into_owned().into(), cost }
    }
}

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

#[derive(Debug, thiserror::Error)]
enum TraceProblem {
    #[error("the trace is empty; begin it with the header `at_us,key,cost`")]
    Empty,
    #[error("`{0}` is not the header; begin the trace with `at_us,key,cost` or `at_us,key`")]
    NotTheHeader(Excerpt),
    #[error(
        "the line is longer than {MAX_LINE_BYTES} bytes; put each request on a line of its own"
    )]
    TooLong,
    #[error("a quote is not closed; a quoted column ends with `\"` on the same line")]
    OpenQuote,
    #[error("a column contains a quote; put quotes around the column and double the quote inside")]
    StrayQuote,
    #[error("the line is not UTF-8 text; convert the trace to UTF-8")]
    NotText,
    #[error("the line has 1 column; a request needs `at_us,key`")]
    NoKey,
    #[error("the line has more columns than the header's {0}; quote a key that contains a comma")]
    TooManyColumns(usize),
    #[error("the key is empty; name the key to charge, such as user:42")]
    EmptyKey,
    #[error(
        "at_us `{0}` is not a time; use whole microseconds since the Unix epoch, at most {MAX_TIME_US}"
    )]
    BadTime(Excerpt),
    #[error("cost `{0}` is not a whole number from 1 to {MAX_UNITS}; leave it out for 1")]
    CostNotANumber(Excerpt),
    #[error(transparent)]
    BadCost(CostError),
    #[error("cannot be read: {0}")]
    Io(io::Error),
}

/// Reads a trace line by line, in memory bounded by its longest line.
pub(super) struct Trace<R> {
    reader: R,
    line: Vec<u8>,
    line_number: u64,
    read_bytes: u64,
    /// The number of columns that the header names; `None` until the header is read.
    columns: Option<usize>,
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
    pub(super) fn new(reader: R) -> Trace<R> {
        Trace { reader, line: Vec::new(), line_number: 0, read_bytes: 0, columns: None }
    }

    /// Returns the number of bytes read so far.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// Reads the next request; `None` at the end.
    pub(super) fn next_request(&mut self) -> Result<Option<TraceEntry<'_>>, TraceError> {
        let columns = match self.columns {
            Some(columns) => columns,
            None => self.read_header()?,
        };
        if !self.read_line()? {
            return Ok(None);
        }
        let line = self.line_number;
        let request = text(&self.line).and_then(|text| request(text, columns));
        request.map(Some).map_err(|problem| TraceError { line, problem })
    }

    fn read_header(&mut self) -> Result<usize, TraceError> {
        if !self.read_line()? {
            return Err(TraceError { line: 1, problem: TraceProblem::Empty });
        }
        let columns =
            header(&self.line).map_err(|problem| TraceError { line: self.line_number, problem })?;
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

fn text(line: &[u8]) -> Result<&str, TraceProblem> {
    str::from_utf8(line).map_err(|_| TraceProblem::NotText)
}

/// Reads the header. Returns the number of its columns: two, or three with the cost.
fn header(line: &[u8]) -> Result<usize, TraceProblem> {
    let not_the_header = || TraceProblem::NotTheHeader(excerpt(line));
    let mut rest = Some(text(line).map_err(|_| not_the_header())?);
    rest = rest.map(|text| text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text));
    let mut columns = 0;
    for name in ["at_us", "key", "cost"] {
        let Some(found) = next_column(&mut rest).map_err(|_| not_the_header())? else { break };
        if found.trim() != name {
            return Err(not_the_header());
        }
        columns += 1;
    }
    if columns < 2 || rest.is_some() { Err(not_the_header()) } else { Ok(columns) }
}

/// Reads one line under a header that names `columns`.
fn request(line: &str, columns: usize) -> Result<TraceEntry<'_>, TraceProblem> {
    let mut rest = Some(line);
    let at_us = time(&next_column(&mut rest)?.unwrap_or_default())?;
    let key = next_column(&mut rest)?.ok_or(TraceProblem::NoKey)?;
    if key.is_empty() {
        return Err(TraceProblem::EmptyKey);
    }
    let cost = match next_column(&mut rest)? {
        Some(text) if columns == 3 => cost(&text)?,
        Some(_) => return Err(TraceProblem::TooManyColumns(columns)),
        None => Cost::ONE,
    };
    if rest.is_some() {
        Err(TraceProblem::TooManyColumns(columns))
    } else {
        Ok(TraceEntry { at_us, key, cost })
    }
}

/// Takes the next column from the rest of a line; `None` after the last.
///
/// A column that contains a comma or a quote is quoted, and its own quotes are doubled: `"a,b""c"` is `a,b"c`.
fn next_column<'l>(rest: &mut Option<&'l str>) -> Result<Option<Cow<'l, str>>, TraceProblem> {
    let Some(line) = rest.take() else { return Ok(None) };
    let Some(quoted) = line.strip_prefix('"') else {
        let (column, after) = match line.split_once(',') {
            Some((column, after)) => (column, Some(after)),
            None => (line, None),
        };
        *rest = after;
        return if column.contains('"') {
            Err(TraceProblem::StrayQuote)
        } else {
            Ok(Some(column.into()))
        };
    };
    let end = closing_quote(quoted).ok_or(TraceProblem::OpenQuote)?;
    let (column, after) = (&quoted[..end], &quoted[end + 1..]);
    *rest = match after.strip_prefix(',') {
        Some(after) => Some(after),
        None if after.is_empty() => None,
        None => return Err(TraceProblem::StrayQuote),
    };
    let has_quotes = column.contains('"');
    Ok(Some(if has_quotes { column.replace("\"\"", "\"").into() } else { column.into() }))
}

/// Returns the position of the quote that ends a quoted column: the first quote that is not doubled.
fn closing_quote(quoted: &str) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + quoted[from..].find('"')?;
        if !quoted[at + 1..].starts_with('"') {
            return Some(at);
        }
        from = at + 2;
    }
}

fn time(text: &str) -> Result<u64, TraceProblem> {
    digits(text)
        .filter(|&at_us| at_us <= MAX_TIME_US)
        .ok_or_else(|| TraceProblem::BadTime(excerpt(text.as_bytes())))
}

fn cost(text: &str) -> Result<Cost, TraceProblem> {
    if text.trim_ascii().is_empty() {
        return Ok(Cost::ONE);
    }
    let units =
        digits(text).ok_or_else(|| TraceProblem::CostNotANumber(excerpt(text.as_bytes())))?;
    Cost::new(units).map_err(TraceProblem::BadCost)
}

/// Parses a number that has only digits, with or without spaces around it. `parse` alone would also accept a sign.
fn digits(text: &str) -> Option<u64> {
    let text = text.trim_ascii();
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Returns the beginning of a bad value, safe to print.
fn excerpt(bytes: &[u8]) -> Excerpt {
    Excerpt::of(&String::from_utf8_lossy(bytes))
}
