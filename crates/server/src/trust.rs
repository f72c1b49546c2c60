//! How far the attributes of a request are believed: a client's claim must not buy a fresh quota or a better tier.
//!
//! Below all front ends, so that a request is classified the same way however it arrives.

use std::borrow::Cow;
use std::net::IpAddr;

use tollgate::http::UNKNOWN_ADDRESS;
use tollgate::rules::{Attributes, Snapshot};

/// The most attributes of a request.
pub(crate) const MAX_ATTRIBUTES: usize = 64;

/// How far an attribute is believed that a caller passes on without saying that it has verified it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The client says who it is.
    Claimed,
    /// The client says something about its request: a header, or a method of its own.
    Said,
    /// The caller itself knows it.
    Known,
}

impl Trust {
    /// Classifies an attribute by its name; of `method` only the common ones are known.
    pub(crate) fn of(name: &str, value: &str) -> Trust {
        match name {
            _ if is_identity(name) => Trust::Claimed,
            _ if name.starts_with("header.") => Trust::Said,
            "method" if !is_common_method(value) => Trust::Said,
            _ => Trust::Known,
        }
    }
}

/// Returns whether an attribute says who a client is: an API key, or a claim of a token.
pub(crate) fn is_identity(name: &str) -> bool {
    name == "api_key" || name.starts_with("jwt.")
}

fn is_common_method(method: &str) -> bool {
    let common = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    common.contains(&method)
}

/// Attributes by their names, each once.
#[derive(Debug, Default)]
pub(crate) struct Pairs<'a>(pub(crate) Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl Pairs<'_> {
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| &**value)
    }
}

/// A request as its caller describes it.
#[derive(Debug)]
pub(crate) struct Description<'a> {
    attributes: Pairs<'a>,
    verified: Pairs<'a>,
    said: Pairs<'a>,
}

/// Why a description is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InvalidDescription {
    /// There are more than [`MAX_ATTRIBUTES`].
    TooManyAttributes { count: usize },
    /// An `ip` is not an IP address.
    NotAnAddress { place: &'static str, ip: String },
}

impl<'a> Description<'a> {
    /// Describes a request by what its caller passes on, what it has verified, and what the client said.
    pub(crate) fn new(
        attributes: Pairs<'a>,
        verified: Pairs<'a>,
        said: Pairs<'a>,
    ) -> Result<Description<'a>, InvalidDescription> {
        // OK because each has at most 64.
        let count = attributes.0.len() + verified.0.len() + said.0.len();
        if count > MAX_ATTRIBUTES {
            return Err(InvalidDescription::TooManyAttributes { count });
        }
        for (place, pairs) in [("attributes", &attributes), ("verified", &verified)] {
            if let Some(ip) = pairs.value("ip").filter(|ip| ip.parse::<IpAddr>().is_err()) {
                return Err(InvalidDescription::NotAnAddress { place, ip: ip.to_owned() });
            }
        }
        Ok(Description { attributes, verified, said })
    }

    /// Returns the attributes as the rules see them, which is as the middleware would have them.
    ///
    /// Who a client is counts as a claim, and what is in a header as said, unless the caller has verified it. A request
    /// without an address uses the shared unknown address, so no rule is skipped.
    pub(crate) fn into_attributes(self, rules: &Snapshot<'_>) -> Attributes<'a> {
        let Description { attributes, verified, said } = self;
        let has_ip = attributes.value("ip").or(verified.value("ip")).is_some();
        let mut request = Attributes::new();
        for (name, value) in said.0 {
            request = match is_identity(&name) {
                true => request.claimed(name, value),
                false => request.said(name, value),
            };
        }
        for (name, value) in attributes.0 {
            request = match Trust::of(&name, &value) {
                Trust::Claimed => request.claimed(name, value),
                Trust::Said => request.said(name, value),
                Trust::Known => with_known(request, rules, name, value),
            };
        }
        for (name, value) in verified.0 {
            request = with_known(request, rules, name, value);
        }
        if has_ip { request } else { request.with("ip", UNKNOWN_ADDRESS) }
    }
}

/// Adds an attribute that is known; `ip` as the address that it is.
fn with_known<'a>(
    request: Attributes<'a>,
    rules: &Snapshot<'_>,
    name: Cow<'a, str>,
    value: Cow<'a, str>,
) -> Attributes<'a> {
    match (&*name, value.parse()) {
        ("ip", Ok(ip)) => request.with_address(rules.client_address(ip)),
        _ => request.with(name, value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_claims_and_headers_are_said() {
        for (name, value, want) in [
            ("api_key", "k_1", Trust::Claimed),
            ("jwt.sub", "a", Trust::Claimed),
            ("header.user-agent", "curl", Trust::Said),
            ("method", "GET", Trust::Known),
            ("method", "STEAL", Trust::Said),
            ("method", "get", Trust::Said),
            ("path", "/login", Trust::Known),
            ("ip", "203.0.113.9", Trust::Known),
            ("user", "a", Trust::Known),
        ] {
            assert_eq!(Trust::of(name, value), want, "{name}={value}");
        }
    }

    #[test]
    fn a_description_is_refused_for_too_many_attributes_or_an_ip_that_is_none() {
        let pairs = |count: usize| {
            Pairs((0..count).map(|at| (format!("a{at}").into(), Cow::Borrowed("b"))).collect())
        };
        assert!(Description::new(pairs(32), pairs(16), pairs(16)).is_ok());
        let many = Description::new(pairs(32), pairs(16), pairs(17)).unwrap_err();
        assert_eq!(many, InvalidDescription::TooManyAttributes { count: 65 });
        let ip = || Pairs(vec![("ip".into(), "203.0.113.9:80".into())]);
        let wrong = Description::new(Pairs::default(), ip(), Pairs::default()).unwrap_err();
        let ip_text = "203.0.113.9:80".to_owned();
        assert_eq!(wrong, InvalidDescription::NotAnAddress { place: "verified", ip: ip_text });
        assert!(Description::new(Pairs::default(), Pairs::default(), ip()).is_ok(), "only said");
    }
}
