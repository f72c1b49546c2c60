//! Key sets in a file and under a URL, named by rules and set in code.

use std::fs;
use std::time::Duration;

use http::Request;
use tollgate::Limiter;
use tollgate::http::{Identity, Jwks, Jwt, Peer, RequestHead};
use tollgate::rules::{Config, Rules, RulesFile};

use crate::issuer::{Issuer, set_of, token, until};

/// Whether the claims of this token count for a request.
fn is_accepted(identity: &Identity, token: &str) -> bool {
    let peer = Peer("203.0.113.9:4711".parse().unwrap());
    let request = Request::get("/").header("authorization", format!("Bearer {token}"));
    let request = request.extension(peer).body(()).unwrap();
    RequestHead::new(&request, identity).claims().is_some()
}

/// Whether a request with this token is answered 401.
fn is_refused(identity: &Identity, token: &str) -> bool {
    let request = Request::get("/").header("authorization", format!("Bearer {token}"));
    RequestHead::new(&request.body(()).unwrap(), identity).token_refusal().is_some()
}

fn rules_text(jwks: &str, more: &str) -> String {
    format!(
        "limits: {{ free: fixed-window limit=10 window=1s }}\n\
         rules: [{{ name: a, domain: api, key: [{{ first_of: [jwt.sub, ip] }}], limit: free }}]\n\
         identity: {{ {more} jwt: {{ jwks: {jwks} }} }}\n"
    )
}

fn config(jwks: &str, more: &str) -> Config {
    Config::parse("limits.yaml", rules_text(jwks, more)).unwrap()
}

fn rules_accept(rules: &Rules, token: &str) -> bool {
    is_accepted(rules.snapshot().identity().unwrap(), token)
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_fetched_from_the_url_in_the_rules() {
    let issuer = Issuer::start("a").await;
    let jwks = format!("{{ url: '{}' }}", issuer.url());
    let rules = Rules::new(&Limiter::memory(), &config(&jwks, "")).unwrap();
    until(|| rules_accept(&rules, &token("a"))).await;
    assert!(!rules_accept(&rules, &token("b")));
    // New rules with the same set keep its keys, and nothing is fetched again.
    rules.replace(&config(&jwks, "trusted_proxies: [10.0.0.0/8],")).unwrap();
    assert!(rules_accept(&rules, &token("a")));
    assert_eq!(issuer.fetches(), 1);
    // New rules with another set have no keys until it is fetched.
    let other = Issuer::start("b").await;
    rules.replace(&config(&format!("{{ url: '{}' }}", other.url()), "")).unwrap();
    until(|| rules_accept(&rules, &token("b"))).await;
    assert!(!rules_accept(&rules, &token("a")));
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_and_testing_rules_fetches_nothing() {
    let issuer = Issuer::start("a").await;
    let text = rules_text(&format!("{{ url: '{}' }}", issuer.url()), "");
    let tests =
        "tests: [{ name: t, domain: api, attributes: { ip: 192.0.2.1 }, expect: { a: {} } }]\n";
    let config = Config::parse("limits.yaml", text + tests).unwrap();
    assert_eq!(config.tests(), 1);
    // An earlier fetch would have been counted by now.
    let rules = Rules::new(&Limiter::memory(), &config).unwrap();
    until(|| rules_accept(&rules, &token("a"))).await;
    assert_eq!(issuer.fetches(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_load_and_report_the_problem_while_the_issuer_is_down() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("limits.yaml");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let jwks = format!("{{ url: 'http://{address}/keys?token=hush' }}, invalid: unauthorized");
    fs::write(&path, rules_text(&jwks, "")).unwrap();
    let file = RulesFile::open(&Limiter::memory(), &path).unwrap();
    let problem = || file.status().problem.unwrap_or_default();
    until(|| problem().contains("were not fetched: ")).await;
    assert!(problem().starts_with(&format!("the keys of http://{address}/keys were not fetched")));
    assert!(!problem().contains("hush"), "{}", problem());
    let now = file.rules().snapshot();
    let identity = now.identity().unwrap();
    // While the issuer is down no token is refused, and none is accepted.
    for token in [token("a"), token("invented")] {
        assert!(!is_accepted(identity, &token) && !is_refused(identity, &token));
    }
    assert!(is_refused(identity, "garbage"));
    let unknown =
        identity.rejected_tokens().into_iter().find(|(reason, _)| *reason == "unknown_key");
    assert_eq!(unknown, Some(("unknown_key", 4)));
}

#[tokio::test(flavor = "multi_thread")]
async fn key_set_is_fetched_again_by_its_max_age() {
    let issuer = Issuer::start("a").await;
    let keys = Jwks::url(&issuer.url()).unwrap().max_age(Duration::from_secs(1)).start();
    let identity = Identity::new().jwt(Jwt::from_jwks(keys.clone()));
    until(|| is_accepted(&identity, &token("a"))).await;
    issuer.publish("b");
    until(|| is_accepted(&identity, &token("b"))).await;
    assert!(!is_accepted(&identity, &token("a")), "a withdrawn key still counts");
    let status = keys.status();
    assert!(status.refreshes >= 2 && status.failures == 0, "{status:?}");
}

#[test]
fn key_set_file_is_read_again_when_it_changes() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("jwks.json"), set_of("a")).unwrap();
    fs::write(path("limits.yaml"), rules_text("{ file: jwks.json }", "")).unwrap();
    let file = RulesFile::open(&Limiter::memory(), path("limits.yaml")).unwrap();
    assert!(rules_accept(file.rules(), &token("a")));
    let _following = file.follow().unwrap();
    fs::write(path("jwks.json"), set_of("b")).unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !rules_accept(file.rules(), &token("b")) {
        assert!(std::time::Instant::now() < deadline, "the file was not read again");
        std::thread::yield_now();
    }
    assert!(!rules_accept(file.rules(), &token("a")));
    // A bad file is refused, and the keys stay.
    fs::write(path("jwks.json"), r#"{"keys":[{"kty":"oct","k":"aHVzaA"}]}"#).unwrap();
    let refused = file.reload().unwrap_err().to_string();
    assert!(refused.contains("`file` has a symmetric key (`oct`)"), "{refused}");
    assert!(rules_accept(file.rules(), &token("b")));
}

#[test]
fn key_set_is_loaded_from_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jwks.json");
    let missing = Jwks::load(&path).unwrap_err().to_string();
    assert_eq!(missing, "the key set cannot be read: entity not found");
    fs::write(&path, set_of("a")).unwrap();
    let identity = Identity::new().jwt(Jwt::from_jwks(Jwks::load(&path).unwrap()));
    assert!(is_accepted(&identity, &token("a")));
    fs::write(&path, " ".repeat(300_000)).unwrap();
    let large = Jwks::load(&path).unwrap_err().to_string();
    assert_eq!(large, "the key set is larger than 256 KiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn invented_keys_cause_no_fetch_while_the_set_is_fresh() {
    let issuer = Issuer::start("a").await;
    let keys = Jwks::url(&issuer.url()).unwrap().start();
    let identity = Identity::new().jwt(Jwt::from_jwks(keys)).refuse_invalid_tokens();
    until(|| is_accepted(&identity, &token("a"))).await;
    for number in 0..10 {
        assert!(is_refused(&identity, &token(&format!("invented-{number}"))));
    }
    assert!(is_accepted(&identity, &token("a")));
    assert_eq!(issuer.fetches(), 1);
}
