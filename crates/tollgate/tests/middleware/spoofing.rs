//! Clients that claim to be another client.

use axum::Router;
use axum::body::Body;
use http::Request;
use tollgate::http::{Forwarding, Identity, Ipv6Prefix, TrustedProxies};
use tollgate::tower::RateLimitLayer;

use crate::support::*;

/// Rules with every attribute that can identify a client. The limit is 5, or 1,000 for the tier `pro`.
const RULES: &str = "
limits: { free: fixed-window limit=5 window=366d, pro: fixed-window limit=1000 window=366d }
rules:
  - name: per-client
    domain: api
    key: [{ first_of: [header.x-tenant, jwt.sub, api_key, ip] }]
    limit: { by: tier, tiers: { pro: pro }, default: free }
  - name: per-plan
    domain: api
    key: [{ first_of: [header.x-tenant, jwt.sub, api_key, ip] }]
    limit: { by: jwt.plan, tiers: { pro: pro }, default: free }
api_keys: { k_genuine: pro, k_plain: free }
";

/// Tokens, with a limit on verifications that no test reaches.
const TOKENS: &str = "
  jwt:
    keys: [{ algorithm: HS256, secret_file: jwt.secret }, { algorithm: RS256, public_key_file: rsa.pem }]
    verifications: fixed-window limit=1000000 window=1s
";

/// Trusted proxies, and the header that they may set.
const PROXIES: &str = "
  trusted_proxies: [10.0.0.0/8]
  trusted_headers: [x-tenant]
";

fn by_rules(identity: &str) -> Router {
    let (_, limiter) = at_midnight();
    let yaml = match identity {
        "" => RULES.to_owned(),
        identity => format!("{RULES}identity:{identity}"),
    };
    app(RateLimitLayer::rules(&rules(&limiter, &yaml), "api"))
}

fn by_address(identity: Identity) -> Router {
    let limit = RateLimitLayer::per_ip("fixed-window limit=5 window=366d").unwrap();
    app(limit.identity(identity))
}

fn trusted(forwarding: Forwarding) -> Identity {
    let proxies = TrustedProxies::new(["10.0.0.0/8"]).unwrap();
    Identity::new().trusted_proxies(proxies.reading(forwarding))
}

/// A header, and its value in each request.
type Forgery = (&'static str, fn(usize) -> String);

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

fn claims(at: usize, exp: u64) -> String {
    format!(r#"{{"sub":"user-{at}","plan":"pro","exp":{exp}}}"#)
}

/// An hour after midnight, in seconds.
const LATER: u64 = MIDNIGHT_US / 1_000_000 + 3_600;

const FORGERIES: [Forgery; 17] = [
    ("x-forwarded-for", |at| format!("198.51.{}.{}", at / 250, at % 250)),
    ("x-forwarded-for", |at| format!("2001:db8:{at:x}::1, 10.0.0.1")),
    ("forwarded", |at| format!("for=198.51.{}.{};proto=https", at / 250, at % 250)),
    ("forwarded", |at| format!("for=\"[2001:db8:{at:x}::1]:443\"")),
    ("x-real-ip", |at| format!("198.51.{}.{}", at / 250, at % 250)),
    ("cf-connecting-ip", |at| format!("198.51.{}.{}", at / 250, at % 250)),
    ("x-api-key", |at| format!("k_{at}")),
    ("x-api-key", |at| format!("k_genuine{}", " x".repeat(at % 7 + 1))),
    ("x-tenant", |at| format!("tenant-{at}")),
    ("authorization", |at| format!("Basic {}", base64(&format!("user-{at}:secret")))),
    ("authorization", |at| bearer(&format!("garbage-{at}"))),
    ("authorization", |at| {
        let header = base64(r#"{"alg":"none"}"#);
        bearer(&format!("{header}.{}.", base64(&claims(at, LATER))))
    }),
    ("authorization", |at| {
        // Correctly signed, but expired.
        bearer(&signed(SECRET, &claims(at, MIDNIGHT_US / 1_000_000 - 3_600)))
    }),
    ("authorization", |at| {
        bearer(&signed(b"a secret that the client made up..", &claims(at, LATER)))
    }),
    ("authorization", |at| {
        // Signed with the public key as if it were a secret.
        bearer(&signed(RSA_PUBLIC.as_bytes(), &claims(at, LATER)))
    }),
    ("authorization", |at| {
        // The signature of another token, under changed claims.
        let genuine = signed(SECRET, &claims(0, LATER));
        let (_, signature) = genuine.rsplit_once('.').unwrap();
        let header = base64(r#"{"alg":"HS256"}"#);
        bearer(&format!("{header}.{}.{signature}", base64(&claims(at + 1, LATER))))
    }),
    ("x-ratelimit-limit", |at| at.to_string()),
];

/// Requests from one address, each with another forged identity.
fn forged((name, value): Forgery, count: usize) -> impl Iterator<Item = Request<Body>> {
    (0..count).map(move |at| with(request("GET", "/", "203.0.113.9"), name, &value(at)))
}

#[tokio::test]
async fn client_that_forges_headers_stays_in_one_bucket() {
    for forgery in FORGERIES {
        let apps = [
            (by_rules(&format!("{PROXIES}{TOKENS}")), 500),
            (by_rules(TOKENS), 50),
            (by_rules(""), 50),
            (by_address(Identity::new()), 50),
            (by_address(trusted(Forwarding::XForwardedFor)), 50),
            (by_address(trusted(Forwarding::Forwarded)), 50),
            (by_address(trusted(Forwarding::XRealIp)), 50),
        ];
        for (number, (app, count)) in apps.iter().enumerate() {
            let admitted_count = admitted(app, forged(forgery, *count)).await;
            assert_eq!(admitted_count, 5, "{}: {}, app {number}", forgery.0, forgery.1(1));
            // It has spent the quota of its own address, and of no other.
            assert_eq!(admitted(app, [request("GET", "/", "203.0.113.9")]).await, 0);
            assert_eq!(admitted(app, [request("GET", "/", "203.0.113.10")]).await, 1);
        }
    }
}

#[tokio::test]
async fn combined_forged_headers_stay_in_one_bucket() {
    let app = by_rules(&format!("{PROXIES}{TOKENS}"));
    let all = (0..500).map(|at| {
        FORGERIES.iter().fold(get("/"), |request, (name, value)| with(request, name, &value(at)))
    });
    assert_eq!(admitted(&app, all).await, 5);
}

/// 500 requests through a trusted proxy, with these values of a forwarding header.
fn through_a_proxy(header: &'static str, value: impl Fn(usize) -> String) -> Vec<Request<Body>> {
    (0..500).map(|at| with(request("GET", "/", "10.0.0.7"), header, &value(at))).collect()
}

#[tokio::test]
async fn rightmost_untrusted_address_is_the_client_behind_a_trusted_proxy() {
    type Value = fn(usize) -> String;
    let table: [(Forwarding, &'static str, Value, Value); 5] = [
        (
            Forwarding::XForwardedFor,
            "x-forwarded-for",
            |at| format!("198.51.{}.{}, 203.0.113.9", at / 250, at % 250),
            |_| "203.0.113.10".into(),
        ),
        (
            // Two proxies, one after the other.
            Forwarding::XForwardedFor,
            "x-forwarded-for",
            |at| format!("198.51.{}.{}, 10.1.1.1, 203.0.113.9, 10.0.0.8", at / 250, at % 250),
            |_| "203.0.113.9, 203.0.113.10, 10.0.0.8".into(),
        ),
        (
            Forwarding::XForwardedFor,
            "x-forwarded-for",
            |at| format!("\"{at}, 203.0.113.9:{}", 1024 + at),
            |_| "203.0.113.10:1024".into(),
        ),
        (
            Forwarding::Forwarded,
            "forwarded",
            |at| format!("for=\"198.51.{}.{}, for=203.0.113.9;proto=https", at / 250, at % 250),
            |_| "for=203.0.113.9, for=203.0.113.10".into(),
        ),
        (Forwarding::XRealIp, "x-real-ip", |_| "203.0.113.9".into(), |_| "203.0.113.10".into()),
    ];
    for (forwarding, header, forged, other) in table {
        let app = by_address(trusted(forwarding));
        assert_eq!(admitted(&app, through_a_proxy(header, forged)).await, 5, "{}", forged(1));
        // The same client without a proxy, and through another proxy.
        let direct = request("GET", "/", "203.0.113.9");
        let by_another = with(request("GET", "/", "10.9.9.9"), header, &forged(7));
        assert_eq!(admitted(&app, [direct, by_another]).await, 0, "{}", forged(1));
        assert_eq!(admitted(&app, through_a_proxy(header, other)).await, 5, "{}", other(1));
    }
}

#[tokio::test]
async fn only_the_configured_forwarding_header_is_read() {
    let all = [
        (Forwarding::XForwardedFor, "x-forwarded-for", "203.0.113.9"),
        (Forwarding::Forwarded, "forwarded", "for=203.0.113.9"),
        (Forwarding::XRealIp, "x-real-ip", "203.0.113.9"),
    ];
    for (forwarding, own, client) in all {
        let app = by_address(trusted(forwarding));
        let forged = (0..500).map(|at| {
            let request = with(request("GET", "/", "10.0.0.7"), own, client);
            let others = all.iter().filter(|(_, header, _)| *header != own);
            others.fold(request, |request, (_, header, client)| {
                with(
                    request,
                    header,
                    &client.replace("203.0.113.9", &format!("9.9.{}.9", at % 250)),
                )
            })
        });
        assert_eq!(admitted(&app, forged).await, 5, "{forwarding:?}");
    }
}

#[tokio::test]
async fn clients_own_header_line_before_the_proxys_is_ignored() {
    for (forwarding, header, client) in [
        (Forwarding::XForwardedFor, "x-forwarded-for", "203.0.113.9"),
        (Forwarding::Forwarded, "forwarded", "for=203.0.113.9"),
        (Forwarding::XRealIp, "x-real-ip", "203.0.113.9"),
    ] {
        let app = by_address(trusted(forwarding));
        let forged = (0..500).map(|at| {
            let forged = client.replace("203.0.113.9", &format!("9.9.{}.9", at % 250));
            with(with(request("GET", "/", "10.0.0.7"), header, &forged), header, client)
        });
        assert_eq!(admitted(&app, forged).await, 5, "{forwarding:?}");
    }
}

#[tokio::test]
async fn addresses_of_one_ipv6_network_are_one_client() {
    type Address = fn(usize) -> String;
    let table: [(&str, u8, Address, usize); 6] = [
        ("all of a /64", 56, |at| format!("2001:db8:0:100::{at:x}"), 5),
        ("all of a /56", 56, |at| format!("2001:db8:0:1{:02x}::{at:x}", at % 256), 5),
        ("two of /56", 56, |at| format!("2001:db8:0:{:x}00::{at:x}", at % 2 + 1), 10),
        ("all of a /64, by /64", 64, |at| format!("2001:db8:0:100:{at:x}::1"), 5),
        ("a /56, by /64", 64, |at| format!("2001:db8:0:1{:02x}::{at:x}", at % 256), 500),
        ("four, by /128", 128, |at| format!("2001:db8::{:x}", at % 4), 20),
    ];
    for (name, bits, address, want) in table {
        let prefix = Ipv6Prefix::new(bits).unwrap();
        let direct = by_address(Identity::new().ipv6_prefix(prefix));
        let requests = (0..500).map(|at| request("GET", "/", &format!("[{}]", address(at))));
        assert_eq!(admitted(&direct, requests).await, want, "{name}");
        let behind = by_address(trusted(Forwarding::XForwardedFor).ipv6_prefix(prefix));
        let requests = through_a_proxy("x-forwarded-for", address);
        assert_eq!(admitted(&behind, requests).await, want, "{name}, behind a proxy");
    }
}

#[tokio::test]
async fn ipv4_client_has_one_bucket_however_its_address_is_written() {
    let ways = ["203.0.113.9", "[::ffff:203.0.113.9]", "[::ffff:cb00:7109]"];
    for app in [by_address(Identity::new()), by_rules(""), by_rules(&format!("{PROXIES}{TOKENS}"))]
    {
        let requests = (0..500).map(|at| request("GET", "/", ways[at % 3]));
        assert_eq!(admitted(&app, requests).await, 5);
    }
    // A proxy's address may be written in several ways too.
    let app = by_address(trusted(Forwarding::XForwardedFor));
    let requests = (0..500).map(|at| {
        let proxy = ["10.0.0.7", "[::ffff:10.0.0.7]"][at % 2];
        let client = ["203.0.113.9", "::ffff:203.0.113.9", "[::ffff:203.0.113.9]:443"][at % 3];
        with(request("GET", "/", proxy), "x-forwarded-for", client)
    });
    assert_eq!(admitted(&app, requests).await, 5);
}

/// Sends 50 requests with a header, each from another address. Returns how many were admitted.
async fn roaming(app: &Router, name: &'static str, value: &str) -> usize {
    let from = |at| with(request("GET", "/", &format!("203.0.113.{at}")), name, value);
    admitted(app, (0..50).map(from)).await
}

#[tokio::test]
async fn known_api_key_has_its_own_bucket_and_tier() {
    let yaml = "
limits: { free: fixed-window limit=5 window=366d, pro: fixed-window limit=20 window=366d }
rules:
  - name: per-client
    domain: api
    key: [{ first_of: [api_key, ip] }]
    limit: { by: tier, tiers: { pro: pro }, default: free }
api_keys: { k_genuine: pro, k_plain: free }
";
    let (_, limiter) = at_midnight();
    let layer = RateLimitLayer::rules(&rules(&limiter, yaml), "api");
    let verified = Identity::new().verify_api_keys(|key| match key {
        "v_genuine" => Some("pro".to_owned()),
        "v_plain" => Some("none".to_owned()),
        _ => None,
    });
    let app = app(layer.identity(verified));
    for (key, want) in [("k_genuine", 20), ("k_plain", 5), ("v_genuine", 20), ("v_plain", 5)] {
        assert_eq!(roaming(&app, "x-api-key", key).await, want, "{key}");
        assert_eq!(roaming(&app, "x-api-key", key).await, 0, "{key}");
    }
    // An unknown key is ignored: each address has its own quota, which the keys above have not spent.
    assert_eq!(roaming(&app, "x-api-key", "k_other").await, 50);
    // A request with two keys counts for its address too.
    let both = |_| {
        let one = with(request("GET", "/", "198.51.100.1"), "x-api-key", "k_genuine");
        with(one, "x-api-key", "v_genuine")
    };
    assert_eq!(admitted(&app, (0..50).map(both)).await, 5);
}

#[tokio::test]
async fn valid_token_has_its_own_bucket() {
    let app = by_rules(TOKENS);
    for (claims, want) in [
        (r#""sub":"ada""#, 5),
        (r#""sub":"bob""#, 5),
        // The plan makes its limit `pro` under the second rule only.
        (r#""sub":"cleo","plan":"pro""#, 5),
    ] {
        let token = bearer(&token(claims));
        assert_eq!(roaming(&app, "authorization", &token).await, want, "{claims}");
    }
    // A new token of the same user is not a new client.
    let again = bearer(&token(r#""sub":"ada","jti":"another""#));
    assert_eq!(roaming(&app, "authorization", &again).await, 0);
}

#[tokio::test]
async fn trusted_header_counts_only_from_a_trusted_proxy() {
    let app = by_rules(PROXIES);
    let from = |peer: &'static str, tenant: fn(usize) -> String| {
        (0..100).map(move |at| {
            let request = with(request("GET", "/", peer), "x-tenant", &tenant(at));
            with(request, "x-forwarded-for", "203.0.113.9")
        })
    };
    assert_eq!(admitted(&app, from("10.0.0.7", |at| format!("t{}", at % 4))).await, 20);
    assert_eq!(admitted(&app, from("198.51.100.1", |at| format!("u{at}"))).await, 5);
    // The forged requests above were not charged to this address.
    assert_eq!(admitted(&app, [with(get("/"), "x-other", "1")]).await, 1);
}
