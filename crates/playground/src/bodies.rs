//! The requests to an algorithm, and the answers, as JSON.

use serde::{Deserialize, Serialize};
use tollgate::{Decision, EndedHold, HoldSettlement, Scope};
use utoipa::ToSchema;

use super::algorithm::AlgorithmParameters;
use super::fields::{WholeNumber, number, object, present};

/// The body of a request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundRequest)]
pub struct RequestBody {
    /// The parameters that differ from the defaults.
    #[serde(default, deserialize_with = "object")]
    pub(super) config: Option<AlgorithmParameters>,
}

/// The body of a burst.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundBurst)]
pub struct BurstBody {
    /// The parameters that differ from the defaults.
    #[serde(default, deserialize_with = "object")]
    pub(super) config: Option<AlgorithmParameters>,
    /// The number of requests.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 50, default = 10)]
    pub(super) count: Option<WholeNumber>,
}

/// The decision of an algorithm.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schema(as = PlaygroundDecision)]
pub struct AnswerJson {
    /// Whether the request is allowed.
    allowed: bool,
    /// The number of further requests that would be allowed at this instant.
    #[schema(example = 9)]
    remaining: u64,
    /// The limit's size.
    #[schema(example = 10)]
    limit: u64,
    /// The seconds after which a refused request would be allowed; null for an allowed request.
    #[schema(required)]
    retry_after: Option<f64>,
    /// The seconds by which an allowed request is delayed; null unless requests are shaped.
    #[schema(required)]
    delay: Option<f64>,
}

impl AnswerJson {
    pub(super) fn new(decision: &Decision, scope: &Scope) -> AnswerJson {
        let is_delayed = decision.is_allowed() && scope.limit().is_shaping();
        AnswerJson {
            allowed: decision.is_allowed(),
            remaining: decision.remaining(),
            limit: decision.limit(),
            retry_after: decision.retry_after().map(|wait| wait.as_secs_f64()),
            delay: is_delayed.then(|| decision.delay().as_secs_f64()),
        }
    }
}

/// The body of a reservation.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundReserve)]
pub struct PlaygroundReserveBody {
    /// The parameters that differ from the defaults.
    #[serde(default, deserialize_with = "object")]
    pub(super) config: Option<AlgorithmParameters>,
    /// The units to hold.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 1000, default = 1)]
    pub(super) units: Option<WholeNumber>,
    /// How long they are held unless the hold is settled before. By default 10, or `holdSeconds` under concurrency.
    #[serde(default, deserialize_with = "number")]
    #[schema(value_type = f64, required = false, minimum = 0.1, maximum = 3600)]
    pub(super) seconds: Option<f64>,
}

/// The decision on a reservation.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schema(as = PlaygroundReservation)]
pub struct PlaygroundReservationJson {
    /// Whether the units are held.
    allowed: bool,
    /// The number of units that could be spent or held at this instant.
    #[schema(example = 7)]
    remaining: u64,
    /// The limit's size.
    #[schema(example = 10)]
    limit: u64,
    /// The seconds after which a refused reservation would be admitted, if the open holds are left to expire; null for
    /// an admitted one, and if waiting does not help.
    #[schema(required)]
    retry_after: Option<f64>,
    /// The number of the hold in this session, with which it is settled; null for a refused reservation.
    #[schema(required, example = 1)]
    hold: Option<u64>,
    /// The seconds after which the hold expires: its units are then spent, or free under concurrency.
    #[schema(required, example = 10.0)]
    expires_in: Option<f64>,
}

impl PlaygroundReservationJson {
    /// Makes the answer to a reservation. `hold` is the number of the hold, and the seconds until it expires.
    pub(super) fn new(decision: &Decision, hold: Option<(u64, f64)>) -> PlaygroundReservationJson {
        PlaygroundReservationJson {
            allowed: decision.is_allowed(),
            remaining: decision.remaining(),
            limit: decision.limit(),
            retry_after: decision.retry_after().map(|wait| wait.as_secs_f64()),
            hold: hold.map(|(number, _)| number),
            expires_in: hold.map(|(_, seconds)| seconds),
        }
    }
}

/// The body of a settlement.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundSettle)]
pub struct PlaygroundSettleBody {
    /// The number of the hold.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = u64, required = true, maximum = 9_007_199_254_740_991_u64, example = 1)]
    pub(super) hold: Option<WholeNumber>,
    /// The units that were used. Not used under concurrency.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = u64, required = false, maximum = 1000, default = 0)]
    pub(super) used: Option<WholeNumber>,
}

/// The effect of a settlement.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundSettlement)]
pub struct PlaygroundSettlementJson {
    /// Whether the hold was open.
    settled: bool,
    /// Why the hold was not open: `expired`, or `unknown` (settled before, forgotten by a reset, or never reserved).
    #[schema(required)]
    ended: Option<PlaygroundEndedHold>,
    /// The units that were charged.
    #[schema(example = 2)]
    charged: u64,
    /// The charged units that were beyond the hold.
    #[schema(example = 0)]
    excess: u64,
    /// The used units that were not charged, because at most one whole limit is charged beyond a hold.
    #[schema(example = 0)]
    cut: u64,
}

/// Why a hold is not open.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum PlaygroundEndedHold {
    Expired,
    Unknown,
}

impl PlaygroundSettlementJson {
    /// Makes the answer for a hold that the session does not have.
    pub(super) const UNKNOWN: PlaygroundSettlementJson = PlaygroundSettlementJson {
        settled: false,
        ended: Some(PlaygroundEndedHold::Unknown),
        charged: 0,
        excess: 0,
        cut: 0,
    };

    pub(super) fn new(settled: &HoldSettlement) -> PlaygroundSettlementJson {
        PlaygroundSettlementJson {
            settled: settled.ended().is_none(),
            ended: settled.ended().map(|ended| match ended {
                EndedHold::Expired => PlaygroundEndedHold::Expired,
                EndedHold::Unknown => PlaygroundEndedHold::Unknown,
            }),
            charged: settled.charged_units(),
            excess: settled.excess_units(),
            cut: settled.cut_units(),
        }
    }
}

/// The answer after the counters were reset.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundReset)]
pub struct ResetJson {
    /// Always true.
    #[schema(example = true)]
    pub(super) ok: bool,
}
