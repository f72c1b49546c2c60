//! Rules that change while requests come.

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

const NOBODY: &str = "ipv6_prefix: 64";
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
async fn no_request_fails_while_rules_are_replaced_and_no_more_go_than_the_larger_limit() {
    let (rules, app) = start(&limited_to(100, NOBODY));
    let server = serve(app).await;
    let (went, is_over) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let mut clients = JoinSet::new();
    for number in 0..8 {
        let (went, is_over) = (Arc::clone(&went), Arc::clone(&is_over));
        clients.spawn(async move {
            let mut connection = Connection::open(server, VERSIONS[number % 2]).await;
            loop {
                let is_last = is_over.load(Ordering::Acquire);
                let response = connection.get("/").await;
                // Told by the rules that decided it, and not by those that came meanwhile.
                let limit = header(response.headers(), "x-ratelimit-limit").unwrap();
                assert!(limit == "100" || limit == "150", "{limit}");
                match response.status() {
                    StatusCode::OK => _ = went.fetch_add(1, Ordering::Relaxed),
                    status => assert_eq!(status, StatusCode::TOO_MANY_REQUESTS),
                }
                if is_last && response.status() != StatusCode::OK {
                    return;
                }
            }
        });
    }
    let configs =
        [(150, PROXY), (100, NOBODY)].map(|(limit, identity)| limited_to(limit, identity));
    let mut turns = 0;
    while went.load(Ordering::Relaxed) < 100 || turns < 50 {
        replace(&rules, &configs[turns % 2]);
        turns += 1;
        tokio::task::yield_now().await;
    }
    replace(&rules, &configs[0]);
    is_over.store(true, Ordering::Release);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    assert_eq!(went.load(Ordering::Relaxed), 150, "{turns} turns");
}

#[tokio::test]
async fn new_limits_hold_from_then_on_and_what_was_spent_is_spent() {
    let (rules, app) = start(&limited_to(5, NOBODY));
    assert_eq!(admitted(&app, (0..10).map(|_| get("/"))).await, 5);
    replace(&rules, &limited_to(8, NOBODY));
    let response = send(&app, get("/")).await;
    assert_eq!(header(response.headers(), "x-ratelimit-limit").as_deref(), Some("8"));
    assert_eq!(admitted(&app, (0..10).map(|_| get("/"))).await, 2);
    replace(&rules, &limited_to(3, NOBODY));
    assert_eq!(status(&app, get("/")).await, StatusCode::TOO_MANY_REQUESTS);
    let other = || request("GET", "/", "203.0.113.10");
    assert_eq!(admitted(&app, (0..10).map(|_| other())).await, 3);
}

#[tokio::test]
async fn a_new_identity_holds_from_then_on() {
    let forwarded = |at: usize| {
        let client = format!("203.0.113.{at}");
        with(request("GET", "/", "10.0.0.7"), "x-forwarded-for", &client)
    };
    let (rules, app) = start(&limited_to(5, NOBODY));
    assert_eq!(admitted(&app, (0..50).map(forwarded)).await, 5);
    replace(&rules, &limited_to(5, PROXY));
    assert_eq!(admitted(&app, (0..50).map(forwarded)).await, 50);
    replace(&rules, &limited_to(5, NOBODY));
    assert_eq!(admitted(&app, (0..50).map(forwarded)).await, 0);
    // Without any, as with one that says nothing of proxies.
    let without = limited_to(6, NOBODY).replace("identity: { ipv6_prefix: 64 }", "");
    replace(&rules, &without);
    assert_eq!(admitted(&app, (0..50).map(forwarded)).await, 1);
}

#[tokio::test]
async fn a_layers_own_identity_stays_whatever_the_file_says() {
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
    let (home, elsewhere) = ("203.0.113.9", "198.51.100.1");
    let (ada, bob) = (token(r#""sub":"ada""#), token(r#""sub":"bob""#));
    let went = async |token: &str| {
        // Good tokens earn their address verifications, and this one should have none.
        let address = if token == ada { elsewhere } else { home };
        admitted(&app, (0..9).map(|_| bearing(token, address))).await
    };
    assert_eq!(went(&ada).await, 2);
    // The only verification that the address has; its own quota with it.
    let forged = signed(b"a secret that somebody made up ...", r#"{"sub":"eve","exp":4102444800}"#);
    assert_eq!(went(&forged).await, 2);
    assert_eq!(went(&bob).await, 0);
    replace(&rules, &limited_to(5, TOKENS));
    // Ada has 3 more of her new quota. Bob's token is still not verified, so his requests are limited by address.
    assert_eq!((went(&ada).await, went(&bob).await), (3, 3));
    // Another identity begins anew.
    replace(&rules, &limited_to(5, &TOKENS.replace("366d", "365d")));
    assert_eq!((went(&ada).await, went(&bob).await), (0, 5));
    // Without tokens there are only addresses.
    replace(&rules, &limited_to(7, NOBODY));
    assert_eq!(went(&bob).await, 2);
}
