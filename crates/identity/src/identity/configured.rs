//! The identity that a file configures.

use ::http::header::HeaderName;

use tollgate_limiter::{Error, Ipv6Prefix};

use super::Identity;
use crate::config::{ForwardingHeader, IdentityConfig, JwtConfig};
use crate::forwarded::Forwarding;
use crate::proxies::TrustedProxies;
use crate::tokens::TokenVerifier;

impl Identity {
    /// Returns the identity that a file configures. The file was checked when it was read. Key sets that are fetched are
    /// kept from `before`, if the file configures them in the same way.
    pub fn configured(
        config: &IdentityConfig,
        before: Option<(&IdentityConfig, &Identity)>,
    ) -> Result<Identity, Error> {
        let mut identity = Identity::new();
        if !config.trusted_proxies.is_empty() {
            let nets = config.trusted_proxies.iter().map(ToString::to_string);
            let proxies = TrustedProxies::new(nets).map_err(problem)?;
            identity = identity.trusted_proxies(proxies.reading(forwarding(config)));
        }
        let names = config.trusted_headers.iter().map(|name| header(name));
        identity = identity.trusted_headers(names.collect::<Result<Vec<_>, _>>()?);
        if let Some(bits) = config.ipv6_prefix {
            identity = identity.ipv6_prefix(Ipv6Prefix::new(bits).map_err(problem)?);
        }
        if let Some(name) = &config.api_key_header {
            identity = identity.api_key_header(header(name)?);
        }
        match &config.jwt {
            Some(jwt) => {
                let same = |(config, _): &(&IdentityConfig, _)| is_same_jwks(config, jwt);
                let before = before.filter(same).map(|(_, made)| &made.tokens);
                Ok(Identity { tokens: TokenVerifier::configured(jwt, before)?, ..identity })
            }
            None => Ok(identity),
        }
    }
}

fn is_same_jwks(before: &IdentityConfig, config: &JwtConfig) -> bool {
    before.jwt.as_ref().is_some_and(|before| before.jwks == config.jwks)
}

fn forwarding(config: &IdentityConfig) -> Forwarding {
    match config.forwarding_header {
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
