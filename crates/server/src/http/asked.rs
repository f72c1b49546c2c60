//! What a check asks: a limit by its name, or the rules of a domain.
//!
//! - `fields`: the same as it is on the wire

mod fields;

use std::time::Duration;

use tollgate_core::Cost;

use fields::Fields;

use super::Problem;
use super::problem::shown;
use crate::pipeline::{DecisionRequest, DecisionTarget, Terms};
use crate::trust::{Description, InvalidDescription, MAX_ATTRIBUTES};

/// The most requests of a batch.
pub(super) const MAX_REQUESTS: usize = 1_000;

/// What to send, for those who sent something else.
const FORMS: &str = "send {\"limit\":\"free\",\"key\":\"user:42\"}, or \
                     {\"domain\":\"api\",\"attributes\":{\"ip\":\"203.0.113.9\"}}, without `domain` if all rules are \
                     of one";

/// Decodes the body of a check, or a check of a batch.
pub(crate) fn decode(json: &[u8]) -> Result<DecisionRequest<'_>, Problem> {
    if !is_object(json) {
        return Err(Problem::bad_request(format!("a check is an object; {FORMS}")));
    }
    let fields = serde_json::from_slice(json).map_err(|error| Problem::in_json(&error))?;
    request(fields)
}

fn request(fields: Fields<'_>) -> Result<DecisionRequest<'_>, Problem> {
    let Fields { limit, key, domain, attributes, verified, said, cost, max_wait_us } = fields;
    let is_described = attributes.is_some() || verified.is_some() || said.is_some();
    let target = match (limit, key, domain) {
        (Some(name), Some(key), None) if !is_described => {
            DecisionTarget::Limit { name: name.0, key: key.0 }
        }
        (None, None, domain) if domain.is_some() || attributes.is_some() => {
            let [attributes, verified, said] =
                [attributes, verified, said].map(Option::unwrap_or_default);
            let description = Description::new(attributes, verified, said)?;
            DecisionTarget::Rules { domain: domain.map(|domain| domain.0), description }
        }
        (limit, key, domain) => {
            return Err(Problem::bad_request(match (limit, key, domain) {
                (Some(_), Some(_), None) => {
                    "a limit looks at no attributes; leave them out, \
                                                 or leave out `limit` and `key`"
                }
                (Some(_), None, None) => "`key` is missing; say whom to limit, such as \"user:42\"",
                (None, Some(_), None) => "`limit` is missing; GET /v1/limits lists them",
                (None, None, _) => FORMS,
                (_, _, Some(_)) => {
                    "rules choose limits and make keys; leave out `limit` and \
                                        `key`, or `domain`"
                }
            }));
        }
    };
    let cost = cost.map(|cost| Cost::new(cost.0)).transpose().map_err(tollgate::Error::from)?;
    let max_wait = max_wait_us.map(|wait| Duration::from_micros(wait.0));
    Ok(DecisionRequest { target, terms: Terms { cost: cost.map(Cost::units), max_wait } })
}

impl From<InvalidDescription> for Problem {
    fn from(invalid: InvalidDescription) -> Problem {
        Problem::bad_request(match invalid {
            InvalidDescription::TooManyAttributes { count } => {
                format!("{count} attributes in all; use at most {MAX_ATTRIBUTES}")
            }
            InvalidDescription::NotAnAddress { place, ip } => format!(
                "{place}.ip: `{}` is no IP address; send one without a port, or none",
                shown(&ip)
            ),
        })
    }
}

/// Whether it begins as an object. Serde would take an array for the fields in their order.
pub(super) fn is_object(json: &[u8]) -> bool {
    json.trim_ascii_start().first() == Some(&b'{')
}
