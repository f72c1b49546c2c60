//! Who clients are, as a file says it.

use ::http::header::HeaderName;

use super::Identity;
use crate::address::Ipv6Prefix;
use crate::error::Error;
use crate::http::forwarded::Forwarding;
use crate::http::proxies::TrustedProxies;
use crate::rules::config::{self, ForwardingHeader};

impl Identity {
    /// As a file says it. What it says was checked when it was read. Key sets that are fetched go on, if the file said
    /// the same of them `before`.
    pub(crate) fn configured(
        said: &config::Identity,
        before: Option<(&config::Identity, &Identity)>,
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
                let same = |(said, _): &(&config::Identity, _)| is_same_jwks(said, jwt);
                identity.with_tokens(jwt, before.filter(same).map(|(_, made)| made))
            }
            None => Ok(identity),
        }
    }

    #[cfg(feature = "jwt")]
    fn with_tokens(self, said: &config::Jwt, before: Option<&Identity>) -> Result<Identity, Error> {
        use crate::http::jwt::{Jwt, JwtKey};

        let keys = said.keys.iter().map(JwtKey::configured).collect::<Result<Vec<_>, _>>();
        let keys = keys.map_err(problem)?;
        let running = before.and_then(|before| before.key_sets().first().cloned());
        let jwks = match (running, &said.jwks) {
            (running, Some(said)) => Some(running.map_or_else(|| jwks(said), Ok)?),
            (_, None) => None,
        };
        let mut jwt = match (keys.is_empty(), jwks) {
            (true, Some(jwks)) => Jwt::from_jwks(jwks),
            (_, None) => Jwt::new(keys).map_err(problem)?,
            (false, Some(jwks)) => Jwt::new(keys).map_err(problem)?.jwks(jwks),
        };
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
    fn with_tokens(self, _: &config::Jwt, _: Option<&Identity>) -> Result<Identity, Error> {
        Err(problem("tokens need the library's feature `jwt`; build with it, or leave out `jwt`"))
    }
}

fn is_same_jwks(before: &config::Identity, said: &config::Jwt) -> bool {
    before.jwt.as_ref().is_some_and(|before| before.jwks == said.jwks)
}

/// The keys of a set; those under a URL are not fetched yet.
#[cfg(feature = "jwt")]
fn jwks(said: &config::Jwks) -> Result<crate::http::Jwks, Error> {
    match said {
        config::Jwks::File(json) => crate::http::Jwks::parse(json).map_err(problem),
        #[cfg(feature = "jwks")]
        config::Jwks::Url { url, max_age, max_stale } => {
            let mut source = crate::http::Jwks::url(url).map_err(problem)?;
            if let Some(max_age) = max_age {
                source = source.max_age(*max_age);
            }
            if let Some(max_stale) = max_stale {
                source = source.max_stale(*max_stale);
            }
            Ok(source.not_started())
        }
        #[cfg(not(feature = "jwks"))]
        config::Jwks::Url { .. } => Err(problem(
            "a key set under a URL needs the library's feature `jwks`; build with it, or use a file",
        )),
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
