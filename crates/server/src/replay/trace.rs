//! The trace reader: `at_us,key,cost`, one request a line.

use std::io::{self, BufRead, BufReader, Read};
use std::str;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder, Terminator};
use tollgate_core::{Cost, CostError, Excerpt, MAX_TIME_US, MAX_UNITS};

/// Far above any key that makes sense; a file without line ends must not fill the memory.
const MAX_LINE_BYTES: usize = 1024 * 1024;

/// One column more than a request has, to tell a line that has too many.
const MAX_COLUMNS: usize = 4;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// One line of a trace.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request<'t> {
    pub(super) at_us: u64,
    pub(super) key: &'t str,
    pub(super) cost: Cost,
}

/// What is wrong with which line.
#[derive(Debug, thiserror::Error)]
#[error("{line}: {problem}")]
pub(super) struct TraceError {
    line: u64,
    problem: Problem,
}

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("the trace is empty; begin it with the header `at_us,key,cost`")]
    Empty,
    #[error("`{0}` is not the header; begin the trace with `at_us,key,cost` or `at_us,key`")]
    NotTheHeader(Excerpt),
    #[error(
        "the line is longer than {MAX_LINE_BYTES} bytes; put each request on a line of its own"
    )]
    TooLong,
    #[error("a quote is not closed; a quoted key ends with `\"` on the same line")]
    OpenQuote,
    #[error("the line is not UTF-8 text; convert the trace to UTF-8")]
    NotText,
    #[error("the line has 1 column; a request needs `at_us,key`")]
    NoKey,
    #[error("the line has more columns than the header's {0}; quote a key that contains a comma")]
    TooManyColumns(usize),
    #[error("the key is empty; name who makes the request")]
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
    csv: Reader,
    line: Vec<u8>,
    line_number: u64,
    read_bytes: u64,
    columns: Option<usize>,
    fields: Vec<u8>,
}

impl<R: Read> Trace<BufReader<R>> {
    /// Whether the next line is not in the buffer yet, so that reading it may take a while.
    pub(super) fn must_wait_for_input(&self) -> bool {
        !self.reader.buffer().contains(&b'\n')
    }
}

impl<R: BufRead> Trace<R> {
    pub(super) fn new(reader: R) -> Trace<R> {
        Trace {
            reader,
            csv: ReaderBuilder::new().terminator(Terminator::Any(b'\n')).build(),
            line: Vec::new(),
            line_number: 0,
            read_bytes: 0,
            columns: None,
            fields: Vec::new(),
        }
    }

    /// The bytes read so far.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// The next request; `None` at the end.
    pub(super) fn next_request(&mut self) -> Result<Option<Request<'_>>, TraceError> {
        let columns = match self.columns {
            Some(columns) => columns,
            None => self.read_header()?,
        };
        if !self.read_line()? {
            return Ok(None);
        }
        let line = self.line_number;
        request(&mut self.csv, &self.line, &mut self.fields, columns)
            .map(Some)
            .map_err(|problem| TraceError { line, problem })
    }

    fn read_header(&mut self) -> Result<usize, TraceError> {
        if !self.read_line()? {
            return Err(TraceError { line: 1, problem: Problem::Empty });
        }
        let header = self.line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&self.line).trim_ascii();
        let columns = match header {
            b"at_us,key,cost" => 3,
            b"at_us,key" => 2,
            other => {
                let problem = Problem::NotTheHeader(excerpt(other));
                return Err(TraceError { line: self.line_number, problem });
            }
        };
        self.columns = Some(columns);
        Ok(columns)
    }

    /// Reads the next line that is not blank, ending it with a line feed; false at the end.
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
                self.line.push(b'\n');
                return Ok(true);
            }
        }
    }

    fn fill_line(&mut self) -> Result<usize, Problem> {
        // OK because usize fits u64 wherever this runs.
        let mut bounded = (&mut self.reader).take(MAX_LINE_BYTES as u64 + 1);
        let bytes = bounded.read_until(b'\n', &mut self.line).map_err(Problem::Io)?;
        self.read_bytes += bytes as u64;
        if bytes > MAX_LINE_BYTES { Err(Problem::TooLong) } else { Ok(bytes) }
    }
}

/// Reads one line, which ends with a line feed.
fn request<'f>(
    csv: &mut Reader,
    line: &[u8],
    fields: &'f mut Vec<u8>,
    columns: usize,
) -> Result<Request<'f>, Problem> {
    fields.resize(line.len(), 0);
    let mut ends = [0; MAX_COLUMNS];
    csv.reset();
    let (result, _, _, count) = csv.read_record(line, fields, &mut ends);
    match result {
        ReadRecordResult::Record => {}
        // Inside a quote, the line feed is part of the key.
        ReadRecordResult::InputEmpty => return Err(Problem::OpenQuote),
        _ => return Err(Problem::TooManyColumns(columns)),
    }
    if count > columns {
        return Err(Problem::TooManyColumns(columns));
    }
    let text = str::from_utf8(&fields[..ends[count - 1]]).map_err(|_| Problem::NotText)?;
    let column = |index: usize| {
        let start = if index == 0 { 0 } else { ends[index - 1] };
        text.get(start..ends[index]).ok_or(Problem::NotText)
    };
    let at_us = time(column(0)?)?;
    if count < 2 {
        return Err(Problem::NoKey);
    }
    let key = column(1)?;
    if key.is_empty() {
        return Err(Problem::EmptyKey);
    }
    let cost = if count == 3 { cost(column(2)?)? } else { Cost::ONE };
    Ok(Request { at_us, key, cost })
}

fn time(text: &str) -> Result<u64, Problem> {
    digits(text)
        .filter(|&at_us| at_us <= MAX_TIME_US)
        .ok_or_else(|| Problem::BadTime(excerpt(text.as_bytes())))
}

fn cost(text: &str) -> Result<Cost, Problem> {
    if text.trim_ascii().is_empty() {
        return Ok(Cost::ONE);
    }
    let units = digits(text).ok_or_else(|| Problem::CostNotANumber(excerpt(text.as_bytes())))?;
    Cost::new(units).map_err(Problem::BadCost)
}

/// A number of digits alone, with or without spaces around it: `parse` would take a sign as well.
fn digits(text: &str) -> Option<u64> {
    let text = text.trim_ascii();
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// The beginning of a bad value, safe to print.
fn excerpt(bytes: &[u8]) -> Excerpt {
    Excerpt::of(&String::from_utf8_lossy(bytes))
}
