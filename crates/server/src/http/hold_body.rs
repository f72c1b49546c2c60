//! Decodes the bodies of reservations, settlements and extensions.

use std::time::Duration;

use serde::Deserialize;
use tollgate::Error;
use tollgate_core::{HoldTime, parse_duration};

use super::ApiProblem;
use super::check_body::{
    BorrowedText, JsonInteger, TargetFields, is_object, not_null, target, units,
};
use crate::pipeline::{ExtensionRequest, ReservationRequest, SettlementRequest};
use crate::trust::Pairs;

const RESERVE_EXAMPLES: &str = "send {\"limit\":\"tpm\",\"key\":\"team:7\",\"cost\":1000,\"for\":\"30s\"} or \
                                {\"domain\":\"api\",\"attributes\":{\"ip\":\"203.0.113.9\"}}; `domain` may be left out \
                                if the rules have only one";

/// The fields of a reservation. None may be `null`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReserveFields<'a> {
    #[serde(borrow, default, deserialize_with = "not_null")]
    limit: Option<BorrowedText<'a>>,
    #[serde(borrow, default, deserialize_with = "not_null")]
    key: Option<BorrowedText<'a>>,
    #[serde(borrow, default, deserialize_with = "not_null")]
    domain: Option<BorrowedText<'a>>,
    #[serde(borrow, default, deserialize_with = "not_null")]
    attributes: Option<Pairs<'a>>,
    #[serde(borrow, default, deserialize_with = "not_null")]
    verified: Option<Pairs<'a>>,
    #[serde(borrow, default, deserialize_with = "not_null")]
    said: Option<Pairs<'a>>,
    #[serde(default, deserialize_with = "not_null")]
    cost: Option<JsonInteger>,
    #[serde(borrow, default, rename = "for", deserialize_with = "not_null")]
    hold_for: Option<BorrowedText<'a>>,
}

/// The fields of a settlement.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettleFields<'a> {
    #[serde(borrow)]
    hold: BorrowedText<'a>,
    cost: JsonInteger,
    #[serde(default)]
    keep: bool,
}

/// The fields of an extension.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtendFields<'a> {
    #[serde(borrow)]
    hold: BorrowedText<'a>,
    #[serde(default, deserialize_with = "not_null")]
    cost: Option<JsonInteger>,
    #[serde(borrow, rename = "for")]
    hold_for: BorrowedText<'a>,
}

/// Decodes the body of a reservation, or a reservation of a batch.
pub(crate) fn decode_reserve(json: &[u8]) -> Result<ReservationRequest<'_>, ApiProblem> {
    let example = || format!("a reservation must be a JSON object; {RESERVE_EXAMPLES}");
    let fields: ReserveFields<'_> = object(json, example)?;
    let ReserveFields { limit, key, domain, attributes, verified, said, cost, hold_for } = fields;
    let named = TargetFields { limit, key, domain, attributes, verified, said };
    Ok(ReservationRequest {
        target: target(named, RESERVE_EXAMPLES)?,
        cost: units(cost)?,
        hold_for: hold_for.map(|text| hold_time(&text)).transpose()?,
    })
}

/// Decodes the body of a settlement, or a settlement of a batch.
pub(crate) fn decode_settle(json: &[u8]) -> Result<SettlementRequest<'_>, ApiProblem> {
    let example =
        || "a settlement must be a JSON object; send {\"hold\":\"…\",\"cost\":812}".to_owned();
    let SettleFields { hold, cost, keep } = object(json, example)?;
    Ok(SettlementRequest { token: hold.0, used: cost.0, keeps_rest: keep })
}

/// Decodes the body of an extension, or an extension of a batch.
pub(crate) fn decode_extend(json: &[u8]) -> Result<ExtensionRequest<'_>, ApiProblem> {
    let example = || {
        "an extension must be a JSON object; send {\"hold\":\"…\",\"cost\":500,\"for\":\"30s\"}"
            .to_owned()
    };
    let ExtendFields { hold, cost, hold_for } = object(json, example)?;
    let more = cost.map_or(0, |cost| cost.0);
    Ok(ExtensionRequest { token: hold.0, more, hold_for: hold_time(&hold_for)? })
}

fn object<'a, T: Deserialize<'a>>(
    json: &'a [u8],
    example: impl FnOnce() -> String,
) -> Result<T, ApiProblem> {
    if !is_object(json) {
        return Err(ApiProblem::bad_request(example()));
    }
    serde_json::from_slice(json).map_err(|error| ApiProblem::in_json(&error))
}

/// Reads how long units are held, such as `30s`.
fn hold_time(text: &BorrowedText<'_>) -> Result<Duration, ApiProblem> {
    let time = parse_duration("for", &text.0).map_err(Error::from)?;
    HoldTime::try_from(time).map_err(|error| ApiProblem::bad_request(format!("for: {error}")))?;
    Ok(time)
}
