//! What one descriptor is told: of all its rules, the one that a client should watch.

use std::cmp::Reverse;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tollgate::rules::RulePart;

use super::{DAY, HOUR, MINUTE, MONTH, SECOND, WEEK, YEAR};
use crate::grpc::protobuf::Message;

/// Codes of an answer, and of a status.
pub(super) const OK: u64 = 1;
pub(super) const OVER_LIMIT: u64 = 2;

/// What one descriptor is told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shown<'r> {
    /// No rule applies to it.
    Unmatched,
    /// Only rules apply to it that watch.
    Watched,
    /// The tightest rule: the one that refuses the request for longest, or else fits the fewest more such requests;
    /// among equals the one that resets last.
    By(RulePart<'r>),
}

impl<'r> Shown<'r> {
    /// One more rule applies.
    pub(super) fn and(self, part: RulePart<'r>) -> Shown<'r> {
        match self {
            _ if part.is_shadow() && !matches!(self, Shown::By(_)) => Shown::Watched,
            _ if part.is_shadow() => self,
            Shown::By(other) if tightness(&other) <= tightness(&part) => self,
            _ => Shown::By(part),
        }
    }
}

/// The less, the tighter. One without a limit that lets requests go says least.
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

/// A `DescriptorStatus`.
pub(super) fn write(status: &mut Message<'_>, shown: &Shown<'_>) {
    let Shown::By(part) = shown else {
        return status.number(1, OK);
    };
    status.number(1, code(part.is_allowed()));
    let (Some(limit), Some(decision)) = (part.limit(), part.decision()) else { return };
    // Who was let go because the store failed can be told nothing that is true.
    if decision.is_degraded() && decision.is_allowed() {
        return;
    }
    status.message(2, |own| {
        own.number(1, most(decision.limit()));
        own.number(2, unit(Duration::from_micros(limit.bound().interval_us)) as u64);
        own.bytes(3, part.name().name());
    });
    status.number(3, most(decision.remaining()));
    // Envoy cuts off what is less than a second.
    status.message(4, |reset| reset.number(1, seconds(decision.reset_after())));
}

/// Numbers of Envoy's have 32 bits.
fn most(units: u64) -> u64 {
    units.min(u32::MAX.into())
}

/// What a limit counts in, if Envoy has a word for it.
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

pub(super) fn code(is_allowed: bool) -> u64 {
    if is_allowed { OK } else { OVER_LIMIT }
}

/// Whole seconds, rounded up.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
