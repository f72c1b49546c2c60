//! The metrics of holds, for the rules and limits that have had some.

use std::sync::Arc;

use super::text::{MetricKind, MetricsText};
use crate::ruleset::{HoldTally, RuleSet};

/// The labels of a rule or a limit, and its tally.
type LabelledTally<'l> = (Vec<(&'static str, &'l str)>, Arc<HoldTally>);

/// Writes the numbers of operations on holds, and of their units, if there were any holds.
pub(super) fn write(text: &mut MetricsText, rules: &RuleSet) {
    let (of_rules, limits) = (rules.rule_hold_tallies(), rules.limits());
    let of_rules = of_rules.iter().map(|(name, tally)| {
        (vec![("domain", name.domain()), ("rule", name.name())], Arc::clone(tally))
    });
    let of_limits =
        limits.iter().map(|(name, limit)| (vec![("limit", &**name)], Arc::clone(&limit.holds)));
    let is_used = |(_, tally): &LabelledTally<'_>| !tally.is_unused();
    let of_rules: Vec<LabelledTally<'_>> = of_rules.filter(is_used).collect();
    let of_limits: Vec<LabelledTally<'_>> = of_limits.filter(is_used).collect();
    let help = "Reservations, settlements and extensions of holds of rules, by outcome. The outcomes expired and unknown are \
                of settlements and extensions that came after their hold had ended.";
    operations(text, "tollgate_hold_operations_total", help, &of_rules);
    let help = "Reservations, settlements and extensions of holds of limits by name, by outcome. The outcomes expired and \
                unknown are of settlements and extensions that came after their hold had ended.";
    operations(text, "tollgate_limit_hold_operations_total", help, &of_limits);
    let help = "Units of holds of rules: held is set aside by reservations and extensions, settled is charged by \
                settlements, excess is the part of settled that was beyond the holds, cut was used beyond the holds and \
                not charged.";
    units(text, "tollgate_hold_units_total", help, &of_rules);
    let help = "Units of holds of limits by name: held is set aside by reservations and extensions, settled is charged by \
                settlements, excess is the part of settled that was beyond the holds, cut was used beyond the holds and \
                not charged.";
    units(text, "tollgate_limit_hold_units_total", help, &of_limits);
}

fn operations(text: &mut MetricsText, name: &'static str, help: &str, all: &[LabelledTally<'_>]) {
    if all.is_empty() {
        return;
    }
    text.metric(name, MetricKind::Counter, help);
    for (labels, tally) in all {
        for (operation, outcome, count) in tally.operations() {
            let outcome = outcome.name(operation);
            let own = [("operation", operation.name()), ("outcome", outcome)];
            text.sample(&[&labels[..], &own].concat(), count);
        }
    }
}

fn units(text: &mut MetricsText, name: &'static str, help: &str, all: &[LabelledTally<'_>]) {
    if all.is_empty() {
        return;
    }
    text.metric(name, MetricKind::Counter, help);
    for (labels, tally) in all {
        for (of, units) in tally.units() {
            text.sample(&[&labels[..], &[("kind", of.name())]].concat(), units);
        }
    }
}
