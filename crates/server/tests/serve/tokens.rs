//! Clients with tokens (JWT) that share an address, at `/v1/authorize`.

use crate::check::rules;
use crate::metrics::scrape;
use crate::server::Server;

/// Signs the tokens below, by HS256.
const SECRET: (&str, &str) = ("JWT_SECRET", "0123456789abcdef0123456789abcdef");

/// `{"alg":"HS256"}`.
const HEADER: &str = "eyJhbGciOiJIUzI1NiJ9";

/// `{"sub":"ada","exp":4102444800}`, and the same of bob, signed.
const ADA: &str =
    "eyJzdWIiOiJhZGEiLCJleHAiOjQxMDI0NDQ4MDB9.WlXhMywctNciXHyKhXzjlxB99mTy1bjEo4gA-ZF5zq4";
const BOB: &str =
    "eyJzdWIiOiJib2IiLCJleHAiOjQxMDI0NDQ4MDB9.zJwCjzi5WfDHGpEy98DzZJckxNgJqFmNE6hHFGHllNs";

/// `{"sub":"eve"}`, signed: a token that never expires.
const WITHOUT_EXPIRY: &str = "eyJzdWIiOiJldmUifQ.NaBdvbrJFukosFaa2cCfjx7pT2KphC9IRzrxZSjxEdY";

#[test]
fn tokens_without_expiry_are_logged_and_counted() {
    let file = rules(
        "identity:\n\
         \x20 trusted_proxies: [127.0.0.1]\n\
         \x20 jwt: { keys: [{ algorithm: HS256, secret_env: JWT_SECRET }] }\n\
         limits: { two: fixed-window limit=2 window=366d }\n\
         rules:\n\
         - { name: each, domain: web, key: [{ first_of: [jwt.sub, ip] }], limit: two }",
    );
    let server = Server::start_with(&["--config", file.path().to_str().unwrap()], &[SECRET]);
    let ask = |token: &str, address: &str| {
        let request = server.get("/v1/authorize").bearer_auth(format!("{HEADER}.{token}"));
        let request = request.header("x-forwarded-method", "GET").header("x-forwarded-uri", "/");
        request.header("x-forwarded-for", address).send().unwrap().status().as_u16()
    };
    // The requests are limited by address, as requests without a token are.
    let statuses = ["203.0.113.9", "203.0.113.9", "203.0.113.9", "203.0.113.8"]
        .map(|address| ask(WITHOUT_EXPIRY, address));
    assert_eq!(statuses, [200, 200, 429, 200]);
    assert_eq!(ask(ADA, "203.0.113.9"), 200);
    let log = server.wait_for_log(|log| log.contains("they have no `exp`"));
    assert_eq!(log.matches("they have no `exp`").count(), 1, "{log}");
    let page = scrape(&server);
    let rejected = |reason| page.value("tollgate_tokens_rejected_total", &[("reason", reason)]);
    assert_eq!((rejected("no_expiry"), rejected("signature")), (4.0, 0.0));
    // Other keys for tokens are another identity, and the counts go on.
    let text = std::fs::read_to_string(file.path()).unwrap();
    std::fs::write(file.path(), text.replace("jwt: {", "jwt: { audience: shop,")).unwrap();
    server.wait_for_log(|log| log.contains("rules reloaded"));
    assert_eq!(ask(ADA, "203.0.113.9"), 429);
    let page = scrape(&server);
    let rejected = |reason| page.value("tollgate_tokens_rejected_total", &[("reason", reason)]);
    assert_eq!((rejected("no_expiry"), rejected("audience")), (4.0, 1.0));
}

#[test]
fn a_new_good_token_counts_at_an_address_that_sends_bad_ones_too() {
    let file = rules(
        "identity:\n\
         \x20 trusted_proxies: [127.0.0.1]\n\
         \x20 jwt:\n\
         \x20   verifications: fixed-window limit=3 window=366d\n\
         \x20   keys: [{ algorithm: HS256, secret_env: JWT_SECRET }]\n\
         limits: { five: fixed-window limit=5 window=366d }\n\
         rules:\n\
         - { name: each, domain: web, key: [{ first_of: [jwt.sub, ip] }], limit: five }",
    );
    let server = Server::start_with(&["--config", file.path().to_str().unwrap()], &[SECRET]);
    let ask = |token: &str| {
        let request = server.get("/v1/authorize").bearer_auth(format!("{HEADER}.{token}"));
        let request = request.header("x-forwarded-method", "GET").header("x-forwarded-uri", "/");
        let request = request.header("x-forwarded-for", "203.0.113.9");
        request.send().unwrap().status().as_u16()
    };
    let of_ada: Vec<_> = (0..10).map(|_| ask(ADA)).collect();
    assert_eq!(of_ada, [200, 200, 200, 200, 200, 429, 429, 429, 429, 429]);
    // More bad tokens than the address has verifications. They are limited by address, which has nothing left then.
    let signature = "A".repeat(43);
    let of_bad: Vec<_> = (0..10).map(|number| ask(&format!("bad{number}.{signature}"))).collect();
    assert_eq!(of_bad, [200, 200, 200, 200, 200, 429, 429, 429, 429, 429]);
    assert_eq!(ask(BOB), 200, "a new good token has its own quota");
}
