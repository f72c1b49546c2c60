//! Clients with tokens.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use http::{HeaderValue, Request, StatusCode};
use tollgate::http::{Identity, Jwt, JwtKey};
use tollgate::tower::RateLimitLayer;
use tollgate::{Limiter, ManualClock};

use crate::log::Log;
use crate::support::*;

const ADDRESS: &str = "203.0.113.9";
const OTHER_ADDRESS: &str = "198.51.100.1";

/// A token with these claims that is signed with a wrong secret.
fn forged(claims: &str) -> String {
    signed(b"a secret that the client made up..", claims)
}

fn junk(number: usize) -> String {
    forged(&format!(r#"{{"sub":"{number}","exp":4102444800}}"#))
}

fn identity() -> Identity {
    Identity::new().jwt(Jwt::new([JwtKey::hs256(SECRET).unwrap()]).unwrap())
}

/// An application that limits each user to 3, and each address without a user to 3.
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

/// Whether a request counts for the user of its token, and not for its address, which must have nothing left.
async fn is_believed(app: &Router, token: &str, peer: &str) -> bool {
    assert_eq!(admitted(app, times(5, "none", peer)).await, 0, "{peer} has something left");
    status(app, bearing(token, peer)).await == StatusCode::OK
}

/// Spends the quota of an address, without a token.
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
        // Under another plan the same user keeps the 7 units spent, so 13 of 20 remain.
        (r#""sub":"ada","realm":{"plan":"enterprise"}"#, 13),
        // Without a user the address is the key, and the plan counts.
        (r#""realm":{"plan":"pro"}"#, 7),
    ];
    for (claims, want) in table {
        assert_eq!(admitted(&app, times(30, &token(claims), ADDRESS)).await, want, "{claims}");
    }
    // The plan of a forged token is ignored.
    let claims = r#"{"sub":"ada","realm":{"plan":"enterprise"},"exp":4102444800}"#;
    assert_eq!(admitted(&app, times(30, &forged(claims), OTHER_ADDRESS)).await, 2);
    // The plan of an expired token is ignored too. With the leeway of 5 s it still counts 1 ms before.
    clock.advance(ms(3_605_000 - 1));
    let late = token(r#""sub":"fay","realm":{"plan":"pro"}"#);
    assert_eq!(admitted(&app, times(1, &late, "192.0.2.1")).await, 1);
    clock.advance(ms(1));
    assert_eq!(admitted(&app, times(30, &late, "192.0.2.1")).await, 2);
}

#[tokio::test]
async fn tokens_without_expiry_are_counted_and_logged() {
    let log = Log::default();
    let lines = Arc::clone(&log.lines);
    let _logging = tracing::subscriber::set_default(log);
    let identity = identity();
    let (_, app) = by_user(identity.clone());
    let token = signed(SECRET, r#"{"sub":"ada"}"#);
    assert_eq!(admitted(&app, times(12, &token, ADDRESS)).await, 3, "the limit of the address");
    assert_eq!(admitted(&app, times(1, &junk(1), OTHER_ADDRESS)).await, 1);
    let counts = identity.rejected_tokens();
    let rejected: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(rejected, [("signature", 1), ("no_expiry", 12)]);
    let lines = lines.lock().unwrap();
    let warnings: Vec<_> = lines.iter().filter(|line| line.contains("no `exp`")).collect();
    assert_eq!(warnings.len(), 2, "the first and the tenth: {lines:?}");
    assert!(warnings.iter().all(|line| line.starts_with("WARN ")), "{warnings:?}");
}

#[tokio::test]
async fn key_closure_can_use_claims() {
    let (_, app) = by_user(identity());
    for name in ["ada", "bob"] {
        let (own, other) = (user(name), token(&format!(r#""sub":"{name}","jti":"2""#)));
        assert_eq!(admitted(&app, times(2, &own, ADDRESS)).await, 2);
        // From any address, and with any token of the user.
        assert_eq!(admitted(&app, times(5, &other, OTHER_ADDRESS)).await, 1);
    }
    assert_eq!(admitted(&app, times(5, &token(r#""name":"no subject""#), ADDRESS)).await, 3);
}

#[tokio::test]
async fn bad_token_is_ignored_unless_bad_tokens_are_refused() {
    let (clock, app) = by_user(identity());
    let expired = signed(SECRET, r#"{"sub":"ada","exp":1700000000}"#);
    let bad = [junk(1), expired, "garbage".to_owned()];
    let mut requests = bad.iter().map(|token| bearing(token, ADDRESS));
    assert_eq!(admitted(&app, requests.by_ref()).await, 3);
    assert_eq!(status(&app, request("GET", "/", ADDRESS)).await, StatusCode::TOO_MANY_REQUESTS);
    drop(clock);

    let (clock, app) = by_user(identity().refuse_invalid_tokens());
    for (token, reason) in bad.iter().zip(["signature does not hold", "expired", "malformed"]) {
        let response = send(&app, bearing(token, ADDRESS)).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        let header = |name| header(response.headers(), name);
        assert_eq!(header("www-authenticate").as_deref(), Some("Bearer error=\"invalid_token\""));
        assert_eq!(header("content-type").as_deref(), Some("application/problem+json"));
        assert_eq!((header("retry-after"), header("ratelimit")), (None, None));
        let body = text(response).await;
        let problem: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!((&problem["status"], &problem["type"]), (&401.into(), &"about:blank".into()));
        assert!(problem["detail"].as_str().unwrap().contains(reason), "{reason}: {body}");
        assert!(!body.contains(&**token));
    }
    // Nothing was charged to the address: requests without a token, or with a good one, are admitted.
    spend(&app, ADDRESS).await;
    let ada = user("ada");
    assert_eq!(status(&app, bearing(&ada, ADDRESS)).await, StatusCode::OK);
    clock.advance(ms(3_605_000));
    assert_eq!(status(&app, bearing(&ada, ADDRESS)).await, StatusCode::UNAUTHORIZED);
}

fn verified_at_most(limit: &str) -> Identity {
    identity().token_verifications(limit).unwrap()
}

#[tokio::test]
async fn new_tokens_are_not_verified_at_an_address_that_sent_only_bad_ones() {
    let (clock, app) = by_user(verified_at_most("fixed-window limit=3 window=1m"));
    for peer in [ADDRESS, OTHER_ADDRESS] {
        spend(&app, peer).await;
    }
    for number in 0..3 {
        status(&app, bearing(&junk(number), ADDRESS)).await;
    }
    assert!(!is_believed(&app, &user("too late"), ADDRESS).await);
    // A token that was verified at another address is known at this one too.
    assert!(is_believed(&app, &user("elsewhere"), OTHER_ADDRESS).await);
    assert!(is_believed(&app, &user("elsewhere"), ADDRESS).await);
    clock.advance(ms(60_000));
    assert!(is_believed(&app, &user("too late"), ADDRESS).await);
}

#[tokio::test]
async fn new_good_tokens_are_verified_at_an_address_with_good_and_bad_ones() {
    let (_, app) = by_user(verified_at_most("fixed-window limit=3 window=1m"));
    spend(&app, ADDRESS).await;
    // Each request with a good token earns the address one more verification.
    for number in 0..20 {
        assert!(is_believed(&app, &user(&format!("colleague {number}")), ADDRESS).await);
    }
    // More bad tokens than the address has allowance for, and fewer than it earned.
    for number in 0..15 {
        status(&app, bearing(&junk(number), ADDRESS)).await;
    }
    assert!(is_believed(&app, &user("new"), ADDRESS).await);
}

#[tokio::test]
async fn repeated_bad_token_does_not_keep_others_from_being_verified() {
    let (_, app) = by_user(verified_at_most("fixed-window limit=3 window=1m"));
    spend(&app, ADDRESS).await;
    let expired = signed(SECRET, r#"{"sub":"ada","exp":1700000000}"#);
    for token in [junk(1), expired] {
        for _ in 0..100 {
            status(&app, bearing(&token, ADDRESS)).await;
        }
    }
    assert!(is_believed(&app, &user("new"), ADDRESS).await);
}

#[tokio::test]
async fn bad_tokens_are_verified_within_the_limit_and_credit_of_their_address() {
    let identity = verified_at_most("fixed-window limit=3 window=1m").refuse_invalid_tokens();
    let (_, app) = by_user(identity);
    // Limited to 3 admitted requests each, but all 8 have a good token.
    for name in ["ada", "bob"] {
        admitted(&app, times(4, &user(name), ADDRESS)).await;
    }
    let statuses = seen(&app, (0..30).map(|at| bearing(&junk(at), ADDRESS))).await;
    let verified = statuses.iter().filter(|status| **status == 401).count();
    assert_eq!(verified, 3 + 8, "{statuses:?}");
}

#[tokio::test]
async fn good_and_malformed_tokens_use_no_verification() {
    let (_, app) = by_user(verified_at_most("fixed-window limit=1 window=1m"));
    spend(&app, ADDRESS).await;
    let unsigned = format!("{}.{}.", base64(r#"{"alg":"none"}"#), base64(r#"{"sub":"ada"}"#));
    for number in 0..50 {
        assert!(is_believed(&app, &user(&number.to_string()), ADDRESS).await, "{number}");
        status(&app, bearing(&unsigned, ADDRESS)).await;
        status(&app, bearing(&format!("garbage.{number}"), ADDRESS)).await;
    }
    // The allowance of one and the 50 that the good tokens earned are spent by 51 bad ones, not by 50.
    for number in 0..50 {
        status(&app, bearing(&junk(number), ADDRESS)).await;
    }
    assert!(is_believed(&app, &user("in time"), ADDRESS).await);
    for number in 50..52 {
        status(&app, bearing(&junk(number), ADDRESS)).await;
    }
    assert!(!is_believed(&app, &user("too late"), ADDRESS).await);
}

/// The statuses of requests, one after the other.
async fn seen(app: &Router, requests: impl IntoIterator<Item = Request<Body>>) -> Vec<u16> {
    let mut seen = Vec::new();
    for request in requests {
        seen.push(status(app, request).await.as_u16());
    }
    seen
}

#[tokio::test]
async fn address_with_too_many_bad_tokens_gets_429() {
    let identity = verified_at_most("fixed-window limit=3 window=1m").refuse_invalid_tokens();
    let (clock, app) = by_user(identity);
    let ada = user("ada");
    assert_eq!(status(&app, bearing(&ada, ADDRESS)).await, StatusCode::OK);
    let bad = |at| bearing(&junk(at), ADDRESS);
    // The limit allows three, and the request with a good token one more.
    assert_eq!(seen(&app, (0..6).map(bad)).await, [401, 401, 401, 401, 429, 429]);
    // A new good token is not verified either, so the answer is not 401 but says how long to wait.
    let response = send(&app, bearing(&user("bob"), ADDRESS)).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(response.headers(), "retry-after").as_deref(), Some("60"));
    assert_eq!(header(response.headers(), "www-authenticate"), None);
    // Requests with a known token, without a token or from another address are let through.
    assert_eq!(status(&app, bearing(&ada, ADDRESS)).await, StatusCode::OK);
    spend(&app, ADDRESS).await;
    assert_eq!(status(&app, bearing(&user("bob"), OTHER_ADDRESS)).await, StatusCode::OK);
    clock.advance(ms(60_000));
    let bad = |at: usize| bearing(&junk(100 + at), ADDRESS);
    assert_eq!(seen(&app, (0..6).map(bad)).await, [401, 401, 401, 401, 429, 429]);
}

#[tokio::test]
async fn every_401_uses_one_verification_of_its_address() {
    let expired = signed(SECRET, r#"{"sub":"ada","exp":1700000000}"#);
    let unsigned = format!("{}.{}.", base64(r#"{"alg":"none"}"#), base64(r#"{"sub":"ada"}"#));
    let long = "x".repeat(9_000);
    for token in [&*junk(1), &expired, &unsigned, &long, "garbage", "a.b.c", "\tx", ""] {
        let identity = verified_at_most("fixed-window limit=3 window=1m").refuse_invalid_tokens();
        let (_, app) = by_user(identity);
        assert_eq!(
            seen(&app, times(5, token, ADDRESS)).await,
            [401, 401, 401, 429, 429],
            "{token}"
        );
    }
    // A good token counts as bad once it has expired. Its two good requests have earned two verifications, of which
    // one tells that it has expired; after that it is known as bad.
    let identity = verified_at_most("fixed-window limit=1 window=1m").refuse_invalid_tokens();
    let (clock, app) = by_user(identity);
    let ada = user("ada");
    assert_eq!(seen(&app, times(2, &ada, ADDRESS)).await, [200, 200]);
    clock.advance(ms(3_605_000));
    assert_eq!(seen(&app, times(3, &ada, ADDRESS)).await, [401, 401, 429]);
}

#[tokio::test]
async fn unreadable_authorization_is_a_bad_token() {
    let lines = |lines: &[&[u8]]| {
        let mut request = request("GET", "/", ADDRESS);
        for line in lines {
            let line = HeaderValue::from_bytes(line).unwrap();
            request.headers_mut().append("authorization", line);
        }
        request
    };
    let (ada, bob) = (format!("Bearer {}", user("ada")), format!("Bearer {}", user("bob")));
    let (ada, bob) = (ada.as_bytes(), bob.as_bytes());
    let table: [(&[&[u8]], u16); 11] = [
        (&[], 200),
        (&[b"Basic YTpi"], 200),
        (&[b"Basic YTpi", b"Digest x"], 200),
        (&[ada], 200),
        (&[ada, bob], 401),
        (&[ada, ada], 401),
        (&[ada, b"Basic YTpi"], 401),
        (&[b"Basic YTpi", ada], 401),
        (&[b"Bearer\tx"], 401),
        (&[b"Bearer \xff"], 401),
        (&[b"Bearer"], 401),
    ];
    let (_, strict) = by_user(identity().refuse_invalid_tokens());
    for (sent, want) in table {
        let response = send(&strict, lines(sent)).await;
        assert_eq!(response.status().as_u16(), want, "{sent:?}");
        let challenge = header(response.headers(), "www-authenticate");
        assert_eq!(challenge.is_some(), want == 401, "{sent:?}");
    }
    // If bad tokens are not refused, a request with two tokens counts for its address and for neither user.
    let (_, lenient) = by_user(identity());
    let both = (0..9).map(|_| lines(&[ada, bob]));
    assert_eq!(admitted(&lenient, both).await, 3);
    assert_eq!(admitted(&lenient, times(9, &user("ada"), ADDRESS)).await, 3);
    assert_eq!(admitted(&lenient, times(9, &user("bob"), ADDRESS)).await, 3);
}

#[tokio::test]
async fn token_settings_apply_in_any_order() {
    let jwt = || Jwt::new([JwtKey::hs256(SECRET).unwrap()]).unwrap();
    let limit = "fixed-window limit=2 window=1m";
    let orders = [
        Identity::new().jwt(jwt()).refuse_invalid_tokens().token_verifications(limit).unwrap(),
        Identity::new().refuse_invalid_tokens().jwt(jwt()).token_verifications(limit).unwrap(),
        Identity::new().token_verifications(limit).unwrap().refuse_invalid_tokens().jwt(jwt()),
        Identity::new().token_verifications(limit).unwrap().jwt(jwt()).refuse_invalid_tokens(),
    ];
    for (number, identity) in orders.into_iter().enumerate() {
        let (_, app) = by_user(identity);
        assert_eq!(status(&app, bearing(&user("ada"), ADDRESS)).await, StatusCode::OK);
        let bad = (0..4).map(|at| bearing(&junk(at), ADDRESS));
        assert_eq!(seen(&app, bad).await, [401, 401, 401, 429], "{number}");
    }
    assert!(Identity::new().token_verifications("token-bucket").is_err());
    // Without verification keys every token is ignored.
    let (_, app) = by_user(Identity::new().refuse_invalid_tokens());
    assert_eq!(seen(&app, times(4, "garbage", ADDRESS)).await, [200, 200, 200, 429]);
}

#[tokio::test]
async fn tokens_expire_by_the_limiters_clock() {
    // The limiter's clock is in 2001, when the token was valid.
    let clock = ManualClock::at_us(1_000_000_000_000_000);
    let limiter = Limiter::builder().clock(&clock).build();
    let limit = scope(&limiter, "free", "fixed-window limit=3 window=366d");
    let verifications = "fixed-window limit=1 window=1m";
    let identity = identity().refuse_invalid_tokens().token_verifications(verifications).unwrap();
    let app = app(RateLimitLayer::new(limit).identity(identity));
    let old = signed(SECRET, r#"{"sub":"ada","nbf":1000000000,"exp":1000000100}"#);
    assert_eq!(status(&app, bearing(&old, ADDRESS)).await, StatusCode::OK);
    clock.advance(ms(105_000));
    // The good request earned the address one verification more.
    assert_eq!(seen(&app, times(3, &old, ADDRESS)).await, [401, 401, 429]);
    // The allowance of an address is counted by the same clock.
    clock.advance(ms(60_000));
    assert_eq!(seen(&app, times(2, &old, ADDRESS)).await, [401, 429]);
}

#[tokio::test]
async fn addresses_of_one_ipv6_network_share_token_verifications() {
    let (_, app) = by_user(verified_at_most("fixed-window limit=3 window=1m"));
    for number in 0..3 {
        status(&app, bearing(&junk(number), &format!("[2001:db8::{number}]"))).await;
    }
    assert!(!is_believed(&app, &user("ada"), "[2001:db8::99]").await);
    spend(&app, "[2001:db8:1::1]").await;
    assert!(is_believed(&app, &user("ada"), "[2001:db8:1::1]").await);
}

#[tokio::test]
async fn too_many_bad_tokens_are_reported_as_token_verifications() {
    let limiter = Limiter::memory();
    let limit = scope(&limiter, "free", "token-bucket capacity=20 refill=5/s");
    let app = app(RateLimitLayer::new(limit).identity(identity().refuse_invalid_tokens()));
    let mut last = None;
    for number in 0..40 {
        last = Some(send(&app, bearing(&junk(number), ADDRESS)).await);
    }
    let refused = last.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let value = header(refused.headers(), "ratelimit").unwrap();
    assert!(value.starts_with("\"token-verifications\";r=0"), "{value}");
}
