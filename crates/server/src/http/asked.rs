//! What a check asks: a limit by its name, or the rules of a domain.
//!
//! - `fields`: the same as it is on the wire

mod fields;

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Duration;

use tollgate::http::NOWHERE;
use tollgate::rules::{Attributes, Current};
use tollgate_core::Cost;

pub(super) use fields::MAX_ATTRIBUTES;
use fields::{Fields, Pairs};

use super::Problem;
use super::problem::shown;

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
        request: Request<'a>,
    },
}

/// A request as its caller describes it.
#[derive(Debug)]
pub(super) struct Request<'a> {
    attributes: Pairs<'a>,
    verified: Pairs<'a>,
    said: Pairs<'a>,
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
                let request = Request { attributes, verified, said };
                request.validate()?;
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

impl<'a> Request<'a> {
    fn validate(&self) -> Result<(), Problem> {
        let Request { attributes, verified, said } = self;
        // OK because each has at most 64.
        let count = attributes.0.len() + verified.0.len() + said.0.len();
        if count > MAX_ATTRIBUTES {
            let detail = format!("{count} attributes in all; use at most {MAX_ATTRIBUTES}");
            return Err(Problem::bad_request(detail));
        }
        for (place, pairs) in [("attributes", attributes), ("verified", verified)] {
            if let Some(ip) = pairs.value("ip").filter(|ip| ip.parse::<IpAddr>().is_err()) {
                let detail = format!(
                    "{place}.ip: `{}` is no IP address; send one without a port, or none",
                    shown(ip)
                );
                return Err(Problem::bad_request(detail));
            }
        }
        Ok(())
    }

    /// As rules see it, and as the middleware would have it.
    ///
    /// Who a client is counts as a claim, and what is in a header as said, unless its caller has verified it. Whoever
    /// has no address is at the one that all have whose address is not known: that escapes no rule.
    pub(super) fn into_attributes(self, rules: &Current<'_>) -> Attributes<'a> {
        let Request { attributes, verified, said } = self;
        let has_ip = attributes.value("ip").or(verified.value("ip")).is_some();
        let mut request = Attributes::new();
        for (name, value) in said.0 {
            request = match is_identity(&name) {
                true => request.claimed(name, value),
                false => request.said(name, value),
            };
        }
        for (name, value) in attributes.0 {
            request = match &*name {
                own if is_identity(own) => request.claimed(name, value),
                own if is_of_the_client(own, &value) => request.said(name, value),
                _ => known(request, rules, name, value),
            };
        }
        for (name, value) in verified.0 {
            request = known(request, rules, name, value);
        }
        if has_ip { request } else { request.with("ip", NOWHERE) }
    }
}

/// Whether it begins as an object. Serde would take an array for the fields in their order.
pub(super) fn is_object(json: &[u8]) -> bool {
    json.trim_ascii_start().first() == Some(&b'{')
}

/// Whether it says who a client is.
pub(crate) fn is_identity(name: &str) -> bool {
    name == "api_key" || name.starts_with("jwt.")
}

/// Whether the client could have put anything there: a header, or a method of its own.
pub(crate) fn is_of_the_client(name: &str, value: &str) -> bool {
    let is_common = || {
        let common =
            ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
        common.contains(&value)
    };
    name.starts_with("header.") || (name == "method" && !is_common())
}

/// Adds what is known of a request; `ip` as the address that it is.
fn known<'a>(
    request: Attributes<'a>,
    rules: &Current<'_>,
    name: Cow<'a, str>,
    value: Cow<'a, str>,
) -> Attributes<'a> {
    match (&*name, value.parse()) {
        ("ip", Ok(ip)) => request.with_address(rules.client_address(ip)),
        _ => request.with(name, value),
    }
}
