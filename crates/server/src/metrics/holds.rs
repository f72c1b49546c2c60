//! The metrics of holds, for the rules and limits that have had some.

use std::sync::Arc;

use super::text::{MetricKind, MetricsText};
use crate::ruleset::{FlowByExpiry, HoldCount, HoldFlow, HoldTally, RuleSet};

/// The labels of a rule or a limit, and its tally.
type LabelledTally<'l> = (Vec<(&'static str, &'l str)>, Arc<HoldTally>);

/// The names of the metrics of rules, or of limits.
struct HoldMetricNames {
    operations: &'static str,
    units: &'static str,
    open_holds: &'static str,
    held_units: &'static str,
    past_holds: &'static str,
    past_units: &'static str,
}

const OF_RULES: HoldMetricNames = HoldMetricNames {
    operations: "tollgate_hold_operations_total",
    units: "tollgate_hold_units_total",
    open_holds: "tollgate_open_holds",
    held_units: "tollgate_held_units",
    past_holds: "tollgate_holds_past_expiry_total",
    past_units: "tollgate_hold_units_past_expiry_total",
};

const OF_LIMITS: HoldMetricNames = HoldMetricNames {
    operations: "tollgate_limit_hold_operations_total",
    units: "tollgate_limit_hold_units_total",
    open_holds: "tollgate_limit_open_holds",
    held_units: "tollgate_limit_held_units",
    past_holds: "tollgate_limit_holds_past_expiry_total",
    past_units: "tollgate_limit_hold_units_past_expiry_total",
};

/// Writes the numbers of operations on holds, and of their units, if there were any holds.
pub(super) fn write(text: &mut MetricsText, rules: &RuleSet) {
    let (of_rules, limits) = (rules.rule_hold_tallies(), rules.limits());
    let of_rules = of_rules.iter().map(|(name, tally)| {
        (vec![("domain", name.domain()), ("rule", name.name())], Arc::clone(tally))
    });
    write_all(text, "of rules", &OF_RULES, of_rules);
    let of_limits =
        limits.iter().map(|(name, limit)| (vec![("limit", &**name)], Arc::clone(&limit.holds)));
    write_all(text, "of limits by name", &OF_LIMITS, of_limits);
}

fn write_all<'l>(
    text: &mut MetricsText,
    whose: &str,
    names: &HoldMetricNames,
    all: impl Iterator<Item = LabelledTally<'l>>,
) {
    let all: Vec<LabelledTally<'_>> = all.filter(|(_, tally)| !tally.is_unused()).collect();
    if all.is_empty() {
        return;
    }
    let help = format!(
        "Reservations, settlements and extensions of holds {whose}, by outcome. The outcomes expired and unknown are of \
         settlements and extensions that came after their hold had ended."
    );
    operations(text, names.operations, &help, &all);
    let help = format!(
        "Units of holds {whose}: held is set aside by reservations and extensions, settled is charged by settlements, \
         excess is the part of settled that was beyond the holds, cut was used beyond the holds and not charged."
    );
    units(text, names.units, &help, &all);
    let flows: Vec<_> = all.iter().map(|(labels, tally)| (labels, tally.flow())).collect();
    let help = format!(
        "Open holds {whose} that this server reserved, less those that it ended. The sum over all servers of a store is \
         the number of open holds."
    );
    open(text, names.open_holds, &help, &flows, HoldFlow::holds);
    let help = format!(
        "Units of open holds {whose} that this server set aside, less those that it settled. The sum over all servers of \
         a store is the number of units that are held."
    );
    open(text, names.held_units, &help, &flows, HoldFlow::units);
    let help = format!(
        "Holds {whose} whose expiry has passed: reserved by this server, and ended by this server before. The sum of \
         reserved over all servers of a store, less the sum of ended, is the number of holds that expired unsettled."
    );
    past(text, names.past_holds, &help, &flows, |count| count.holds);
    let help = format!(
        "Units of holds {whose} whose expiry has passed: reserved by this server, and ended by this server before. The \
         sum of reserved over all servers of a store, less the sum of ended, is the number of units that expired unsettled."
    );
    past(text, names.past_units, &help, &flows, |count| count.units);
}

/// The labels of a rule or a limit, and its counts of holds by their expiry.
type LabelledFlow<'f> = (&'f Vec<(&'static str, &'f str)>, FlowByExpiry);

/// Writes what is open.
fn open(
    text: &mut MetricsText,
    name: &'static str,
    help: &str,
    all: &[LabelledFlow<'_>],
    of: impl Fn(&HoldFlow) -> i128,
) {
    text.metric(name, MetricKind::Gauge, help);
    for (labels, flow) in all {
        text.sample(labels, of(&flow.open));
    }
}

/// Writes what was reserved and what has ended of the holds whose expiry has passed.
fn past(
    text: &mut MetricsText,
    name: &'static str,
    help: &str,
    all: &[LabelledFlow<'_>],
    of: impl Fn(HoldCount) -> u64,
) {
    text.metric(name, MetricKind::Counter, help);
    for (labels, FlowByExpiry { past, .. }) in all {
        for (kind, count) in [("reserved", past.reserved), ("ended", past.ended)] {
            text.sample(&[&labels[..], &[("kind", kind)]].concat(), of(count));
        }
    }
}

fn operations(text: &mut MetricsText, name: &'static str, help: &str, all: &[LabelledTally<'_>]) {
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
    text.metric(name, MetricKind::Counter, help);
    for (labels, tally) in all {
        for (of, units) in tally.units() {
            text.sample(&[&labels[..], &[("kind", of.name())]].concat(), units);
        }
    }
}
