//! The header of a trace, and lines with only the columns `at_us,key,cost`.

use tollgate_core::{Cost, HoldTime};

use super::csv::{self, excerpt, next_column};
use super::entry::{TraceAction, TraceEntry};
use super::operations::NamedColumns;
use super::problem::TraceProblem;

const BYTE_ORDER_MARK: char = '\u{feff}';

/// The columns that the header names.
#[derive(Clone, Copy, Debug)]
pub(in crate::replay) enum TraceColumns {
    /// `at_us,key`, or `at_us,key,cost`: the number of columns.
    Plain(usize),
    /// Any columns, in the order of the header.
    Named(NamedColumns),
}

impl TraceColumns {
    /// Reads the header. A reservation without a hold time is for `hold_for`.
    pub(super) fn of_header(
        line: &[u8],
        hold_for: Option<HoldTime>,
    ) -> Result<TraceColumns, TraceProblem> {
        let not_the_header = || TraceProblem::NotTheHeader(excerpt(line));
        let text = csv::text(line).map_err(|_| not_the_header())?;
        let mut rest = Some(text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text));
        let mut named = NamedColumns::with_default(hold_for);
        while let Some(name) = next_column(&mut rest).map_err(|_| not_the_header())? {
            if !named.add(name.trim()) {
                return Err(not_the_header());
            }
        }
        match named.plain_count() {
            Some(count) => Ok(TraceColumns::Plain(count)),
            None if named.are_enough() => Ok(TraceColumns::Named(named)),
            None => Err(not_the_header()),
        }
    }

    /// Reads one line under the header.
    // Always inlined: in a replay in memory, the call would take a measurable part of the time of a line.
    #[inline(always)]
    pub(super) fn entry(self, line: &str) -> Result<TraceEntry<'_>, TraceProblem> {
        match self {
            TraceColumns::Plain(columns) => entry(line, columns),
            TraceColumns::Named(columns) => columns.entry(line),
        }
    }

    pub(in crate::replay) fn has_op(self) -> bool {
        matches!(self, TraceColumns::Named(columns) if columns.has_op())
    }

    pub(in crate::replay) fn has_hold(self) -> bool {
        matches!(self, TraceColumns::Named(columns) if columns.has_hold())
    }
}

/// Reads a check of a trace with two columns, or with three.
fn entry(line: &str, columns: usize) -> Result<TraceEntry<'_>, TraceProblem> {
    let mut rest = Some(line);
    let at_us = csv::time(&next_column(&mut rest)?.unwrap_or_default())?;
    let key = next_column(&mut rest)?.ok_or(TraceProblem::NoKey)?;
    if key.is_empty() {
        return Err(TraceProblem::EmptyKey);
    }
    let cost = match next_column(&mut rest)? {
        Some(text) if columns == 3 => csv::cost(&text)?,
        Some(_) => return Err(TraceProblem::TooManyColumns(columns)),
        None => Cost::ONE,
    };
    if rest.is_some() {
        Err(TraceProblem::TooManyColumns(columns))
    } else {
        Ok(TraceEntry { at_us, key, request: TraceAction::Check(cost) })
    }
}
