//! Clients that carry tokens.

use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode};
use tollgate::http::{Identity, Jwt, JwtKey};
use tollgate::tower::RateLimitLayer;
use tollgate::{Limit, ManualClock};

use crate::support::*;

const HOME: &str = "203.0.113.9";
const ELSEWHERE: &str = "198.51.100.1";

/// Tokens with these claims that nobody should believe: signed, and by another.
fn forged(claims: &str) -> String {
    signed(b"a secret that somebody made up ...", claims)
}

fn junk(number: usize) -> String {
    forged(&format!(r#"{{"sub":"{number}","exp":4102444800}}"#))
}

fn identity() -> Identity {
    Identity::new().jwt(Jwt::new([JwtKey::hs256(SECRET).unwrap()]).unwrap()).unwrap()
}

/// Users have 3 each, and addresses too.
fn by_user(identity: Identity) -> (ManualClock, Router) {
    let (clock, limiter) = at_midnight();
    let limit = scope(&limiter, "free", "fixed-window limit=3 window=366d");
    let layer = RateLimitLayer::new(limit).identity(identity);
    let app = app(layer.key(|request| request.claim("sub").map(|sub| sub.into_owned())));
    (clock, app)
}

fn user(name: &str) -> String {
    token(&format!(r#""sub":"{name}""#))
}

fn times(count: usize, token: &str, peer: &str) -> Vec<Request<Body>> {
    (0..count).map(|_| bearing(token, peer)).collect()
}

/// Whether a request counts for whom its token names, and not for its address: nothing is left of that.
async fn is_believed(app: &Router, token: &str, peer: &str) -> bool {
    assert_eq!(admitted(app, times(5, "none", peer)).await, 0, "{peer} has something left");
    status(app, bearing(token, peer)).await == StatusCode::OK
}

/// Spends what an address has, without any token.
async fn spend(app: &Router, peer: &str) {
    assert_eq!(admitted(app, (0..5).map(|_| request("GET", "/", peer))).await, 3);
}

#[tokio::test]
async fn rules_take_tiers_and_keys_from_claims() {
    let yaml = "
limits:
  free: fixed-window limit=2 window=366d
  pro: fixed-window limit=7 window=366d
  enterprise: fixed-window limit=20 window=366d
rules:
  - name: per-user
    domain: api
    key: [{ first_of: [jwt.sub, ip] }]
    limit: { by: jwt.realm.plan, tiers: { pro: pro, enterprise: enterprise, banned: block }, default: free }
identity: { jwt: { keys: [{ algorithm: HS256, secret_file: jwt.secret }] } }
";
    let (clock, limiter) = at_midnight();
    let app = app(RateLimitLayer::rules(&rules(&limiter, yaml), "api"));
    let table = [
        (r#""sub":"ada","realm":{"plan":"pro"}"#, 7),
        (r#""sub":"bob","realm":{"plan":"enterprise"}"#, 20),
        (r#""sub":"cleo","realm":{"plan":"unheard of"}"#, 2),
        (r#""sub":"dan""#, 2),
        (r#""sub":"eve","realm":{"plan":"banned"}"#, 0),
        // Another plan of the same user spends on, up to the new one's limit.
        (r#""sub":"ada","realm":{"plan":"enterprise"}"#, 13),
        // Nobody's in particular: the address is the key, and the plan counts.
        (r#""realm":{"plan":"pro"}"#, 7),
    ];
    for (claims, want) in table {
        assert_eq!(admitted(&app, times(30, &token(claims), HOME)).await, want, "{claims}");
    }
    // A plan that nobody verified is none.
    let claims = r#"{"sub":"ada","realm":{"plan":"enterprise"},"exp":4102444800}"#;
    assert_eq!(admitted(&app, times(30, &forged(claims), ELSEWHERE)).await, 2);
    // Nor is one that has expired meanwhile: with the leeway of 5 s it counts until just before.
    clock.advance(ms(3_605_000 - 1));
    let late = token(r#""sub":"fay","realm":{"plan":"pro"}"#);
    assert_eq!(admitted(&app, times(1, &late, "192.0.2.1")).await, 1);
    clock.advance(ms(1));
    assert_eq!(admitted(&app, times(30, &late, "192.0.2.1")).await, 2);
}

#[tokio::test]
async fn a_closure_makes_keys_of_claims() {
    let (_, app) = by_user(identity());
    for name in ["ada", "bob"] {
        let (own, other) = (user(name), token(&format!(r#""sub":"{name}","jti":"2""#)));
        assert_eq!(admitted(&app, times(2, &own, HOME)).await, 2);
        // Wherever they are, and with whichever token.
        assert_eq!(admitted(&app, times(5, &other, ELSEWHERE)).await, 1);
    }
    assert_eq!(admitted(&app, times(5, &token(r#""name":"nobody""#), HOME)).await, 3);
}

#[tokio::test]
async fn a_bad_token_is_as_none_unless_such_are_refused() {
    let (clock, app) = by_user(identity());
    let expired = signed(SECRET, r#"{"sub":"ada","exp":1700000000}"#);
    let bad = [junk(1), expired, "garbage".to_owned()];
    let mut requests = bad.iter().map(|token| bearing(token, HOME));
    assert_eq!(admitted(&app, requests.by_ref()).await, 3);
    assert_eq!(status(&app, request("GET", "/", HOME)).await, StatusCode::TOO_MANY_REQUESTS);
    drop(clock);

    let (clock, app) = by_user(identity().refuse_invalid_tokens());
    for (token, said) in bad.iter().zip(["signature does not hold", "expired", "malformed"]) {
        let response = send(&app, bearing(token, HOME)).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        let header = |name| header(response.headers(), name);
        assert_eq!(header("www-authenticate").as_deref(), Some("Bearer error=\"invalid_token\""));
        assert_eq!(header("content-type").as_deref(), Some("application/problem+json"));
        assert_eq!((header("retry-after"), header("ratelimit")), (None, None));
        let body = text(response).await;
        let problem: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!((&problem["status"], &problem["type"]), (&401.into(), &"about:blank".into()));
        assert!(problem["detail"].as_str().unwrap().contains(said), "{said}: {body}");
        assert!(!body.contains(&**token));
    }
    // They were charged nothing; who has no token, or a good one, goes.
    spend(&app, HOME).await;
    let ada = user("ada");
    assert_eq!(status(&app, bearing(&ada, HOME)).await, StatusCode::OK);
    clock.advance(ms(3_605_000));
    assert_eq!(status(&app, bearing(&ada, HOME)).await, StatusCode::UNAUTHORIZED);
}

fn verified_at_most(limit: &str) -> Identity {
    identity().token_verifications(limit.parse::<Limit>().unwrap()).unwrap()
}

#[tokio::test]
async fn who_brings_bad_tokens_soon_has_none_looked_at() {
    let (clock, app) = by_user(verified_at_most("fixed-window limit=3 window=1m"));
    for peer in [HOME, ELSEWHERE] {
        spend(&app, peer).await;
    }
    let before = user("known before");
    assert!(is_believed(&app, &before, HOME).await);
    for number in 0..2 {
        status(&app, bearing(&junk(number), HOME)).await;
    }
    assert!(is_believed(&app, &user("in time"), HOME).await);
    status(&app, bearing(&junk(2), HOME)).await;
    // From here on nothing is verified, so nothing new is believed.
    assert!(!is_believed(&app, &user("too late"), HOME).await);
    assert!(is_believed(&app, &before, HOME).await);
    // Elsewhere it is, and then it is known everywhere.
    assert!(is_believed(&app, &user("elsewhere"), ELSEWHERE).await);
    assert!(is_believed(&app, &user("elsewhere"), HOME).await);
    assert!(!is_believed(&app, &user("too late"), HOME).await);
    clock.advance(ms(60_000));
    assert!(is_believed(&app, &user("too late"), HOME).await);
}

#[tokio::test]
async fn good_tokens_and_those_that_no_signature_could_save_cost_no_verification() {
    let (_, app) = by_user(verified_at_most("fixed-window limit=1 window=1m"));
    spend(&app, HOME).await;
    let unsigned = format!("{}.{}.", base64(r#"{"alg":"none"}"#), base64(r#"{"sub":"ada"}"#));
    for number in 0..50 {
        assert!(is_believed(&app, &user(&number.to_string()), HOME).await, "{number}");
        status(&app, bearing(&unsigned, HOME)).await;
        status(&app, bearing(&format!("garbage.{number}"), HOME)).await;
    }
    status(&app, bearing(&junk(0), HOME)).await;
    assert!(!is_believed(&app, &user("too late"), HOME).await);
}

#[tokio::test]
async fn a_token_that_was_not_looked_at_is_not_called_bad() {
    let identity = verified_at_most("fixed-window limit=3 window=1m").refuse_invalid_tokens();
    let (_, app) = by_user(identity);
    let mut seen = Vec::new();
    for number in 0..8 {
        seen.push(status(&app, bearing(&junk(number), HOME)).await.as_u16());
    }
    // By the address, of which 3 go.
    assert_eq!(seen, [401, 401, 401, 200, 200, 200, 429, 429]);
}

#[tokio::test]
async fn all_addresses_of_one_home_have_tokens_verified_together() {
    let (_, app) = by_user(verified_at_most("fixed-window limit=3 window=1m"));
    for number in 0..3 {
        status(&app, bearing(&junk(number), &format!("[2001:db8::{number}]"))).await;
    }
    assert!(!is_believed(&app, &user("ada"), "[2001:db8::99]").await);
    spend(&app, "[2001:db8:1::1]").await;
    assert!(is_believed(&app, &user("ada"), "[2001:db8:1::1]").await);
}
