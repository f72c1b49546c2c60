//! A request of a trace.

use std::borrow::Cow;
use std::fmt;

use tollgate_core::{Cost, HoldTime};

/// A request of a trace: one line of the file.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::replay) struct TraceEntry<'t> {
    pub(in crate::replay) at_us: u64,
    pub(in crate::replay) key: Cow<'t, str>,
    pub(in crate::replay) request: TraceAction<'t>,
}

/// A check, or an operation on a hold.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::replay) enum TraceAction<'t> {
    Check(Cost),
    /// Boxed, so that the entries of a trace without holds stay small.
    OnHold(Box<HoldStep<'t>>),
}

/// An operation on the hold of a name. Each key has names of its own.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::replay) struct HoldStep<'t> {
    pub(in crate::replay) hold: Cow<'t, str>,
    pub(in crate::replay) operation: TraceOperation,
}

/// An operation on a hold, with the numbers of its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::replay) enum TraceOperation {
    Reserve { cost: Cost, hold_for: HoldTime },
    Settle { used: u64 },
    Extend { more: u64, hold_for: HoldTime },
}

/// The operations that the column `op` can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::replay) enum OperationName {
    Check,
    Reserve,
    Settle,
    Extend,
}

impl TraceEntry<'_> {
    pub(super) fn into_owned(self) -> TraceEntry<'static> {
        let TraceEntry { at_us, key, request } = self;
        let request = match request {
            TraceAction::Check(cost) => TraceAction::Check(cost),
            TraceAction::OnHold(step) => {
                let HoldStep { hold, operation } = *step;
                let hold = hold.into_owned().into();
                TraceAction::OnHold(Box::new(HoldStep { hold, operation }))
            }
        };
        TraceEntry { at_us, key: key.into_owned().into(), request }
    }

    pub(in crate::replay) fn is_check(&self) -> bool {
        matches!(self.request, TraceAction::Check(_))
    }

    /// Returns the units in the column `cost`.
    pub(in crate::replay) fn units(&self) -> u64 {
        match &self.request {
            TraceAction::Check(cost) => cost.units(),
            TraceAction::OnHold(step) => match step.operation {
                TraceOperation::Reserve { cost, .. } => cost.units(),
                TraceOperation::Settle { used } => used,
                TraceOperation::Extend { more, .. } => more,
            },
        }
    }

    /// Returns the name of the hold; `None` for a check.
    pub(in crate::replay) fn hold(&self) -> Option<&str> {
        match &self.request {
            TraceAction::Check(_) => None,
            TraceAction::OnHold(step) => Some(&step.hold),
        }
    }

    pub(in crate::replay) fn operation(&self) -> OperationName {
        match &self.request {
            TraceAction::Check(_) => OperationName::Check,
            TraceAction::OnHold(step) => match step.operation {
                TraceOperation::Reserve { .. } => OperationName::Reserve,
                TraceOperation::Settle { .. } => OperationName::Settle,
                TraceOperation::Extend { .. } => OperationName::Extend,
            },
        }
    }
}

impl OperationName {
    const ALL: [OperationName; 4] = [
        OperationName::Check,
        OperationName::Reserve,
        OperationName::Settle,
        OperationName::Extend,
    ];

    /// Returns the operation of a name; `None` for any other text.
    pub(super) fn of(text: &str) -> Option<OperationName> {
        OperationName::ALL.into_iter().find(|operation| operation.name() == text)
    }

    pub(in crate::replay) fn name(self) -> &'static str {
        match self {
            OperationName::Check => "check",
            OperationName::Reserve => "reserve",
            OperationName::Settle => "settle",
            OperationName::Extend => "extend",
        }
    }
}

impl fmt::Display for OperationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
