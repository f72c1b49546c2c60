//! What is measured: a service that says hello, and what is around it.

use std::str::FromStr;

use anyhow::{Context, Error, Result};
use axum::Router;
use axum::routing::get;
use governor::middleware::NoOpMiddleware;
use tollgate::http::HeaderFamilies;
use tollgate::tower::RateLimitLayer;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::PeerIpKeyExtractor;
use tower_layer::Identity;

/// Both limiters' limit. It is back within a millisecond, so that nobody is ever refused.
const CAPACITY: u32 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    NoLayer,
    /// What axum charges for any layer.
    EmptyLayer,
    Peer,
    PeerWithHeaders,
    Ours,
    OursIetf,
    OursClassic,
    OursWithAll,
}

impl Variant {
    pub(crate) const ALL: [Variant; 8] = [
        Variant::NoLayer,
        Variant::EmptyLayer,
        Variant::Peer,
        Variant::PeerWithHeaders,
        Variant::Ours,
        Variant::OursIetf,
        Variant::OursClassic,
        Variant::OursWithAll,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Variant::NoLayer => "no layer",
            Variant::EmptyLayer => "a layer that does nothing",
            Variant::Peer => "tower_governor, no headers",
            Variant::PeerWithHeaders => "tower_governor, 2 headers",
            Variant::Ours => "tollgate, no headers",
            Variant::OursIetf => "tollgate, the IETF's 2",
            Variant::OursClassic => "tollgate, the classic 3",
            Variant::OursWithAll => "tollgate, all 5",
        }
    }

    /// The service, ready to be called: without `with_state`, axum would put layers on at each request.
    pub(crate) fn router(self) -> Result<Router> {
        let hello = Router::new().route("/", get(|| async { "hello" }));
        let none = HeaderFamilies::ALL.without_ietf().without_classic();
        let layered = match self {
            Variant::NoLayer => hello,
            Variant::EmptyLayer => hello.layer(Identity::new()),
            Variant::Peer => {
                hello.layer(GovernorLayer::new(peer().finish().context("a limit of 0")?))
            }
            Variant::PeerWithHeaders => {
                let config = peer().use_headers().finish().context("a limit of 0")?;
                hello.layer(GovernorLayer::new(config))
            }
            Variant::Ours => hello.layer(ours(none)?),
            Variant::OursIetf => hello.layer(ours(HeaderFamilies::ALL.without_classic())?),
            Variant::OursClassic => hello.layer(ours(HeaderFamilies::ALL.without_ietf())?),
            Variant::OursWithAll => hello.layer(ours(HeaderFamilies::ALL)?),
        };
        Ok(layered.with_state(()))
    }
}

impl FromStr for Variant {
    type Err = Error;

    fn from_str(text: &str) -> Result<Variant> {
        let found = Variant::ALL.into_iter().find(|variant| variant.name() == text);
        found.with_context(|| {
            let names = Variant::ALL.map(|variant| format!("`{}`", variant.name()));
            format!("unknown variant `{text}`; use one of {}", names.join(", "))
        })
    }
}

fn peer() -> GovernorConfigBuilder<PeerIpKeyExtractor, NoOpMiddleware> {
    let mut config = GovernorConfigBuilder::default();
    config.per_nanosecond(1).burst_size(CAPACITY);
    config
}

fn ours(families: HeaderFamilies) -> Result<RateLimitLayer> {
    let limit = format!("token-bucket capacity={CAPACITY} refill=1000000000/s");
    Ok(RateLimitLayer::per_ip(limit.as_str())?.headers(families))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_process::request;

    #[test]
    fn every_variant_tells_what_its_name_says() {
        let [policy, ratelimit] = ["ratelimit-policy", "ratelimit"];
        let [limit, remaining, reset] =
            ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
        let told: [&[&str]; 8] = [
            &[],
            &[],
            &[],
            &[limit, remaining],
            &[],
            &[policy, ratelimit],
            &[limit, remaining, reset],
            &[policy, ratelimit, limit, remaining, reset],
        ];
        for (variant, told) in Variant::ALL.into_iter().zip(told) {
            let response = request(&mut variant.router().unwrap()).unwrap();
            let mut names: Vec<&str> =
                response.headers().keys().map(|name| name.as_str()).collect();
            names.retain(|name| name.contains("ratelimit"));
            names.sort_unstable();
            let mut told = told.to_vec();
            told.sort_unstable();
            assert_eq!(names, told, "{variant:?}");
        }
    }

    #[test]
    fn both_limiters_have_the_same_limit() {
        for variant in [Variant::PeerWithHeaders, Variant::OursClassic] {
            let response = request(&mut variant.router().unwrap()).unwrap();
            assert_eq!(response.headers()["x-ratelimit-limit"], "1000000");
            assert_eq!(response.headers()["x-ratelimit-remaining"], "999999");
        }
    }

    #[test]
    fn a_variant_is_found_by_its_name() {
        for variant in Variant::ALL {
            assert_eq!(variant.name().parse::<Variant>().unwrap(), variant);
        }
        assert!("tollgate".parse::<Variant>().is_err());
    }
}
