//! Splits a line into columns, and reads the numbers in them.

use std::borrow::Cow;

use tollgate_core::{Cost, Excerpt, MAX_TIME_US};

use super::problem::TraceProblem;

pub(super) fn text(line: &[u8]) -> Result<&str, TraceProblem> {
    str::from_utf8(line).map_err(|_| TraceProblem::NotText)
}

/// Takes the next column from the rest of a line; `None` after the last.
///
/// A column that contains a comma or a quote is quoted, and its own quotes are doubled: `"a,b""c"` is `a,b"c`.
pub(super) fn next_column<'l>(
    rest: &mut Option<&'l str>,
) -> Result<Option<Cow<'l, str>>, TraceProblem> {
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

pub(super) fn time(text: &str) -> Result<u64, TraceProblem> {
    digits(text)
        .filter(|&at_us| at_us <= MAX_TIME_US)
        .ok_or_else(|| TraceProblem::BadTime(excerpt(text.as_bytes())))
}

pub(super) fn cost(text: &str) -> Result<Cost, TraceProblem> {
    if text.trim_ascii().is_empty() {
        return Ok(Cost::ONE);
    }
    let units =
        digits(text).ok_or_else(|| TraceProblem::CostNotANumber(excerpt(text.as_bytes())))?;
    Cost::new(units).map_err(TraceProblem::BadCost)
}

/// Parses a number that has only digits, with or without spaces around it. `parse` alone would also accept a sign.
pub(super) fn digits(text: &str) -> Option<u64> {
    let text = text.trim_ascii();
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Returns the beginning of a bad value, safe to print.
pub(super) fn excerpt(bytes: &[u8]) -> Excerpt {
    Excerpt::of(&String::from_utf8_lossy(bytes))
}
