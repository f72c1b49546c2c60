//! The variants of a service that says hello: without a layer, and with different layers.

use std::str::FromStr;

use anyhow::{Context, Error, Result};
use axum::Router;
use axum::response::Response;
use axum::routing::get;
use governor::middleware::NoOpMiddleware;
use http::header::{HeaderName, HeaderValue};
use tollgate::http::HeaderFamilies;
use tollgate::tower::RateLimitLayer;
use tower::util::MapResponseLayer;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::PeerIpKeyExtractor;
use tower_layer::Identity;

/// The limit of both limiters. It refills within a millisecond, so that no request is ever refused.
const CAPACITY: u32 = 1_000_000;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// A service that says hello, and the layer around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    NoLayer,
    /// A layer that does nothing: the cost of any layer in axum.
    EmptyLayer,
    /// A layer that adds two constant headers: the cost in axum and http of the peer's number of headers.
    TwoHeaders,
    /// A layer that adds five constant headers: the cost in axum and http of our number of headers.
    FiveHeaders,
    Peer,
    PeerWithHeaders,
    Ours,
    OursIetf,
    OursClassic,
    OursWithAll,
}

impl Variant {
    pub(crate) const ALL: [Variant; 10] = [
        Variant::NoLayer,
        Variant::EmptyLayer,
        Variant::TwoHeaders,
        Variant::FiveHeaders,
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
            Variant::TwoHeaders => "2 ready headers, nothing else",
            Variant::FiveHeaders => "5 ready headers, nothing else",
            Variant::Peer => "tower_governor, no headers",
            Variant::PeerWithHeaders => "tower_governor, 2 headers",
            Variant::Ours => "tollgate, no headers",
            Variant::OursIetf => "tollgate, the IETF's 2",
            Variant::OursClassic => "tollgate, the classic 3",
            Variant::OursWithAll => "tollgate, all 5",
        }
    }

    /// Returns the service, ready to be called. Without `with_state`, axum would apply the layers at each request.
    pub(crate) fn router(self) -> Result<Router> {
        let hello = Router::new().route("/", get(|| async { "hello" }));
        let none = HeaderFamilies::ALL.without_ietf().without_classic();
        let layered = match self {
            Variant::NoLayer => hello,
            Variant::EmptyLayer => hello.layer(Identity::new()),
            Variant::TwoHeaders => hello.layer(MapResponseLayer::new(with_two)),
            Variant::FiveHeaders => hello.layer(MapResponseLayer::new(with_five)),
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

/// Adds the IETF's two headers with constant values.
fn with_two(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.append(POLICY, HeaderValue::from_static(r#""default";q=1000000;w=1"#));
    headers.append(RATELIMIT, HeaderValue::from_static(r#""default";r=999999;t=1"#));
    response
}

/// Adds all five headers of ours with constant values.
fn with_five(mut response: Response) -> Response {
    let headers = response.headers_mut();
    // Reserved at once, for these five and for the content length.
    headers.reserve(6);
    headers.append(LIMIT, HeaderValue::from_static("1000000"));
    headers.append(REMAINING, HeaderValue::from_static("999999"));
    headers.append(RESET, HeaderValue::from_static("1790000000"));
    with_two(response)
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
    use std::collections::HashSet;

    use super::*;
    use tollgate_bench::service::request;

    #[test]
    fn every_variant_adds_the_headers_of_its_name() {
        let [policy, ratelimit] = &[POLICY, RATELIMIT];
        let [limit, remaining, reset] = &[LIMIT, REMAINING, RESET];
        let wanted: [&[&HeaderName]; 10] = [
            &[],
            &[],
            &[policy, ratelimit],
            &[policy, ratelimit, limit, remaining, reset],
            &[],
            &[limit, remaining],
            &[],
            &[policy, ratelimit],
            &[limit, remaining, reset],
            &[policy, ratelimit, limit, remaining, reset],
        ];
        for (variant, wanted) in Variant::ALL.into_iter().zip(wanted) {
            let response = request(&mut variant.router().unwrap()).unwrap();
            let names = response.headers().keys();
            let names = names.filter(|name| name.as_str().contains("ratelimit"));
            assert_eq!(
                names.collect::<HashSet<_>>(),
                wanted.iter().copied().collect(),
                "{variant:?}"
            );
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
    fn variant_is_parsed_from_its_name() {
        for variant in Variant::ALL {
            assert_eq!(variant.name().parse::<Variant>().unwrap(), variant);
        }
        assert!("tollgate".parse::<Variant>().is_err());
    }
}
