//! Answers to reservations, settlements and extensions, as JSON.

use serde::Serialize;
use tollgate::{Decision, EndedHold};
use utoipa::ToSchema;

use super::decision::RulingJson;
use super::json_object::{append, is_false, micros};
use crate::pipeline::{Extended, ExtendedPart, GrantedHold, Reserved, Settled, SettledPart};
use crate::receipt::HeldBy;

/// The decision on a reservation, with the hold if it is allowed.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Reservation)]
pub(super) struct ReservationJson {
    /// Whether the units are held.
    allowed: bool,
    /// The limit's size: its `limit` or `capacity`.
    #[schema(example = 10_000)]
    limit: u64,
    /// The largest cost that would be allowed at the same instant. Held units count as spent.
    #[schema(example = 9_000)]
    remaining: u64,
    /// The exact time that a refused reservation must wait if nothing else arrives and the open holds are left to expire.
    /// Null if it was allowed, or if waiting cannot help.
    #[schema(required)]
    retry_after_us: Option<u64>,
    /// The exact time until nothing is spent or held, if the open holds are left to expire.
    reset_after_us: u64,
    /// Always 0: a limit that delays requests cannot have holds.
    delay_us: u64,
    /// Whether the store failed, and this was decided without it: the units are held on this server's share of the limit, or
    /// nowhere, as the failure policy says. Only this server can settle units on its share.
    #[serde(skip_serializing_if = "is_false")]
    degraded: bool,
    /// The token of the hold, with which it is settled and extended; absent if the reservation was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 4096)]
    hold: Option<String>,
    /// The time until the hold expires and is charged in full; absent if the reservation was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = 30_000_000)]
    hold_expires_after_us: Option<u64>,
}

/// The effect of a settlement, and what remains after it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Settlement)]
pub(super) struct SettlementJson {
    /// Whether the hold was open. If not, nothing was charged, and `hold_state` says why.
    allowed: bool,
    /// The limit's size: its `limit` or `capacity`.
    #[schema(example = 10_000)]
    limit: u64,
    /// The largest cost that would be allowed at the same instant. 0 while the key is in debt.
    #[schema(example = 9_188)]
    remaining: u64,
    /// Always null.
    #[schema(required)]
    retry_after_us: Option<u64>,
    /// The exact time until nothing is spent or held, if the open holds are left to expire.
    reset_after_us: u64,
    /// Always 0.
    delay_us: u64,
    /// Whether the hold was admitted while the store failed, so that nothing was charged there.
    #[serde(skip_serializing_if = "is_false")]
    degraded: bool,
    /// The units that this settlement charged.
    #[schema(example = 812)]
    charged: u64,
    /// How many of the charged units were beyond the hold.
    excess: u64,
    /// The units that were used and not charged, because at most one whole limit is charged beyond a hold.
    cut: u64,
    /// The receipt to refund the charge with; absent if nothing was charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    receipt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    hold_state: Option<HoldStateJson>,
}

/// The decision on an extension, with the new token of the hold if it is allowed.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Extension)]
pub(super) struct ExtensionJson {
    /// Whether the hold is now as large and as long as requested. If not, it is as it was.
    allowed: bool,
    /// The limit's size: its `limit` or `capacity`.
    #[schema(example = 10_000)]
    limit: u64,
    /// The largest cost that would be allowed at the same instant. Held units count as spent.
    #[schema(example = 8_500)]
    remaining: u64,
    /// The exact time that a refused extension must wait if nothing else arrives and the open holds are left to expire.
    /// Null if it was allowed, or if waiting cannot help.
    #[schema(required)]
    retry_after_us: Option<u64>,
    /// The exact time until nothing is spent or held, if the open holds are left to expire.
    reset_after_us: u64,
    /// Always 0: a limit that delays requests cannot have holds.
    delay_us: u64,
    /// Whether the hold was admitted while the store failed, so that nothing was extended there.
    #[serde(skip_serializing_if = "is_false")]
    degraded: bool,
    /// The token of the hold with its new expiry; absent if it was not extended. The earlier token works as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 4096)]
    hold: Option<String>,
    /// The time until the hold expires; absent if it was not extended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = 30_000_000)]
    hold_expires_after_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    hold_state: Option<HoldStateJson>,
}

/// Why the hold is not open: `expired` if its last expiry has passed, so that it was charged in full; `unknown` if it was
/// settled before, or forgotten because its key was reset or the store has lost its state. Absent if it was open.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = HoldState)]
pub(super) enum HoldStateJson {
    Expired,
    Unknown,
}

impl From<EndedHold> for HoldStateJson {
    fn from(ended: EndedHold) -> HoldStateJson {
        match ended {
            EndedHold::Expired => HoldStateJson::Expired,
            EndedHold::Unknown => HoldStateJson::Unknown,
        }
    }
}

/// Returns the token and the time until the expiry.
fn split(granted: Option<GrantedHold>) -> (Option<String>, Option<u64>) {
    match granted {
        Some(GrantedHold { token, expires_after }) => (Some(token), expires_after.map(micros)),
        None => (None, None),
    }
}

/// Appends the answer to a reservation as JSON.
pub(super) fn write_reserved(reserved: Reserved, to: &mut Vec<u8>) {
    match reserved {
        Reserved::Limit { decision, granted } => {
            append(to, &ReservationJson::of(&decision, granted));
        }
        Reserved::Rules { ruling, receipt, granted } => {
            let (hold, hold_expires_after_us) = split(granted);
            let answer = RulingJson::from(&ruling).with_receipt(receipt);
            answer.with_hold(hold, hold_expires_after_us).write(to);
        }
    }
}

impl ReservationJson {
    fn of(decision: &Decision, granted: Option<GrantedHold>) -> ReservationJson {
        let decided = decision.decided();
        let (hold, hold_expires_after_us) = split(granted);
        ReservationJson {
            allowed: decided.is_allowed(),
            limit: decided.limit,
            remaining: decided.remaining,
            retry_after_us: decided.retry_after_us(),
            reset_after_us: decided.reset_after_us,
            delay_us: decided.delay_us(),
            degraded: decision.is_degraded(),
            hold,
            hold_expires_after_us,
        }
    }
}

/// The settlement of a hold of rules.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RulesSettlement)]
pub(super) struct RulesSettlementJson {
    /// Whether the hold was open for every rule.
    allowed: bool,
    /// Whether the hold of a rule was admitted while the store failed, so that nothing was charged there.
    #[serde(skip_serializing_if = "is_false")]
    degraded: bool,
    /// The units that this settlement charged, over all rules.
    charged: u64,
    /// How many of the charged units were beyond the hold.
    excess: u64,
    /// The units that were used and not charged.
    cut: u64,
    /// The receipt to refund all charges with; absent if nothing was charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    receipt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    hold_state: Option<HoldStateJson>,
    /// The rules whose units were held.
    #[schema(max_items = 256)]
    rules: Vec<RuleSettlementJson>,
}

/// The settlement of one rule's part of a hold.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RuleSettlement)]
struct RuleSettlementJson {
    /// The rule's name.
    #[schema(example = "per-client")]
    rule: String,
    /// Whether this part was open.
    allowed: bool,
    /// The limit's size.
    limit: u64,
    /// The largest cost that would be allowed at the same instant.
    remaining: u64,
    /// The exact time until nothing is spent or held, if the open holds are left to expire.
    reset_after_us: u64,
    /// Whether this part was admitted while the store failed, so that nothing was charged there.
    #[serde(skip_serializing_if = "is_false")]
    degraded: bool,
    /// The units that this settlement charged.
    charged: u64,
    /// How many of the charged units were beyond the hold.
    excess: u64,
    /// The units that were used and not charged.
    cut: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    hold_state: Option<HoldStateJson>,
}

/// The decision on an extension of a hold of rules: it is extended for all of them, or for none.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RulesExtension)]
pub(super) struct RulesExtensionJson {
    /// Whether the hold is now as large and as long as requested. If not, it is as it was.
    allowed: bool,
    /// The exact time that a refused extension must wait. Null if it was allowed, or if waiting cannot help.
    #[schema(required)]
    retry_after_us: Option<u64>,
    /// Whether the hold of a rule was admitted while the store failed, so that nothing was extended there.
    #[serde(skip_serializing_if = "is_false")]
    degraded: bool,
    /// The token of the hold with its new expiry; absent if it was not extended. The earlier token works as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 4096)]
    hold: Option<String>,
    /// The time until the hold expires; absent if it was not extended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    hold_expires_after_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    hold_state: Option<HoldStateJson>,
    /// The rules whose units are held.
    #[schema(max_items = 256)]
    rules: Vec<RuleExtensionJson>,
}

/// The decision of one rule on an extension.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RuleExtension)]
struct RuleExtensionJson {
    /// The rule's name.
    #[schema(example = "per-client")]
    rule: String,
    /// Whether this rule allows the extension; another rule may refuse it.
    allowed: bool,
    /// The limit's size.
    limit: u64,
    /// The largest cost that would be allowed at the same instant.
    remaining: u64,
    /// The time for which this rule refuses the extension; null if it does not, or if waiting cannot help.
    #[schema(required)]
    retry_after_us: Option<u64>,
    /// The exact time until nothing is spent or held, if the open holds are left to expire.
    reset_after_us: u64,
    /// Whether this part was admitted while the store failed, so that nothing was extended there.
    #[serde(skip_serializing_if = "is_false")]
    degraded: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    hold_state: Option<HoldStateJson>,
}

/// The answer to a settlement.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = SettleAnswer)]
pub(super) enum SettleAnswerJson {
    Limit(SettlementJson),
    Rules(RulesSettlementJson),
}

/// The answer to an extension.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = ExtendAnswer)]
pub(super) enum ExtendAnswerJson {
    Limit(ExtensionJson),
    Rules(RulesExtensionJson),
}

impl From<Settled> for SettleAnswerJson {
    fn from(Settled { by, mut parts, receipt }: Settled) -> SettleAnswerJson {
        match (by, parts.pop()) {
            (HeldBy::Limit, Some(part)) => {
                SettleAnswerJson::Limit(SettlementJson::of(part, receipt))
            }
            (_, last) => {
                parts.extend(last);
                SettleAnswerJson::Rules(RulesSettlementJson::of(parts, receipt))
            }
        }
    }
}

impl SettlementJson {
    fn of(part: SettledPart, receipt: Option<String>) -> SettlementJson {
        let decided = part.decision;
        SettlementJson {
            allowed: decided.is_allowed(),
            limit: decided.limit,
            remaining: decided.remaining,
            retry_after_us: decided.retry_after_us(),
            reset_after_us: decided.reset_after_us,
            delay_us: decided.delay_us(),
            degraded: part.is_degraded,
            charged: part.charged_units,
            excess: part.excess_units,
            cut: part.cut_units,
            receipt,
            hold_state: part.ended.map(HoldStateJson::from),
        }
    }
}

impl RulesSettlementJson {
    fn of(parts: Vec<SettledPart>, receipt: Option<String>) -> RulesSettlementJson {
        let sum = |units: fn(&SettledPart) -> u64| {
            parts.iter().fold(0_u64, |sum, part| sum.saturating_add(units(part)))
        };
        RulesSettlementJson {
            allowed: parts.iter().all(|part| part.ended.is_none()),
            degraded: parts.iter().any(|part| part.is_degraded),
            charged: sum(|part| part.charged_units),
            excess: sum(|part| part.excess_units),
            cut: sum(|part| part.cut_units),
            receipt,
            hold_state: first_state(parts.iter().map(|part| part.ended)),
            rules: parts.into_iter().map(RuleSettlementJson::from).collect(),
        }
    }
}

impl From<SettledPart> for RuleSettlementJson {
    fn from(part: SettledPart) -> RuleSettlementJson {
        let decided = part.decision;
        RuleSettlementJson {
            rule: part.name,
            allowed: decided.is_allowed(),
            limit: decided.limit,
            remaining: decided.remaining,
            reset_after_us: decided.reset_after_us,
            degraded: part.is_degraded,
            charged: part.charged_units,
            excess: part.excess_units,
            cut: part.cut_units,
            hold_state: part.ended.map(HoldStateJson::from),
        }
    }
}

impl From<Extended> for ExtendAnswerJson {
    fn from(extended: Extended) -> ExtendAnswerJson {
        let Extended { by, mut parts, granted, retry_after } = extended;
        let allowed = granted.is_some();
        let (hold, hold_expires_after_us) = split(granted);
        match (by, parts.pop()) {
            (HeldBy::Limit, Some(part)) => {
                let decided = part.decision;
                ExtendAnswerJson::Limit(ExtensionJson {
                    allowed,
                    limit: decided.limit,
                    remaining: decided.remaining,
                    retry_after_us: decided.retry_after_us(),
                    reset_after_us: decided.reset_after_us,
                    delay_us: decided.delay_us(),
                    degraded: part.is_degraded,
                    hold,
                    hold_expires_after_us,
                    hold_state: part.ended.map(HoldStateJson::from),
                })
            }
            (_, last) => {
                parts.extend(last);
                ExtendAnswerJson::Rules(RulesExtensionJson {
                    allowed,
                    retry_after_us: retry_after.map(micros),
                    degraded: parts.iter().any(|part| part.is_degraded),
                    hold,
                    hold_expires_after_us,
                    hold_state: first_state(parts.iter().map(|part| part.ended)),
                    rules: parts.into_iter().map(RuleExtensionJson::from).collect(),
                })
            }
        }
    }
}

impl From<ExtendedPart> for RuleExtensionJson {
    fn from(part: ExtendedPart) -> RuleExtensionJson {
        let decided = part.decision;
        RuleExtensionJson {
            rule: part.name,
            allowed: decided.is_allowed(),
            limit: decided.limit,
            remaining: decided.remaining,
            retry_after_us: decided.retry_after_us(),
            reset_after_us: decided.reset_after_us,
            degraded: part.is_degraded,
            hold_state: part.ended.map(HoldStateJson::from),
        }
    }
}

/// Returns why a hold is not open: the state of the first part that is not.
fn first_state(ended: impl Iterator<Item = Option<EndedHold>>) -> Option<HoldStateJson> {
    ended.flatten().next().map(HoldStateJson::from)
}
