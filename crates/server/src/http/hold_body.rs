//! Decodes the bodies of reservations, settlements and extensions.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use tollgate::Error;
use tollgate_core::{HoldTime, parse_duration};

use super::ApiProblem;
use super::check_body::{
    BorrowedText, JsonInteger, TargetFields, is_object, not_null, target, units,
};
use super::problem::excerpt;
use crate::pipeline::{ExtensionRequest, ReservationRequest, SettlementRequest, UsedUnits};
use crate::trust::Pairs;

const RESERVE_EXAMPLES: &str = "send {\"limit\":\"tpm\",\"key\":\"team:7\",\"cost\":1000,\"for\":\"30s\"} or \
                                {\"domain\":\"api\",\"attributes\":{\"ip\":\"203.0.113.9\"}}; `domain` may be left out \
                                if the rules have only one";

/// The fields of a reservation. None may be `null`.
#[derive(Debug, serde::Deserialize)]
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
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct SettleFields<'a> {
    #[serde(borrow)]
    hold: BorrowedText<'a>,
    #[serde(default, deserialize_with = "not_null")]
    cost: Option<JsonInteger>,
    #[serde(borrow, default)]
    costs: RuleCosts<'a>,
    #[serde(default)]
    keep: bool,
}

/// The units that were used under single rules, by the names of the rules. Each name occurs once.
#[derive(Debug, Default)]
struct RuleCosts<'a>(Vec<(Cow<'a, str>, u64)>);

/// The most rules of a request.
const MAX_RULES: usize = 256;

impl<'de: 'a, 'a> Deserialize<'de> for RuleCosts<'a> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<RuleCosts<'a>, D::Error> {
        struct RuleCostsVisitor;

        impl<'de> Visitor<'de> for RuleCostsVisitor {
            type Value = RuleCosts<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of numbers, such as {\"tokens\":812}")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<RuleCosts<'de>, M::Error> {
                let mut costs = RuleCosts::default();
                while let Some((BorrowedText(rule), JsonInteger(cost))) = map.next_entry()? {
                    if costs.0.iter().any(|(own, _)| *own == rule) {
                        let rule = excerpt(&rule);
                        return Err(M::Error::custom(format!("rule `{rule}` occurs twice")));
                    }
                    if costs.0.len() == MAX_RULES {
                        let problem = format!("too many rules; send at most {MAX_RULES}");
                        return Err(M::Error::custom(problem));
                    }
                    costs.0.push((rule, cost));
                }
                Ok(costs)
            }
        }

        json.deserialize_map(RuleCostsVisitor)
    }
}

/// The fields of an extension.
#[derive(Debug, serde::Deserialize)]
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
    let SettleFields { hold, cost, costs, keep } = object(json, example)?;
    let used = UsedUnits { every: cost.map(|cost| cost.0), by_rule: costs.0 };
    Ok(SettlementRequest { token: hold.0, used, keeps_rest: keep })
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
