//! Rules that are replaced while requests arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::Router;
use http::StatusCode;
use tokio::task::JoinSet;
use tollgate::rules::Rules;
use tollgate::tower::RateLimitLayer;

use crate::servers::{Connection, VERSIONS, serve};
use crate::support::*;

fn limited_to(limit: u64, identity: &str) -> String {
    format!(
        "
limits: {{ it: fixed-window limit={limit} window=366d }}
rules: [{{ name: r, domain: api, key: [{{ first_of: [jwt.sub, ip] }}], limit: it }}]
identity: {{ {identity} }}
"
    )
}

const PLAIN: &str = "ipv6_prefix: 64";
const PROXY: &str = "trusted_proxies: [10.0.0.7]";
const TOKENS: &str = "jwt: { keys: [{ algorithm: HS256, secret_file: jwt.secret }], \
    verifications: fixed-window limit=1 window=366d }";

fn start(yaml: &str) -> (Rules, Router) {
    let (_, limiter) = at_midnight();
    let rules = rules(&limiter, yaml);
    let app = app(RateLimitLayer::rules(&rules, "api"));
    (rules, app)
}

fn replace(rules: &Rules, yaml: &str) {
    rules.replace(&config(yaml)).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replacing_rules_fails_no_request_and_admits_the_larger_limit() {
    let (rules, app) = start(&limited_to(100, PLAIN));
    let server = serve(app).await;
    let (admitted_count, is_over) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let mut clients = JoinSet::new();
    for number in 0..8 {
        let (admitted_count, is_over) = (Arc::clone(&admitted_count), Arc::clone(&is_over));
        clients.spawn(async move {
            let mut connection = Connection::open(server, VERSIONS[number % 2]).await;
            loop {
                let is_last = is_over.load(Ordering::Acquire);
                let response = connection.get("/").await;
                // The header has the limit of the rules that decided, not of rules that replaced them meanwhile.
                let limit = header(response.headers(), "x-ratelimit-limit").unwrap();
                assert!(limit == "100" || limit == "150", "{limit}");
                match response.status() {
                    StatusCode::OK => _ = admitted_count.fetch_add(1, Ordering::Relaxed),
                    status => assert_eq!(status, StatusCode::TOO_MANY_REQUESTS),
                }
                if is_last && response.status() != StatusCode::OK {
                    return;
                }
            }
        });
    }
    let configs = [(150, PROXY), (100, PLAIN)].map(|(limit, identity)| limited_to(limit, identity));
    let mut turns = 0;
    while admitted_count.load(Ordering::Relaxed) < 100 || turns < 50 {
        replace(&rules, &configs[turns % 2]);
        turns += 1;
        tokio::task::yield_now().await;
    }
    replace(&rules, &configs[0]);
    is_over.store(true, Ordering::Release);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    assert_eq!(admitted_count.load(Ordering::Relaxed), 150, "{turns} turns");
}

#[tokio::test]
async fn new_limits_apply_at_once_and_spent_units_stay_spent() {
    let (rules, app) = start(&limited_to(5, PLAIN));
    assert_eq!(admitted(&app, (0..10).map(|_| get("/"))).await, 5);
    replace(&rules, &limited_to(8, PLAIN));
    let response = send(&app, get("/")).await;
    assert_eq!(header(response.headers(), "x-ratelimit-limit").as_deref(), Some("8"));
    assert_eq!(admitted(&app, (0..10).map(|_| get("/"))).await, 2);
    replace(&rules, &limited_to(3, PLAIN));
    assert_eq!(status(&app, get("/")).await, StatusCode::TOO_MANY_REQUESTS);
    let other = || request("GET", "/", "203.0.113.10");
    assert_eq!(admitted(&app, (0..10).map(|_| other())).await, 3);
}

#[tokio::test]
async fn new_identity_applies_at_once() {
    let forwarded = |at: usize| {
        let client = format!("203.0.113.{at}");
        with(request("GET", "/", "10.0.0.7"), "x-forwarded-for", &client)
    };
    let (rules, app) = start(&limited_to(5, PLAIN));
    assert_eq!(admitted(&app, (0..50).map(forwarded)).await, 5);
    replace(&rules, &limited_to(5, PROXY));
    assert_eq!(admitted(&app, (0..50).map(forwarded)).await, 50);
    replace(&rules, &limited_to(5, PLAIN));
    assert_eq!(admitted(&app, (0..50).map(forwarded)).await, 0);
    // Without an identity, as with one that has no proxies.
    let without = limited_to(6, PLAIN).replace("identity: { ipv6_prefix: 64 }", "");
    replace(&rules, &without);
    assert_eq!(admitted(&app, (0..50).map(forwarded)).await, 1);
}

#[tokio::test]
async fn layers_own_identity_overrides_the_rules_file() {
    let (_, limiter) = at_midnight();
    let rules = rules(&limiter, &limited_to(5, PROXY));
    let layer = RateLimitLayer::rules(&rules, "api");
    let app = app(layer.identity(tollgate::http::Identity::new()));
    let forwarded = |at: usize| {
        let client = format!("203.0.113.{at}");
        with(request("GET", "/", "10.0.0.7"), "x-forwarded-for", &client)
    };
    assert_eq!(admitted(&app, (0..50).map(forwarded)).await, 5);
    replace(&rules, &limited_to(7, PROXY));
    assert_eq!(admitted(&app, (0..50).map(forwarded)).await, 2);
}

#[tokio::test]
async fn tokens_stay_known_while_identity_stays_the_same() {
    let (rules, app) = start(&limited_to(2, TOKENS));
    let (address, other_address) = ("203.0.113.9", "198.51.100.1");
    let (ada, bob) = (token(r#""sub":"ada""#), token(r#""sub":"bob""#));
    let admitted_count = async |token: &str| {
        // Good tokens earn verifications for their address, and the first address should have none.
        let from = if token == ada { other_address } else { address };
        admitted(&app, (0..9).map(|_| bearing(token, from))).await
    };
    assert_eq!(admitted_count(&ada).await, 2);
    // The forged token uses the only verification of the address, and its requests spend the address's quota.
    let forged = signed(b"a secret that the client made up..", r#"{"sub":"eve","exp":4102444800}"#);
    assert_eq!(admitted_count(&forged).await, 2);
    assert_eq!(admitted_count(&bob).await, 0);
    replace(&rules, &limited_to(5, TOKENS));
    // Ada has 3 more of her new quota. Bob's token is still not verified, so his requests are limited by address.
    assert_eq!((admitted_count(&ada).await, admitted_count(&bob).await), (3, 3));
    // Another identity knows no tokens yet.
    replace(&rules, &limited_to(5, &TOKENS.replace("366d", "365d")));
    assert_eq!((admitted_count(&ada).await, admitted_count(&bob).await), (0, 5));
    // Without tokens all requests count for their address.
    replace(&rules, &limited_to(7, PLAIN));
    assert_eq!(admitted_count(&bob).await, 2);
}
