//! What a check asks: a limit by its name, or the rules of a domain.
//!
//! - `fields`: the same as it is on the wire

mod fields;

use std::borrow::Cow;
use std::time::Duration;

use tollgate_core::Cost;

use fields::Fields;
pub(super) use fields::{Whole, given};

use super::Problem;
use super::problem::shown;
use crate::trust::{Description, InvalidDescription, MAX_ATTRIBUTES};

/// What to send, for those who sent something else.
const FORMS: &str = "send {\"limit\":\"free\",\"key\":\"user:42\"}, or \
                     {\"domain\":\"api\",\"attributes\":{\"ip\":\"203.0.113.9\"}}, without `domain` if all rules are \
                     of one";

/// What a check asks.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub(super) of: Of<'a>,
    /// What it costs; of rules, if it is not what they say.
    pub(super) cost: Option<u64>,
    /// The longest delay that is accepted.
    pub(super) max_wait: Option<Duration>,
}

/// Who decides.
#[derive(Debug)]
pub(super) enum Of<'a> {
    Limit {
        name: Cow<'a, str>,
        key: Cow<'a, str>,
    },
    /// Without a domain, the rules of the only one.
    Rules {
        domain: Option<Cow<'a, str>>,
        request: Description<'a>,
    },
}

impl<'a> Asked<'a> {
    /// From the body of a check, or one of a batch's.
    pub(crate) fn decode(json: &'a [u8]) -> Result<Asked<'a>, Problem> {
        if !is_object(json) {
            return Err(Problem::bad_request(format!("a check is an object; {FORMS}")));
        }
        let fields = serde_json::from_slice(json).map_err(|error| Problem::in_json(&error))?;
        Asked::new(fields)
    }

    fn new(fields: Fields<'a>) -> Result<Asked<'a>, Problem> {
        let Fields { limit, key, domain, attributes, verified, said, cost, max_wait_us } = fields;
        let is_described = attributes.is_some() || verified.is_some() || said.is_some();
        let of = match (limit, key, domain) {
            (Some(name), Some(key), None) if !is_described => {
                Of::Limit { name: name.0, key: key.0 }
            }
            (None, None, domain) if domain.is_some() || attributes.is_some() => {
                let [attributes, verified, said] =
                    [attributes, verified, said].map(Option::unwrap_or_default);
                let request = Description::new(attributes, verified, said)?;
                Of::Rules { domain: domain.map(|domain| domain.0), request }
            }
            (limit, key, domain) => {
                return Err(Problem::bad_request(match (limit, key, domain) {
                    (Some(_), Some(_), None) => {
                        "a limit looks at no attributes; leave them out, \
                                                 or leave out `limit` and `key`"
                    }
                    (Some(_), None, None) => {
                        "`key` is missing; say whom to limit, such as \"user:42\""
                    }
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
        Ok(Asked { of, cost: cost.map(Cost::units), max_wait })
    }
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
