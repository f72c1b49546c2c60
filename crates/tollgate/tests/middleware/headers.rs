//! Headers and bodies of responses.

use axum::body::Body;
use http::{Response, StatusCode};
use sfv::{BareItem, List, ListEntry, Parser};
use tollgate::http::HeaderFamilies;
use tollgate::tower::RateLimitLayer;

use crate::support::*;

const LIMITS: [&str; 6] = [
    "fixed-window limit=3 window=10s",
    "sliding-window-log limit=3 window=10s",
    "sliding-window-counter limit=3 window=10s",
    "token-bucket capacity=3 refill=3/10s",
    "leaky-bucket capacity=3 leak=3/10s",
    "leaky-bucket capacity=3 leak=3/10s mode=shaping",
];

/// A field's items, as an independent parser reads them: each name with its whole numbers.
fn items(response: &Response<Body>, field: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let text = header(response.headers(), field).unwrap_or_default();
    let list: List = Parser::new(&text).parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    let item = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("{text}: a list in the list") };
        let BareItem::String(name) = &item.bare_item else { panic!("{text}: no text") };
        let number = |(key, value): (&sfv::Key, &BareItem)| match value {
            BareItem::Integer(number) => (key.to_string(), i64::from(*number)),
            other => panic!("{text}: {other:?}"),
        };
        (name.to_string(), item.params.iter().map(number).collect())
    };
    list.iter().map(item).collect()
}

fn number(params: &[(String, i64)], key: &str) -> Option<i64> {
    params.iter().find(|(own, _)| own == key).map(|(_, number)| *number)
}

#[tokio::test(start_paused = true)]
async fn every_response_has_rate_limit_headers() {
    let mut seen = String::new();
    for limit in LIMITS {
        let (_, limiter) = at_midnight();
        let app = app(RateLimitLayer::new(scope(&limiter, "free", limit)).max_wait(ms(3_000)));
        for _ in 0..4 {
            let response = send(&app, get("/")).await;
            seen += &format!("{limit}: {}\n\n", rate_limit_headers(&response));
        }
    }
    insta::assert_snapshot!(seen);
}

#[tokio::test(start_paused = true)]
async fn ietf_headers_are_structured_fields_with_correct_numbers() {
    for limit in LIMITS {
        let (clock, limiter) = at_midnight();
        let app = app(RateLimitLayer::new(scope(&limiter, "free", limit)).max_wait(ms(0)));
        for _ in 0..5 {
            let response = send(&app, get("/")).await;
            let (policies, standings) =
                (items(&response, "ratelimit-policy"), items(&response, "ratelimit"));
            assert_eq!(policies, [("free".into(), vec![("q".into(), 3), ("w".into(), 10)])]);
            let [(name, params)] = &standings[..] else { panic!("{standings:?}") };
            assert_eq!(name, "free");
            // After t seconds more than r remain.
            let (left, wait) = (number(params, "r").unwrap(), number(params, "t").unwrap());
            let later = ms(wait.unsigned_abs() * 1_000);
            let (clock_then, limiter_then) = at_midnight();
            let copy = scope(&limiter_then, "free", limit);
            clock_then.set_us(clock_now(&clock));
            for _ in 0..3 - left {
                assert!(copy.check("x").now().unwrap().is_allowed());
            }
            clock_then.advance(later);
            let remaining = copy.peek("x").now().unwrap().remaining();
            assert!(remaining > left.unsigned_abs(), "{limit}: {params:?}, then {remaining}");
        }
    }
}

fn clock_now(clock: &tollgate::ManualClock) -> u64 {
    tollgate::Clock::from(clock).now_us()
}

const TWO: &str = "
limits:
  free: token-bucket capacity=10 refill=1/s
  everyone: fixed-window limit=4 window=1m
  candidate: fixed-window limit=1 window=1h
rules:
  - { name: per-client, domain: api, key: [ip], limit: free, cost: 2 }
  - { name: whole-service, domain: api, key: [], limit: everyone }
  - { name: stricter, domain: api, key: [ip], limit: candidate, shadow: true }
";

#[tokio::test]
async fn headers_report_every_rule_and_the_tightest_in_x_ratelimit() {
    let (_, limiter) = at_midnight();
    let app = app(RateLimitLayer::rules(&rules(&limiter, TWO), "api"));
    let mut seen = String::new();
    for _ in 0..5 {
        seen += &format!("{}\n\n", rate_limit_headers(&send(&app, get("/")).await));
    }
    insta::assert_snapshot!(seen);
}

#[tokio::test]
async fn shadow_rule_is_never_mentioned() {
    let (_, limiter) = at_midnight();
    let app = app(RateLimitLayer::rules(&rules(&limiter, TWO), "api"));
    for _ in 0..5 {
        let response = send(&app, get("/")).await;
        assert!(!rate_limit_headers(&response).contains("stricter"));
        assert!(!text(response).await.contains("stricter"));
    }
}

#[tokio::test]
async fn each_header_family_can_be_turned_off() {
    let all = HeaderFamilies::ALL;
    let kinds = [
        (all.without_ietf(), ["ratelimit", "ratelimit-policy"].as_slice()),
        (
            all.without_classic(),
            &["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"],
        ),
        (all.without_retry_after(), &["retry-after"]),
    ];
    for (families, gone) in kinds {
        let (_, limiter) = at_midnight();
        let limit = scope(&limiter, "free", "fixed-window limit=1 window=10s");
        let app = app(RateLimitLayer::new(limit).headers(families));
        for response in [send(&app, get("/")).await, send(&app, get("/")).await] {
            let names = rate_limit_headers(&response);
            for name in gone {
                assert!(!names.contains(&format!("\n{name}:")), "{name} in {names}");
            }
            let others = names.lines().count() - 1;
            let refused = usize::from(response.status() != StatusCode::OK);
            assert_eq!(
                others,
                5 + refused - gone.len().min(if gone[0] == "retry-after" { refused } else { 3 })
            );
        }
    }
}

#[tokio::test]
async fn retry_after_is_rounded_up_and_never_zero() {
    let (clock, limiter) = at_midnight();
    let app =
        app(RateLimitLayer::new(scope(&limiter, "free", "token-bucket capacity=1 refill=1/2s")));
    assert_eq!(status(&app, get("/")).await, StatusCode::OK);
    for (after_us, retry_after) in [(0, "2"), (999_999, "2"), (1, "1"), (999_999, "1")] {
        clock.advance(std::time::Duration::from_micros(after_us));
        let response = send(&app, get("/")).await;
        assert_eq!(header(response.headers(), "retry-after").as_deref(), Some(retry_after));
    }
    clock.advance(std::time::Duration::from_micros(1));
    assert_eq!(status(&app, get("/")).await, StatusCode::OK);
}

#[tokio::test]
async fn request_that_can_never_be_allowed_has_no_retry_after() {
    let (_, limiter) = at_midnight();
    let limit = scope(&limiter, "free", "token-bucket capacity=3 refill=1/s");
    let app = app(RateLimitLayer::new(limit).cost(|_| 4));
    let response = send(&app, get("/")).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(response.headers(), "retry-after"), None);
    insta::assert_snapshot!(text(response).await);
}

#[tokio::test]
async fn refusal_is_a_problem_document_that_names_the_policies() {
    let (_, limiter) = at_midnight();
    let yaml = TWO.replace("limit=4", "limit=1").replace("capacity=10", "capacity=3");
    let app = app(RateLimitLayer::rules(&rules(&limiter, &yaml), "api"));
    assert_eq!(status(&app, get("/")).await, StatusCode::OK);
    let response = send(&app, get("/")).await;
    assert_eq!(
        header(response.headers(), "content-type").as_deref(),
        Some("application/problem+json")
    );
    let problem: serde_json::Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(problem["violated-policies"], serde_json::json!(["per-client", "whole-service"]));
    insta::assert_snapshot!(serde_json::to_string_pretty(&problem).unwrap());
}

#[tokio::test]
async fn odd_limit_name_makes_a_valid_header() {
    for name in ["a \"b\" \\ c", "größe\n\u{0}", &"long".repeat(100), ""] {
        let (_, limiter) = at_midnight();
        let app = app(RateLimitLayer::new(scope(
            &limiter,
            name,
            "fixed-window limit=9007199254740990 window=366d",
        )));
        let response = send(&app, get("/")).await;
        let [(written, params)] = &items(&response, "ratelimit")[..] else { panic!("{name}") };
        assert!(written.len() <= 96);
        assert_eq!(number(params, "r"), Some(999_999_999_999_999));
        items(&response, "ratelimit-policy");
    }
}

#[tokio::test]
async fn nested_layers_add_to_the_lists_and_the_tighter_fills_x_ratelimit() {
    let (_, limiter) = at_midnight();
    let tight = || RateLimitLayer::new(scope(&limiter, "tight", "fixed-window limit=5 window=1m"));
    let wide = || RateLimitLayer::new(scope(&limiter, "wide", "fixed-window limit=50 window=1m"));
    for (inner, outer) in [(tight(), wide()), (wide(), tight())] {
        let response = send(&app(inner).layer(outer), get("/")).await;
        let names: Vec<_> =
            items(&response, "ratelimit").into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        assert_eq!(items(&response, "ratelimit-policy").len(), 2);
        assert_eq!(header(response.headers(), "x-ratelimit-limit").as_deref(), Some("5"));
        assert!(
            header(response.headers(), "x-ratelimit-remaining").unwrap().parse::<u64>().unwrap()
                < 5
        );
    }
}

#[tokio::test]
async fn refused_head_has_the_content_length_of_a_get() {
    let (_, limiter) = at_midnight();
    let app = app(RateLimitLayer::new(scope(&limiter, "free", "fixed-window limit=1 window=1m")));
    assert_eq!(status(&app, get("/")).await, StatusCode::OK);
    let full = send(&app, get("/")).await;
    let response = send(&app, request("HEAD", "/", "203.0.113.9")).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rate_limit_headers(&full), rate_limit_headers(&response));
    let length = header(response.headers(), "content-length").unwrap();
    assert_eq!(text(response).await, "");
    assert_eq!(text(full).await.len().to_string(), length);
}

#[tokio::test]
async fn headers_report_the_inner_layer_when_it_refuses() {
    let (_, limiter) = at_midnight();
    let inner = RateLimitLayer::new(scope(&limiter, "inner", "token-bucket capacity=6 refill=1/s"))
        .cost(|_| 4);
    let outer = RateLimitLayer::new(scope(&limiter, "outer", "fixed-window limit=3 window=1m"));
    let app = app(inner).layer(outer);
    assert_eq!(status(&app, get("/")).await, StatusCode::OK);
    let response = send(&app, get("/")).await;
    // The outer limit has 1 left. The inner one has 2 left, which is too few.
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(response.headers(), "x-ratelimit-limit").as_deref(), Some("6"));
    assert_eq!(header(response.headers(), "retry-after").as_deref(), Some("2"));
    assert_eq!(items(&response, "ratelimit").len(), 2);
}

#[tokio::test]
async fn headers_list_the_tightest_of_many_rules() {
    let (_, limiter) = at_midnight();
    let limits: String = (1..=100)
        .map(|n| format!("  l{n}: fixed-window limit={} window=1h\n", 1_000 - n))
        .collect();
    let rule = |n| format!("  - {{ name: r{n}, domain: api, key: [ip], limit: l{n} }}\n");
    let yaml = format!("limits:\n{limits}rules:\n{}", (1..=100).map(rule).collect::<String>());
    let app = app(RateLimitLayer::rules(&rules(&limiter, &yaml), "api"));
    let response = send(&app, get("/")).await;
    let names: Vec<_> = items(&response, "ratelimit").into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["r93", "r94", "r95", "r96", "r97", "r98", "r99", "r100"]);
    assert_eq!(header(response.headers(), "x-ratelimit-limit").as_deref(), Some("900"));
}

#[tokio::test]
async fn blocked_request_is_a_403_without_rate_limit_headers() {
    let (_, limiter) = at_midnight();
    let yaml = "
limits: { free: fixed-window limit=3 window=1h }
rules:
  - { name: banned, domain: api, when: { path: /secret }, key: [ip], limit: block }
  - { name: per-client, domain: api, key: [ip], limit: free }
";
    let app = app(RateLimitLayer::rules(&rules(&limiter, yaml), "api"));
    let response = send(&app, get("/secret")).await;
    assert_eq!(rate_limit_headers(&response), "403\n");
    insta::assert_snapshot!(text(response).await);
    assert_eq!(status(&app, get("/")).await, StatusCode::OK);
}

#[tokio::test]
async fn blocked_request_can_be_answered_with_429() {
    let (_, limiter) = at_midnight();
    let yaml = "rules: [{ name: banned, domain: api, key: [ip], limit: block }]";
    let layer = RateLimitLayer::rules(&rules(&limiter, yaml), "api")
        .on_refusal(|_, refusal| refusal.with_status(StatusCode::TOO_MANY_REQUESTS).response());
    assert_eq!(rate_limit_headers(&send(&app(layer), get("/")).await), "429\n");
}

#[tokio::test]
async fn refusal_names_the_limit_of_the_clients_tier() {
    let (_, limiter) = at_midnight();
    let yaml = "
limits: { free: fixed-window limit=1 window=1h, pro: fixed-window limit=2 window=1h }
rules: [{ name: per-client, domain: api, key: [tier], limit: { by: tier, tiers: { pro: pro }, default: free } }]
";
    for (tier, limit, admits) in [("pro", "pro", 2), ("other", "free", 1)] {
        let layer = RateLimitLayer::rules(&rules(&limiter, yaml), "api")
            .attributes(move |_, attributes| attributes.with("tier", tier));
        let app = app(layer);
        assert_eq!(admitted(&app, (0..5).map(|_| get("/"))).await, admits);
        let problem = text(send(&app, get("/")).await).await;
        let problem: serde_json::Value = serde_json::from_str(&problem).unwrap();
        assert_eq!(
            (&problem["rule"], &problem["limit_name"]),
            (&"per-client".into(), &limit.into())
        );
        let detail = format!("`per-client` is spent (limit `{limit}`); come back in 3600 s");
        assert_eq!(problem["detail"], detail);
    }
}

#[tokio::test]
async fn application_can_add_attributes_for_rules() {
    #[derive(Clone)]
    struct User(&'static str);
    let (_, limiter) = at_midnight();
    let yaml = "
limits: { free: fixed-window limit=2 window=1h, pro: fixed-window limit=4 window=1h }
rules: [{ name: r, domain: api, key: [user], limit: { by: tier, tiers: { pro: pro }, default: free } }]
";
    let layer =
        RateLimitLayer::rules(&rules(&limiter, yaml), "api").attributes(|request, attributes| {
            match request.extensions().get() {
                Some(User(plan)) => attributes.with("tier", *plan).with("user", "alice"),
                None => attributes.with("user", "anonymous"),
            }
        });
    let app = app(layer);
    let of = |plan: &'static str| {
        let mut request = get("/");
        request.extensions_mut().insert(User(plan));
        request
    };
    assert_eq!(admitted(&app, (0..6).map(|_| of("pro"))).await, 4);
    assert_eq!(admitted(&app, (0..6).map(|_| get("/"))).await, 2);
}
