//! The identity that a file configures.

use ::http::header::HeaderName;

use tollgate_limiter::{Error, Ipv6Prefix};

use super::Identity;
use crate::config::{ForwardingHeader, IdentityConfig, JwtConfig};
use crate::forwarded::Forwarding;
use crate::proxies::TrustedProxies;
use crate::tokens::Tokens;

impl Identity {
    /// Returns the identity that a file configures. The file was checked when it was read. Key sets that are fetched go
    /// on, if the file said the same of them `before`.
    pub fn configured(
        said: &IdentityConfig,
        before: Option<(&IdentityConfig, &Identity)>,
    ) -> Result<Identity, Error> {
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
            Some(jwt) => {
                let same = |(said, _): &(&IdentityConfig, _)| is_same_jwks(said, jwt);
                let before = before.filter(same).map(|(_, made)| &made.tokens);
                Ok(Identity { tokens: Tokens::configured(jwt, before)?, ..identity })
            }
            None => Ok(identity),
        }
    }
}

fn is_same_jwks(before: &IdentityConfig, said: &JwtConfig) -> bool {
    before.jwt.as_ref().is_some_and(|before| before.jwks == said.jwks)
}

fn forwarding(said: &IdentityConfig) -> Forwarding {
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
