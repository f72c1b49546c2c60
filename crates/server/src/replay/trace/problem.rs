//! The problems of a trace, each with its remedy.

use std::io;

use tollgate_core::{CostError, Excerpt, HoldError, MAX_TIME_US, MAX_UNITS};

use super::MAX_LINE_BYTES;
use super::entry::OperationName;

/// A problem of a line.
#[derive(Debug, thiserror::Error)]
pub(super) enum TraceProblem {
    #[error("the trace is empty; begin it with the header `at_us,key,cost`")]
    Empty,
    #[error(
        "`{0}` is not the header; begin the trace with `at_us,key,cost` or `at_us,key`, or for holds with \
         `at_us,key,cost,op,hold,for_us`"
    )]
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
    #[error("op `{0}` is not an operation; use check, reserve, settle or extend")]
    UnknownOperation(Excerpt),
    #[error("hold is empty; name the hold of this {0}, such as h1")]
    NoHold(OperationName),
    #[error(
        "hold is `{0}`, but a check has no hold; leave it empty, or set op to reserve, settle or extend"
    )]
    CheckWithHold(Excerpt),
    #[error(
        "for_us `{1}` is not a time; set how long this {0} holds the units, in whole microseconds, such as 30000000"
    )]
    BadHoldTime(OperationName, Excerpt),
    #[error("for_us: {0}")]
    HoldTimeOutOfRange(HoldError),
    #[error("for_us is `{1}`, but a {0} has no hold time; leave it empty")]
    NoTimeExpected(OperationName, Excerpt),
    #[error(
        "cost `{1}` of this {0} is not a whole number from 0 to {MAX_UNITS}; leave it out for 1"
    )]
    BadUnits(OperationName, Excerpt),
    #[error("cannot be read: {0}")]
    Io(io::Error),
}
