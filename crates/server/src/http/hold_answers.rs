//! Answers to reservations, settlements and extensions, as JSON.

use serde::Serialize;
use tollgate::EndedHold;
use utoipa::ToSchema;

use crate::pipeline::{Extended, GrantedHold, Reserved, Settled};

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
    /// Whether the store failed, and this was decided without it. A settlement of such a hold charges nothing.
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
    /// Whether the hold was admitted while the store failed, so that there was nothing to charge.
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
    /// Whether the hold was admitted while the store failed, so that there was nothing to extend.
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

// Serde passes references.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(flag: &bool) -> bool {
    !flag
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
    let granted = granted.map(|GrantedHold { token, expires_after }| {
        // OK because a hold lasts at most 366 days.
        (token, u64::try_from(expires_after.as_micros()).unwrap_or(u64::MAX))
    });
    granted.unzip()
}

impl From<Reserved> for ReservationJson {
    fn from(Reserved { decision, granted }: Reserved) -> ReservationJson {
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

impl From<Settled> for SettlementJson {
    fn from(settled: Settled) -> SettlementJson {
        let decided = settled.decision;
        SettlementJson {
            allowed: decided.is_allowed(),
            limit: decided.limit,
            remaining: decided.remaining,
            retry_after_us: decided.retry_after_us(),
            reset_after_us: decided.reset_after_us,
            delay_us: decided.delay_us(),
            degraded: settled.is_degraded,
            charged: settled.charged_units,
            excess: settled.excess_units,
            cut: settled.cut_units,
            receipt: settled.receipt,
            hold_state: settled.ended.map(HoldStateJson::from),
        }
    }
}

impl From<Extended> for ExtensionJson {
    fn from(extended: Extended) -> ExtensionJson {
        let decided = extended.decision;
        let (hold, hold_expires_after_us) = split(extended.granted);
        ExtensionJson {
            allowed: decided.is_allowed(),
            limit: decided.limit,
            remaining: decided.remaining,
            retry_after_us: decided.retry_after_us(),
            reset_after_us: decided.reset_after_us,
            delay_us: decided.delay_us(),
            degraded: extended.is_degraded,
            hold,
            hold_expires_after_us,
            hold_state: extended.ended.map(HoldStateJson::from),
        }
    }
}
