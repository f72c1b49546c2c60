//! The metrics of holds, for the limits that have had some.

use std::sync::Arc;

use super::text::{MetricKind, MetricsText};
use crate::ruleset::{HoldTally, RuleSet};

/// The limit of a tally, and the tally.
type NamedTally = (Box<str>, Arc<HoldTally>);

/// Writes the numbers of operations on holds, and of their units, if there were any holds.
pub(super) fn write(text: &mut MetricsText, rules: &RuleSet) {
    let all = rules.limits().into_iter().map(|(name, limit)| (name, Arc::clone(&limit.holds)));
    let used: Vec<NamedTally> = all.filter(|(_, tally)| !tally.is_unused()).collect();
    if used.is_empty() {
        return;
    }
    let help = "Reservations, settlements and extensions of holds of limits, by outcome. The outcomes expired and unknown are \
                of settlements and extensions that came after their hold had ended.";
    text.metric("tollgate_hold_operations_total", MetricKind::Counter, help);
    for (limit, tally) in &used {
        for (operation, outcome, count) in tally.operations() {
            let outcome = outcome.name(operation);
            let labels =
                [("limit", &**limit), ("operation", operation.name()), ("outcome", outcome)];
            text.sample(&labels, count);
        }
    }
    let help = "Units of holds of limits: held is set aside by reservations and extensions, settled is charged by \
                settlements, excess is the part of settled that was beyond the holds, cut was used beyond the holds and \
                not charged.";
    text.metric("tollgate_hold_units_total", MetricKind::Counter, help);
    for (limit, tally) in &used {
        for (of, units) in tally.units() {
            text.sample(&[("limit", limit), ("kind", of.name())], units);
        }
    }
}
