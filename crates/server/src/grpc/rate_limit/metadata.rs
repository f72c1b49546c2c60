//! Writes the rules that decided as a `google.protobuf.Struct`, for the filters and the log of Envoy.

use tollgate::rules::{RulePart, Ruling};

use crate::grpc::protobuf::MessageWriter;

/// The most rules that are listed: Envoy carries them through all its filters.
const MAX_RULES: usize = 16;

/// Writes the rule that refuses the request, if one does, and each rule that applies, shadow rules too:
/// `{"rule": "per-user", "limit_name": "free", "rules": [{"name": "per-user", "shadow": false, "allowed": false,
/// "remaining": 0}, …]}`. A blocked request has `"reason": "blocked"`, and no `limit_name`.
pub(super) fn write_rules(metadata: &mut MessageWriter<'_>, ruling: &Ruling) {
    if let Some(refuser) = ruling.refused_by() {
        field(metadata, "rule", |value| text(value, refuser.name().name()));
        if let Some(limit) = refuser.limit_name() {
            field(metadata, "limit_name", |value| text(value, limit));
        }
    }
    if ruling.is_blocked() {
        write_reason(metadata, "blocked");
    }
    if ruling.is_leased() {
        field(metadata, "leased", |value| value.flag(4, true));
    }
    if ruling.is_degraded() {
        field(metadata, "degraded", |value| value.flag(4, true));
    }
    field(metadata, "rules", |value| {
        value.message(6, |list| {
            for part in ruling.rules().take(MAX_RULES) {
                list.message(1, |value| value.message(5, |own| rule(own, &part)));
            }
        });
    });
}

/// Writes `{"reason": "store-failed"}`.
pub(super) fn write_reason(metadata: &mut MessageWriter<'_>, reason: &str) {
    field(metadata, "reason", |value| text(value, reason));
}

fn rule(own: &mut MessageWriter<'_>, part: &RulePart<'_>) {
    field(own, "name", |value| text(value, part.name().name()));
    field(own, "shadow", |value| value.flag(4, part.is_shadow()));
    field(own, "allowed", |value| value.flag(4, part.is_allowed()));
    if let Some(decision) = part.decision() {
        // OK because units are below 2^53.
        field(own, "remaining", |value| value.double(2, decision.remaining() as f64));
    }
}

/// Writes an entry of a map: its key and its value.
fn field(to: &mut MessageWriter<'_>, name: &str, write: impl FnOnce(&mut MessageWriter<'_>)) {
    to.message(1, |entry| {
        entry.bytes(1, name);
        entry.message(2, write);
    });
}

fn text(value: &mut MessageWriter<'_>, text: &str) {
    value.bytes(3, text);
}
