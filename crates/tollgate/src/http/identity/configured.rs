//! Who clients are, as a file says it.

use ::http::header::HeaderName;

use super::Identity;
use crate::address::Ipv6Prefix;
use crate::error::Error;
use crate::http::forwarded::Forwarding;
use crate::http::proxies::TrustedProxies;
use crate::rules::config::{self, ForwardingHeader};

impl Identity {
    /// As a file says it. What it says was checked when it was read.
    pub(crate) fn configured(said: &config::Identity) -> Result<Identity, Error> {
        let mut identity = Identity::new();
        if !said.trusted_proxies.is_empty() {
            let nets = said.trusted_proxies.iter().map(ToString::to_string);
            let proxies = TrustedProxies::new(nets).map_err(problem)?;
            identity = identity.trusted_proxies(proxies.reading(forwarding(said)));
        }
        let names = said.trusted_headers.iter().map(|name| header(name));
        identity = identity.trusted_headers(names.collect::<Result<Vec<_>, _>>()?);
        if let Some(bits) = said.ipv6_prefix {
            identity = identity.ipv6_prefix(Ipv6Prefix::new(bits).map_err(problem)?);
        }
        if let Some(name) = &said.api_key_header {
            identity = identity.api_key_header(header(name)?);
        }
        match &said.jwt {
            Some(jwt) => identity.with_tokens(jwt),
            None => Ok(identity),
        }
    }

    #[cfg(feature = "jwt")]
    fn with_tokens(self, said: &config::Jwt) -> Result<Identity, Error> {
        use crate::http::jwt::{Jwt, JwtKey};

        let keys = said.keys.iter().map(JwtKey::configured).collect::<Result<Vec<_>, _>>();
        let mut jwt = keys.and_then(Jwt::new).map_err(problem)?;
        if let Some(issuer) = &said.issuer {
            jwt = jwt.issuer(&**issuer);
        }
        if let Some(audience) = &said.audience {
            jwt = jwt.audience(&**audience);
        }
        if let Some(leeway) = said.leeway {
            jwt = jwt.leeway(leeway);
        }
        let mut identity = self.jwt(jwt);
        if let Some(limit) = said.verifications {
            identity = identity.token_verifications(limit)?;
        }
        identity.tokens.on_invalid = said.on_invalid;
        Ok(identity)
    }

    #[cfg(not(feature = "jwt"))]
    fn with_tokens(self, _: &config::Jwt) -> Result<Identity, Error> {
        Err(problem("tokens need the library's feature `jwt`; build with it, or leave out `jwt`"))
    }
}

fn forwarding(said: &config::Identity) -> Forwarding {
    match said.forwarding_header {
        ForwardingHeader::XForwardedFor => Forwarding::XForwardedFor,
        ForwardingHeader::Forwarded => Forwarding::Forwarded,
        ForwardingHeader::XRealIp => Forwarding::XRealIp,
    }
}

fn header(name: &str) -> Result<HeaderName, Error> {
    HeaderName::from_bytes(name.as_bytes()).map_err(problem)
}

fn problem(problem: impl ToString) -> Error {
    Error::Setting { setting: "identity", problem: problem.to_string() }
}
