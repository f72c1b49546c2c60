//! The status of one descriptor, which shows the tightest of its rules.

use std::cmp::Reverse;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tollgate::rules::RulePart;

use super::{DAY, HOUR, MINUTE, MONTH, SECOND, WEEK, YEAR};
use crate::grpc::protobuf::MessageWriter;

/// Codes of an answer, and of a status.
pub(super) const OK: u64 = 1;
pub(super) const OVER_LIMIT: u64 = 2;

/// The status of one descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) enum DescriptorStatus<'r> {
    /// No rule applies to it.
    Unmatched,
    /// Only shadow rules apply to it.
    ShadowOnly,
    /// The tightest rule: the one that refuses the request for longest, or else allows the fewest more such
    /// requests. Among equals, the one that resets last.
    Decided(RulePart<'r>),
}

impl<'r> DescriptorStatus<'r> {
    /// Adds one more rule that applies.
    pub(super) fn and(self, part: RulePart<'r>) -> DescriptorStatus<'r> {
        match self {
            _ if part.is_shadow() && !matches!(self, DescriptorStatus::Decided(_)) => {
                DescriptorStatus::ShadowOnly
            }
            _ if part.is_shadow() => self,
            DescriptorStatus::Decided(other) if tightness(&other) <= tightness(&part) => self,
            _ => DescriptorStatus::Decided(part),
        }
    }
}

/// Returns a value that is less for tighter rules. A rule that allows requests without a limit has the largest value.
fn tightness(part: &RulePart<'_>) -> (bool, Reverse<Duration>, u64, Reverse<Duration>) {
    let decision = part.decision();
    let requests = decision.map_or(u64::MAX, |own| own.remaining() / part.cost().max(1));
    let wait = match (part.is_allowed(), decision.and_then(|own| own.retry_after())) {
        (true, _) => Duration::ZERO,
        (false, Some(wait)) => wait,
        // Waiting does not help.
        (false, None) => Duration::MAX,
    };
    let reset = decision.map_or(Duration::ZERO, |own| own.reset_after());
    (part.is_allowed(), Reverse(wait), requests, Reverse(reset))
}

/// Writes a `DescriptorStatus` of Envoy's protocol.
pub(super) fn write(to: &mut MessageWriter<'_>, status: &DescriptorStatus<'_>) {
    let DescriptorStatus::Decided(part) = status else {
        return to.number(1, OK);
    };
    to.number(1, code(part.is_allowed()));
    let (Some(limit), Some(decision)) = (part.limit(), part.decision()) else { return };
    // For a request that was allowed because the store failed, no numbers are known.
    if decision.is_degraded() && decision.is_allowed() {
        return;
    }
    to.message(2, |own| {
        own.number(1, in_32_bits(decision.limit()));
        own.number(2, unit(Duration::from_micros(limit.bound().interval_us)) as u64);
        own.bytes(3, part.name().name());
    });
    to.number(3, in_32_bits(decision.remaining()));
    // Rounded up, because Envoy cuts off fractions of a second.
    to.message(4, |reset| reset.number(1, seconds(decision.reset_after())));
}

/// Limits a number to the 32 bits of Envoy's protocol.
fn in_32_bits(units: u64) -> u64 {
    units.min(u32::MAX.into())
}

/// Returns Envoy's unit for a window; `Unknown` if it has none.
fn unit(window: Duration) -> Unit {
    match window {
        SECOND => Unit::Second,
        MINUTE => Unit::Minute,
        HOUR => Unit::Hour,
        DAY => Unit::Day,
        WEEK => Unit::Week,
        MONTH => Unit::Month,
        YEAR => Unit::Year,
        _ => Unit::Unknown,
    }
}

/// Returns the code of a decision.
pub(super) fn code(is_allowed: bool) -> u64 {
    if is_allowed { OK } else { OVER_LIMIT }
}

/// Returns a time in whole seconds, rounded up.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
