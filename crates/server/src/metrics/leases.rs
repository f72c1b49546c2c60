//! The metrics of leases, for a store that has leases.

use tollgate::{LeaseCounters, Limiter};

use super::text::{MetricKind, MetricsText};

/// Writes what the leases of this process did. Nothing is written for a store without leases.
pub(super) fn write(text: &mut MetricsText, limiter: &Limiter) {
    if !limiter.is_local() && limiter.has_leases() {
        counters(text, &limiter.lease_counters());
    }
}

fn counters(text: &mut MetricsText, counters: &LeaseCounters) {
    let help = "Leases that this process holds.";
    text.single("tollgate_leases", MetricKind::Gauge, help, counters.held);
    let help = "Units of leases: leased was set aside by the store, used was spent by checks, refunded is the part of used \
                that was refunded, returned was given back unused, expired was unused when its lease ended by its time, and is charged.";
    text.metric("tollgate_lease_units_total", MetricKind::Counter, help);
    for (kind, units) in [
        ("leased", counters.leased_units),
        ("used", counters.used_units),
        ("refunded", counters.refunded_units),
        ("returned", counters.returned_units),
        ("expired", counters.expired_units),
    ] {
        text.sample(&[("kind", kind)], units);
    }
    let help = "Checks that a lease decided without a call of the store: a hit is admitted with leased units, a refusal comes \
                while a lease is empty and its process does not yet ask the store again.";
    text.metric("tollgate_lease_decisions_total", MetricKind::Counter, help);
    text.sample(&[("outcome", "hit")], counters.hits);
    text.sample(&[("outcome", "refusal")], counters.refusals);
    let help = "Calls of the store about leases, by what they did: check decided a check, background renewed or ended a lease.";
    text.metric("tollgate_lease_store_calls_total", MetricKind::Counter, help);
    text.sample(&[("kind", "check")], counters.asks);
    text.sample(&[("kind", "background")], counters.background_calls);
    let help = "Calls of the store about leases that failed.";
    let name = "tollgate_lease_store_failures_total";
    text.single(name, MetricKind::Counter, help, counters.failures);
    let help = "Calls of the store that leases have saved since the start: hits and refusals, less background calls.";
    let saved = counters.calls_saved();
    text.single("tollgate_lease_store_calls_saved", MetricKind::Gauge, help, saved);
}
