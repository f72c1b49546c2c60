//! Decodes the body of a check, which names a limit and a key, or describes a request to the rules of a domain.
//!
//! - `fields`: the fields of the JSON object

mod fields;

use std::time::Duration;

use tollgate_core::Cost;

use fields::CheckFields;
pub(super) use fields::{BorrowedText, JsonInteger, not_null};

use super::ApiProblem;
use super::problem::excerpt;
use crate::pipeline::{DecisionRequest, DecisionTarget, Terms};
use crate::trust::{Description, InvalidDescription, MAX_ATTRIBUTES, Pairs};

/// The most requests of a batch.
pub(super) const MAX_REQUESTS: usize = 1_000;

/// Examples of both forms, for error messages.
const EXAMPLES: &str = "send {\"limit\":\"free\",\"key\":\"user:42\"} or \
                     {\"domain\":\"api\",\"attributes\":{\"ip\":\"203.0.113.9\"}}; `domain` may be left out if the \
                     rules have only one";

/// Decodes the body of a check, or a check of a batch.
pub(crate) fn decode(json: &[u8]) -> Result<DecisionRequest<'_>, ApiProblem> {
    if !is_object(json) {
        return Err(ApiProblem::bad_request(format!("a check must be a JSON object; {EXAMPLES}")));
    }
    let fields = serde_json::from_slice(json).map_err(|error| ApiProblem::in_json(&error))?;
    request(fields)
}

fn request(fields: CheckFields<'_>) -> Result<DecisionRequest<'_>, ApiProblem> {
    let CheckFields { limit, key, domain, attributes, verified, said, cost, max_wait_us } = fields;
    let named = TargetFields { limit, key, domain, attributes, verified, said };
    let target = target(named, EXAMPLES)?;
    let max_wait = max_wait_us.map(|wait| Duration::from_micros(wait.0));
    Ok(DecisionRequest { target, terms: Terms { cost: units(cost)?, max_wait } })
}

/// The fields that name a limit and a key, or describe a request.
pub(super) struct TargetFields<'a> {
    pub(super) limit: Option<BorrowedText<'a>>,
    pub(super) key: Option<BorrowedText<'a>>,
    pub(super) domain: Option<BorrowedText<'a>>,
    pub(super) attributes: Option<Pairs<'a>>,
    pub(super) verified: Option<Pairs<'a>>,
    pub(super) said: Option<Pairs<'a>>,
}

/// Returns the target of a request. If the fields have none, the problem shows `examples`.
pub(super) fn target<'a>(
    fields: TargetFields<'a>,
    examples: &'static str,
) -> Result<DecisionTarget<'a>, ApiProblem> {
    let TargetFields { limit, key, domain, attributes, verified, said } = fields;
    let is_described = attributes.is_some() || verified.is_some() || said.is_some();
    match (limit, key, domain) {
        (Some(name), Some(key), None) if !is_described => {
            Ok(DecisionTarget::Limit { name: name.0, key: key.0 })
        }
        (None, None, domain) if domain.is_some() || attributes.is_some() => {
            let [attributes, verified, said] =
                [attributes, verified, said].map(Option::unwrap_or_default);
            let description = Description::new(attributes, verified, said)?;
            Ok(DecisionTarget::Rules { domain: domain.map(|domain| domain.0), description })
        }
        (limit, key, domain) => Err(ApiProblem::bad_request(match (limit, key, domain) {
            (Some(_), Some(_), None) => {
                "a request by `limit` and `key` takes no attributes; remove the attributes, \
                 or remove `limit` and `key`"
            }
            (Some(_), None, None) => "`key` is missing; send the key to limit, such as \"user:42\"",
            (None, Some(_), None) => "`limit` is missing; GET /v1/limits lists the limits",
            (None, None, _) => examples,
            (_, _, Some(_)) => {
                "the rules of a domain choose the limits and make the keys; remove `domain`, \
                 or remove `limit` and `key`"
            }
        })),
    }
}

/// Returns the units of a cost, which must be at least 1.
pub(super) fn units(cost: Option<JsonInteger>) -> Result<Option<u64>, ApiProblem> {
    let cost = cost.map(|cost| Cost::new(cost.0)).transpose().map_err(tollgate::Error::from)?;
    Ok(cost.map(Cost::units))
}

impl From<InvalidDescription> for ApiProblem {
    fn from(invalid: InvalidDescription) -> ApiProblem {
        ApiProblem::bad_request(match invalid {
            InvalidDescription::TooManyAttributes { count } => {
                format!("there are {count} attributes in all; send at most {MAX_ATTRIBUTES}")
            }
            InvalidDescription::NotAnAddress { place, ip } => format!(
                "{place}.ip: `{}` is not an IP address; send an address without a port, or leave `ip` out",
                excerpt(&ip)
            ),
        })
    }
}

/// Returns whether a text begins like a JSON object. Serde would also accept an array of the fields in their order.
pub(super) fn is_object(json: &[u8]) -> bool {
    json.trim_ascii_start().first() == Some(&b'{')
}
