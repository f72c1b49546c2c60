//! Classifies the attributes of a request by how far they are trusted. A client must not get a new quota or a better
//! tier by claiming something.
//!
//! All front ends use this module, so that a request is classified in the same way on every port.

use std::borrow::Cow;
use std::net::IpAddr;

use tollgate::http::UNKNOWN_ADDRESS;
use tollgate::rules::{Attributes, Snapshot};

/// The most attributes of a request.
pub(crate) const MAX_ATTRIBUTES: usize = 64;

/// How far the server trusts an attribute that the caller passes on without marking it as verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttributeClass {
    /// An identity that the client claims.
    Claimed,
    /// Text that the client chose: a header, or an uncommon method.
    Said,
    /// A fact that the caller itself knows.
    Known,
}

impl AttributeClass {
    /// Classifies an attribute by its name. A `method` counts as known only if it is a common one.
    pub(crate) fn of(name: &str, value: &str) -> AttributeClass {
        match name {
            _ if is_identity(name) => AttributeClass::Claimed,
            _ if name.starts_with("header.") => AttributeClass::Said,
            "method" if !is_common_method(value) => AttributeClass::Said,
            _ => AttributeClass::Known,
        }
    }
}

/// Returns whether an attribute identifies a client: an API key, or a claim of a token.
pub(crate) fn is_identity(name: &str) -> bool {
    name == "api_key" || name.starts_with("jwt.")
}

fn is_common_method(method: &str) -> bool {
    let common = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    common.contains(&method)
}

/// Pairs of names and values of attributes. Each name occurs once.
#[derive(Debug, Default)]
pub(crate) struct Pairs<'a>(pub(crate) Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl Pairs<'_> {
    /// Returns the value of an attribute.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| &**value)
    }
}

/// A request, described by its caller with attributes.
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
    /// The attribute `ip` is not an IP address.
    NotAnAddress { place: &'static str, ip: String },
}

impl<'a> Description<'a> {
    /// Makes a description of attributes that the caller passes on, attributes that it has verified, and attributes
    /// that the client said.
    pub(crate) fn new(
        attributes: Pairs<'a>,
        verified: Pairs<'a>,
        said: Pairs<'a>,
    ) -> Result<Description<'a>, InvalidDescription> {
        // OK because each has at most 64 pairs.
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

    /// Returns the attributes for the rules, classified as the middleware classifies them.
    ///
    /// Unless the caller has verified them, identities are claimed and headers are said. A request without an address
    /// uses the shared unknown address, so no rule is skipped.
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
            request = match AttributeClass::of(&name, &value) {
                AttributeClass::Claimed => request.claimed(name, value),
                AttributeClass::Said => request.said(name, value),
                AttributeClass::Known => with_known(request, rules, name, value),
            };
        }
        for (name, value) in verified.0 {
            request = with_known(request, rules, name, value);
        }
        if has_ip { request } else { request.with("ip", UNKNOWN_ADDRESS) }
    }
}

/// Adds a known attribute. An `ip` is added as an address, which groups IPv6 addresses.
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
    fn identities_are_claimed_and_headers_are_said() {
        for (name, value, want) in [
            ("api_key", "k_1", AttributeClass::Claimed),
            ("jwt.sub", "a", AttributeClass::Claimed),
            ("header.user-agent", "curl", AttributeClass::Said),
            ("method", "GET", AttributeClass::Known),
            ("method", "STEAL", AttributeClass::Said),
            ("method", "get", AttributeClass::Said),
            ("path", "/login", AttributeClass::Known),
            ("ip", "203.0.113.9", AttributeClass::Known),
            ("user", "a", AttributeClass::Known),
        ] {
            assert_eq!(AttributeClass::of(name, value), want, "{name}={value}");
        }
    }

    #[test]
    fn description_with_too_many_attributes_or_an_invalid_ip_is_refused() {
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
        assert!(
            Description::new(Pairs::default(), Pairs::default(), ip()).is_ok(),
            "an `ip` that the client said may be any text"
        );
    }
}
