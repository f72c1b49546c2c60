//! Rules of which some reserve, some are charged at once, and some are places.

use std::time::Duration;

use axum::response::IntoResponse;
use http_body_util::BodyExt;
use tokio::time::sleep;
use tollgate::OnFailure;
use tollgate::rules::Rules;
use tollgate::tower::{Admission, ResponseHead};

use super::store::BreakableStore;
use super::*;
use crate::servers::PATIENCE;

const RULES: &str = "
limits:
  requests: fixed-window limit=10 window=366d
  tokens: fixed-window limit=1000 window=366d
  month: fixed-window limit=5000 window=366d
  streams: concurrency limit=2 for=30s
rules:
  - { name: requests, domain: api, key: [ip], limit: requests }
  - { name: tokens, domain: api, key: [ip], limit: tokens, cost: { reserve: { attribute: estimate, default: 100 } }, hold_for: 10s }
  - { name: month, domain: api, key: [], limit: month, cost: { reserve: { attribute: estimate, default: 100 } } }
  - { name: streams, domain: api, key: [ip], limit: streams }
";

/// Returns what remains under each rule.
fn remaining(rules: &Rules) -> [u64; 4] {
    ["requests", "tokens", "month", "streams"].map(|name| {
        let scope = rules.scope(&format!("api/{name}")).unwrap();
        let key = if name == "month" { "" } else { "ip=203.0.113.9" };
        scope.peek(key).now().unwrap().remaining()
    })
}

fn of_memory() -> Rules {
    rules(&at_midnight().1, RULES)
}

fn layer(rules: &Rules) -> RateLimitLayer {
    RateLimitLayer::rules(rules, "api")
}

#[tokio::test]
async fn rules_reserve_charge_and_take_places_together() {
    let rules = of_memory();
    let (app, sender) = streaming(layer(&rules).settle(|_| 30));
    let response = send(&app, get("/")).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(shown(&response).as_deref(), Some("1"), "the tightest are the streams");
    assert_eq!(remaining(&rules), [9, 900, 4_900, 1]);
    drop(sender);
    text(response).await;
    assert_eq!(remaining(&rules), [9, 970, 4_970, 2]);
}

#[tokio::test]
async fn refused_request_reserves_nothing_under_any_rule() {
    let rules = of_memory();
    let mut responses = Vec::new();
    for _ in 0..2 {
        let (app, sender) = streaming(layer(&rules));
        responses.push((send(&app, get("/")).await, sender));
    }
    let refused = send(&app(layer(&rules)), get("/")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(text(refused).await.contains("`streams` has no free place"));
    assert_eq!(remaining(&rules), [8, 800, 4_800, 0]);
    drop(responses);
    assert_eq!(remaining(&rules), [8, 800, 4_800, 2]);
    // A request that the tokens refuse takes no place.
    let refused = send(&app(layer(&rules).reserve(|_| 900)), get("/")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(remaining(&rules), [8, 800, 4_800, 2]);
}

#[tokio::test]
async fn estimate_comes_from_an_attribute_or_from_the_layer() {
    let rules = of_memory();
    let by_attribute = layer(&rules).attributes(|_, attributes| attributes.with("estimate", "250"));
    let (app, _sender) = streaming(by_attribute);
    let _response = send(&app, get("/")).await;
    assert_eq!(remaining(&rules), [9, 750, 4_750, 1]);
    let rules = of_memory();
    let (app, _sender) = streaming(layer(&rules).reserve(|_| 300));
    let _response = send(&app, get("/")).await;
    assert_eq!(remaining(&rules), [9, 700, 4_700, 1]);
    // An estimate of 0 is one of 1: the other rules still apply.
    let rules = of_memory();
    let (app, _sender) = streaming(layer(&rules).reserve(|_| 0));
    let _response = send(&app, get("/")).await;
    assert_eq!(remaining(&rules), [9, 999, 4_999, 1]);
}

/// A refund gives back what was charged or would be. The place is held until the response has ended.
#[tokio::test]
async fn refund_releases_reservations_and_keeps_the_place() {
    let rules = of_memory();
    let (app, sender) = streaming(layer(&rules).refund_if(|_| true).settle(|_| 30));
    let response = send(&app, get("/")).await;
    assert_eq!(remaining(&rules), [10, 1_000, 5_000, 1]);
    drop(sender);
    text(response).await;
    assert_eq!(remaining(&rules), [10, 1_000, 5_000, 2]);
}

#[tokio::test]
async fn handler_extends_reservations_but_not_places_and_settles_each_rule() {
    let rules = of_memory();
    let (before, after) = (rules.clone(), rules.clone());
    let answer = move |admission: Admission| {
        let (before, after) = (before.clone(), after.clone());
        async move {
            let hold = admission.hold().unwrap();
            assert_eq!(hold.units(), 100);
            assert!(hold.extend(200).await.unwrap().unwrap().is_granted());
            assert_eq!(hold.units(), 300);
            assert_eq!(remaining(&before), [9, 700, 4_700, 1]);
            // The tokens would fit into the month, but not into the limit of the client.
            assert!(!hold.extend(701).await.unwrap().unwrap().is_granted());
            assert_eq!(remaining(&before), [9, 700, 4_700, 1]);
            let settled = hold.settle_each(|hold| match hold.scope().name() {
                "api/tokens" => 10,
                _ => 20,
            });
            assert_eq!(settled.await.unwrap().len(), 3);
            assert_eq!(remaining(&after), [9, 990, 4_980, 2]);
        }
    };
    let app = Router::new().fallback(any(answer).layer(layer(&rules).with_decision()));
    assert_eq!(text(send(&app, get("/")).await).await, "");
    assert_eq!(remaining(&rules), [9, 990, 4_980, 2]);
}

#[tokio::test]
async fn estimate_of_each_rule_is_charged_in_full_when_no_cost_is_found() {
    let (_, limiter) = at_midnight();
    let yaml = RULES.replace(
        "limit: month, cost: { reserve: { attribute: estimate, default: 100 } }",
        "limit: month, cost: { reserve: 7 }",
    );
    let rules = rules(&limiter, &yaml);
    let app = Router::new().fallback(any(|| async { "hello" }).layer(layer(&rules)));
    text(send(&app, get("/")).await).await;
    assert_eq!(remaining(&rules), [9, 900, 4_993, 2]);
}

/// The tokens are held for 10 s, the month for 60 s and the place for 30 s.
#[tokio::test(start_paused = true)]
async fn each_rule_is_renewed_for_its_own_time() {
    let limiter = Limiter::builder().clock(Clock::tokio(MIDNIGHT_US)).build();
    let rules = rules(&limiter, RULES);
    let (app, _sender) = streaming(layer(&rules));
    let response = send(&app, get("/")).await;
    let expires_s = || async {
        let mut each = Vec::new();
        for (name, key) in
            [("tokens", "ip=203.0.113.9"), ("month", ""), ("streams", "ip=203.0.113.9")]
        {
            let scope = rules.scope(&format!("api/{name}")).unwrap();
            let state = scope.state(key).await.unwrap();
            let expires_us = state.holds.iter().next().unwrap().expires_us;
            each.push((expires_us - MIDNIGHT_US) / 1_000_000);
        }
        each
    };
    assert_eq!(expires_s().await, [10, 60, 30]);
    sleep(Duration::from_millis(5_500)).await;
    assert_eq!(expires_s().await, [15, 65, 35]);
    sleep(Duration::from_secs(1_000)).await;
    assert_eq!(remaining(&rules), [9, 900, 4_900, 1]);
    drop(response);
    assert_eq!(remaining(&rules), [9, 900, 4_900, 2]);
}

/// `hold_for` of the layer takes precedence.
#[tokio::test]
async fn layers_hold_time_takes_precedence() {
    let rules = of_memory();
    let (app, _sender) = streaming(layer(&rules).hold_for(Duration::from_secs(7)));
    let _response = send(&app, get("/")).await;
    for (name, key) in [("tokens", "ip=203.0.113.9"), ("month", ""), ("streams", "ip=203.0.113.9")]
    {
        let state = rules.scope(&format!("api/{name}")).unwrap().state(key).await.unwrap();
        let expires_us = state.holds.iter().next().unwrap().expires_us;
        assert_eq!(expires_us - MIDNIGHT_US, 7_000_000, "{name}");
    }
}

/// The layer was made before the rules had a concurrency limit.
#[tokio::test]
async fn reload_adds_places_to_a_layer() {
    let (_, limiter) = at_midnight();
    let plain = "
limits: { requests: fixed-window limit=10 window=366d }
rules: [{ name: requests, domain: api, key: [ip], limit: requests }]
";
    let rules = rules(&limiter, plain);
    let layer = layer(&rules);
    let (before, _sender) = streaming(layer.clone());
    let before = send(&before, get("/")).await;
    rules.replace(&config(RULES)).unwrap();
    let (during, _sender) = streaming(layer);
    let during = send(&during, get("/")).await;
    assert_eq!(remaining(&rules), [8, 900, 4_900, 1]);
    drop((before, during));
    assert_eq!(remaining(&rules), [8, 900, 4_900, 2]);
}

/// A shaping rule delays the request, which holds its place meanwhile.
#[tokio::test(start_paused = true)]
async fn delayed_request_holds_its_place_and_frees_it_when_dropped() {
    let limiter = Limiter::builder().clock(Clock::tokio(MIDNIGHT_US)).build();
    let rules = rules(
        &limiter,
        "
limits:
  even: leaky-bucket capacity=10 leak=1/s mode=shaping
  streams: concurrency limit=2 for=30s
rules:
  - { name: even, domain: api, key: [ip], limit: even }
  - { name: streams, domain: api, key: [ip], limit: streams }
",
    );
    let streams = rules.scope("api/streams").unwrap();
    let (first, _sender) = streaming(layer(&rules));
    let first = send(&first, get("/")).await;
    let app = app(layer(&rules));
    let mut second = Box::pin(send(&app, get("/")));
    assert!(poll_once(second.as_mut()).is_pending());
    assert_eq!(held(&streams), 2);
    drop(second);
    assert_eq!(held(&streams), 1);
    // The delay of the dropped request was given back too.
    let began = tokio::time::Instant::now();
    assert_eq!(text(send(&app, get("/")).await).await, "hello");
    assert_eq!(began.elapsed(), Duration::from_secs(1));
    drop(first);
    assert_eq!(held(&streams), 0);
}

#[tokio::test]
async fn rules_that_reserve_nothing_have_no_hold() {
    let (_, limiter) = at_midnight();
    let rules = rules(
        &limiter,
        "
limits: { requests: fixed-window limit=10 window=366d, streams: concurrency limit=1 for=30s }
rules:
  - { name: requests, domain: api, key: [ip], limit: requests }
  - { name: streams, domain: api, when: { path: /stream }, key: [ip], limit: streams }
",
    );
    let answer = |admission: Admission| async move { admission.hold().is_some().to_string() };
    let app = Router::new().fallback(any(answer).layer(layer(&rules).with_decision()));
    assert_eq!(text(send(&app, get("/")).await).await, "false");
    assert_eq!(text(send(&app, get("/stream")).await).await, "true");
}

/// Rules on a store, on tokio's paused clock.
fn on(store: &BreakableStore, policy: &str) -> Rules {
    let builder = Limiter::builder().clock(Clock::tokio(MIDNIGHT_US));
    let builder = builder.store(|_| Ok(store.clone())).unwrap().deadline(PATIENCE);
    let yaml = format!("{RULES}defaults: {{ on_store_failure: {policy} }}\n");
    rules(&builder.on_failure(OnFailure::Closed).build(), &yaml)
}

async fn remaining_on(rules: &Rules) -> [u64; 4] {
    let mut remaining = [0; 4];
    for (at, name) in ["requests", "tokens", "month", "streams"].into_iter().enumerate() {
        let key = if name == "month" { "" } else { "ip=203.0.113.9" };
        let scope = rules.scope(&format!("api/{name}")).unwrap();
        remaining[at] = scope.peek(key).await.unwrap().remaining();
    }
    remaining
}

#[tokio::test(start_paused = true)]
async fn rules_on_a_store_are_reserved_and_settled() {
    let store = BreakableStore::start();
    let rules = on(&store, "closed");
    let free = |response: &dyn ResponseHead| response.status().is_server_error().then_some(0);
    let (app, sender) = streaming(layer(&rules).settle(free));
    let response = send(&app, get("/")).await;
    assert_eq!(remaining_on(&rules).await, [9, 900, 4_900, 1]);
    drop(sender);
    text(response).await;
    assert_eq!(remaining_on(&rules).await, [9, 900, 4_900, 2]);
    // While the store fails, `closed` refuses.
    store.set_failing(true);
    let refused = send(&crate::support::app(layer(&rules)), get("/")).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(start_paused = true)]
async fn rules_with_the_open_policy_admit_without_holds() {
    let store = BreakableStore::start();
    let rules = on(&store, "open");
    store.set_failing(true);
    let answer = || async { Body::from("hello").into_response() };
    let app = Router::new().fallback(any(answer).layer(layer(&rules)));
    for _ in 0..5 {
        let response = send(&app, get("/")).await;
        assert_eq!(rate_limit_headers(&response), "200\n");
        response.into_body().collect().await.unwrap();
    }
    store.set_failing(false);
    assert_eq!(remaining_on(&rules).await, [10, 1_000, 5_000, 2]);
}

/// The handler never saw the request. The charge of a rule that does not reserve stays, as without reservations.
#[tokio::test(start_paused = true)]
async fn reservation_of_rules_that_nothing_waits_for_is_released() {
    let store = BreakableStore::start();
    let rules = on(&store, "closed");
    store.delay_replies();
    let app = app(layer(&rules));
    let mut future = Box::pin(send(&app, get("/")));
    assert!(poll_once(future.as_mut()).is_pending());
    drop(future);
    store.reply();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(remaining_on(&rules).await, [9, 1_000, 5_000, 2]);
}

/// During the stream an operator resets the client's key of the rule `tokens`.
#[tokio::test(start_paused = true)]
async fn place_is_renewed_when_the_hold_of_another_rule_has_ended() {
    let limiter = Limiter::builder().clock(Clock::tokio(MIDNIGHT_US)).build();
    let rules = rules(&limiter, RULES);
    let (app, sender) = streaming(layer(&rules).settle(|_| 30));
    let response = send(&app, get("/")).await;
    rules.scope("api/tokens").unwrap().reset("ip=203.0.113.9").await.unwrap();
    sleep(Duration::from_secs(100)).await;
    assert_eq!(remaining(&rules), [9, 1_000, 4_900, 1]);
    drop(sender);
    text(response).await;
    assert_eq!(remaining(&rules), [9, 1_000, 4_970, 2]);
}
