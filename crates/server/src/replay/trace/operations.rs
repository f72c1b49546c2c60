//! Lines of a trace with operations on holds: columns of any order, by their names.

use std::borrow::Cow;

use tollgate_core::{HoldTime, MAX_UNITS};

use super::csv::{self, digits, excerpt, next_column};
use super::entry::{HoldStep, OperationName, TraceAction, TraceEntry, TraceOperation};
use super::problem::TraceProblem;

/// The columns that a trace can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnName {
    AtUs,
    Key,
    Cost,
    Op,
    Hold,
    ForUs,
}

/// The number of column names.
const NAMES: usize = 6;

/// The columns of a header, in its order. Each occurs once.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::replay) struct NamedColumns {
    order: [Option<ColumnName>; NAMES],
    count: usize,
    /// How long a reservation holds units if its line does not say it.
    hold_for: Option<HoldTime>,
}

/// The columns of one line, by their names; `None` for a column that the header or the line does not have.
#[derive(Default)]
struct NamedFields<'l>([Option<Cow<'l, str>>; NAMES]);

impl ColumnName {
    fn of(text: &str) -> Option<ColumnName> {
        Some(match text {
            "at_us" => ColumnName::AtUs,
            "key" => ColumnName::Key,
            "cost" => ColumnName::Cost,
            "op" => ColumnName::Op,
            "hold" => ColumnName::Hold,
            "for_us" => ColumnName::ForUs,
            _ => return None,
        })
    }
}

impl NamedColumns {
    /// Makes no columns yet. A reservation without a hold time is for `hold_for`.
    pub(super) fn with_default(hold_for: Option<HoldTime>) -> NamedColumns {
        NamedColumns { hold_for, ..NamedColumns::default() }
    }

    /// Adds the next column of the header. Returns false if no column has that name, or an earlier column has it.
    pub(super) fn add(&mut self, name: &str) -> bool {
        let Some(name) = ColumnName::of(name).filter(|name| !self.has(*name)) else { return false };
        // OK because the names differ, so that there are at most as many as places.
        self.order[self.count] = Some(name);
        self.count += 1;
        true
    }

    /// Returns the number of columns if they are `at_us,key` or `at_us,key,cost`.
    pub(super) fn plain_count(&self) -> Option<usize> {
        let plain = [ColumnName::AtUs, ColumnName::Key, ColumnName::Cost].map(Some);
        let is_plain = (2..=plain.len()).contains(&self.count)
            && self.order[..self.count] == plain[..self.count];
        is_plain.then_some(self.count)
    }

    /// Whether a request can be made of the columns. Only an operation can have a hold.
    pub(super) fn are_enough(&self) -> bool {
        let for_operations = self.has(ColumnName::Hold) || self.has(ColumnName::ForUs);
        self.has(ColumnName::AtUs)
            && self.has(ColumnName::Key)
            && (self.has_op() || !for_operations)
    }

    pub(super) fn has_op(&self) -> bool {
        self.has(ColumnName::Op)
    }

    pub(super) fn has_hold(&self) -> bool {
        self.has(ColumnName::Hold)
    }

    fn has(&self, name: ColumnName) -> bool {
        self.order.contains(&Some(name))
    }

    /// Reads one line.
    // Never inlined: a replay of a trace without holds does not need it.
    #[inline(never)]
    pub(super) fn entry<'l>(&self, line: &'l str) -> Result<TraceEntry<'l>, TraceProblem> {
        let mut fields = self.fields(line)?;
        let at_us = csv::time(&fields.take(ColumnName::AtUs).unwrap_or_default())?;
        let key = fields.take(ColumnName::Key).unwrap_or_default();
        if key.is_empty() {
            return Err(TraceProblem::EmptyKey);
        }
        let op = fields.take(ColumnName::Op).unwrap_or_default();
        let operation = match op.trim_ascii() {
            "" => OperationName::Check,
            name => OperationName::of(name)
                .ok_or_else(|| TraceProblem::UnknownOperation(excerpt(op.as_bytes())))?,
        };
        let request = match operation {
            OperationName::Check => {
                fields.must_be_empty(operation, ColumnName::Hold)?;
                fields.must_be_empty(operation, ColumnName::ForUs)?;
                TraceAction::Check(csv::cost(&fields.take(ColumnName::Cost).unwrap_or_default())?)
            }
            _ => TraceAction::OnHold(Box::new(fields.hold_step(operation, self.hold_for)?)),
        };
        Ok(TraceEntry { at_us, key, request })
    }

    fn fields<'l>(&self, line: &'l str) -> Result<NamedFields<'l>, TraceProblem> {
        let (mut rest, mut fields) = (Some(line), NamedFields::default());
        for name in self.order.into_iter().flatten() {
            fields.0[name as usize] = next_column(&mut rest)?;
        }
        if rest.is_some() {
            return Err(TraceProblem::TooManyColumns(self.count));
        }
        Ok(fields)
    }
}

impl<'l> NamedFields<'l> {
    fn take(&mut self, name: ColumnName) -> Option<Cow<'l, str>> {
        self.0[name as usize].take()
    }

    fn must_be_empty(
        &mut self,
        operation: OperationName,
        name: ColumnName,
    ) -> Result<(), TraceProblem> {
        match self.take(name).filter(|text| !text.trim_ascii().is_empty()) {
            None => Ok(()),
            Some(text) if name == ColumnName::Hold => {
                Err(TraceProblem::CheckWithHold(excerpt(text.as_bytes())))
            }
            Some(text) => Err(TraceProblem::NoTimeExpected(operation, excerpt(text.as_bytes()))),
        }
    }

    fn hold_step(
        &mut self,
        name: OperationName,
        default: Option<HoldTime>,
    ) -> Result<HoldStep<'l>, TraceProblem> {
        let hold = self.take(ColumnName::Hold).filter(|hold| !hold.is_empty());
        let hold = hold.ok_or(TraceProblem::NoHold(name))?;
        let cost = self.take(ColumnName::Cost).unwrap_or_default();
        let operation = match name {
            OperationName::Reserve => {
                let hold_for = self.hold_for(name, default)?;
                TraceOperation::Reserve { cost: csv::cost(&cost)?, hold_for }
            }
            OperationName::Extend => {
                let hold_for = self.hold_for(name, None)?;
                TraceOperation::Extend { more: units(name, &cost)?, hold_for }
            }
            OperationName::Settle | OperationName::Check => {
                self.must_be_empty(name, ColumnName::ForUs)?;
                TraceOperation::Settle { used: units(name, &cost)? }
            }
        };
        Ok(HoldStep { hold, operation })
    }

    /// Reads how long the units are held.
    fn hold_for(
        &mut self,
        operation: OperationName,
        default: Option<HoldTime>,
    ) -> Result<HoldTime, TraceProblem> {
        let text = self.take(ColumnName::ForUs).unwrap_or_default();
        if let Some(default) = default.filter(|_| text.trim_ascii().is_empty()) {
            return Ok(default);
        }
        let us = digits(&text)
            .ok_or_else(|| TraceProblem::BadHoldTime(operation, excerpt(text.as_bytes())))?;
        HoldTime::from_us(us).map_err(TraceProblem::HoldTimeOutOfRange)
    }
}

/// Reads the units of a settlement or an extension, which may be 0.
fn units(operation: OperationName, text: &str) -> Result<u64, TraceProblem> {
    if text.trim_ascii().is_empty() {
        return Ok(1);
    }
    digits(text)
        .filter(|&units| units <= MAX_UNITS)
        .ok_or_else(|| TraceProblem::BadUnits(operation, excerpt(text.as_bytes())))
}
