//! When sets are fetched, and which keys are then used. The clock is tokio's, which advances when all tasks are
//! idle.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::{set, set_text};
use crate::InvalidToken;
use crate::jwks::fetch::FetchError;
use crate::jwks::refresh::{RefreshLoop, UrlRefresh};
use crate::jwks::schedule::Schedule;
use crate::jwt::{Jwks, JwksError, Jwt, KeySet, TokenStatus};

/// An issuer that can be out of reach, and the requests that it got.
struct Issuer {
    publishes: Mutex<Result<String, ()>>,
    asked_s: Mutex<Vec<u64>>,
    began: Instant,
}

struct Fixture {
    issuer: Arc<Issuer>,
    jwks: Jwks,
    fetching: JoinHandle<()>,
}

impl Issuer {
    fn answer(&self) -> Result<KeySet, FetchError> {
        self.asked_s.lock().push(self.began.elapsed().as_secs());
        match &*self.publishes.lock() {
            Ok(json) => Ok(KeySet::parse(json.as_bytes())?),
            Err(()) => Err(FetchError::Timeout),
        }
    }
}

/// Begins to fetch, with a `max_age` of 1,024 s and a `max_stale` of 2 h.
fn begin(publishes: Result<&str, ()>) -> Fixture {
    let issuer = Arc::new(Issuer {
        publishes: Mutex::new(publishes.map(set_text)),
        asked_s: Mutex::default(),
        began: Instant::now(),
    });
    let source = Jwks::url("https://id.example/keys?token=hush").unwrap();
    let source = source.max_age(Duration::from_secs(1_024)).max_stale(Duration::from_secs(7_200));
    let (url, schedule) = (source.shown(), Schedule::new(&source, 0));
    let refresh = UrlRefresh::new(source);
    let signal = refresh.signal();
    let jwks = Jwks::fetched_by(refresh);
    let (keys, asked) = (jwks.downgrade(), Arc::clone(&issuer));
    let fetching = tokio::spawn(async move {
        let refreshing = RefreshLoop { url, schedule, skipped: 0 };
        refreshing.run(&keys, &signal, || std::future::ready(asked.answer())).await;
    });
    Fixture { issuer, jwks, fetching }
}

impl Fixture {
    fn publish(&self, what: Result<&str, ()>) {
        *self.issuer.publishes.lock() = what.map(set_text);
    }

    /// Returns when the issuer got requests, in seconds since the beginning.
    fn asked_s(&self) -> Vec<u64> {
        self.issuer.asked_s.lock().clone()
    }
}

/// Lets the clock go on.
async fn pass(seconds: u64) {
    sleep(Duration::from_millis(seconds * 1_000 + 1)).await;
}

/// Returns a token without a valid signature.
fn token(id: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"EdDSA","kid":"{id}"}}"#));
    format!("{header}.e30.AAAA")
}

/// Returns the result for a token without computing a signature.
fn known(jwks: &Jwks, id: &str) -> TokenStatus {
    Jwt::from_jwks(jwks.clone()).verify(&token(id), 0, || false)
}

fn has_key(jwks: &Jwks, id: &str) -> bool {
    matches!(known(jwks, id), TokenStatus::NotVerified)
}

#[tokio::test(start_paused = true)]
async fn keys_are_fetched_at_once_and_again_before_they_are_too_old() {
    let fixture = begin(Ok("a"));
    assert!(matches!(known(&fixture.jwks, "a"), TokenStatus::KeyPending));
    pass(0).await;
    assert!(has_key(&fixture.jwks, "a"));
    fixture.publish(Ok("b"));
    pass(640).await;
    assert!(has_key(&fixture.jwks, "b"), "the key was rotated");
    assert!(!has_key(&fixture.jwks, "a"));
    assert_eq!(fixture.asked_s(), [0, 640]);
    let status = fixture.jwks.status();
    assert_eq!((status.keys, status.refreshes, status.failures), (1, 2, 0));
    assert_eq!(status.problem, None);
}

#[tokio::test(start_paused = true)]
async fn invented_keys_cause_one_fetch_in_30_s() {
    let fixture = begin(Ok("a"));
    pass(0).await;
    for second in 0..100 {
        for number in 0..50 {
            known(&fixture.jwks, &format!("invented-{second}-{number}"));
        }
        pass(1).await;
    }
    assert_eq!(fixture.asked_s(), [0, 30, 60, 90]);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_key_is_bad_while_the_set_is_fresh_and_pending_afterwards() {
    let fixture = begin(Ok("a"));
    pass(0).await;
    assert!(matches!(known(&fixture.jwks, "b"), TokenStatus::Invalid(InvalidToken::UnknownKey)));
    pass(40).await;
    assert_eq!(fixture.asked_s(), [0, 30]);
    pass(60).await;
    fixture.publish(Ok("b"));
    // The request does not wait for the fetch, which follows.
    assert!(matches!(known(&fixture.jwks, "b"), TokenStatus::KeyPending));
    pass(0).await;
    assert!(has_key(&fixture.jwks, "b"));
    assert_eq!(fixture.asked_s(), [0, 30, 100]);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_names_no_key_causes_no_fetch() {
    let fixture = begin(Ok("a"));
    pass(0).await;
    let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256"}"#);
    let jwt = Jwt::from_jwks(fixture.jwks.clone());
    pass(100).await;
    let verdict = jwt.verify(&format!("{header}.e30.AAAA"), 0, || false);
    assert!(matches!(verdict, TokenStatus::Invalid(InvalidToken::UnknownKey)));
    pass(100).await;
    assert_eq!(fixture.asked_s(), [0]);
}

#[tokio::test(start_paused = true)]
async fn keys_stay_while_the_issuer_is_out_of_reach_until_they_are_too_old() {
    let fixture = begin(Ok("a"));
    pass(0).await;
    fixture.publish(Err(()));
    pass(7_100).await;
    assert!(has_key(&fixture.jwks, "a"));
    assert!(matches!(known(&fixture.jwks, "b"), TokenStatus::KeyPending), "it may be a new one");
    let status = fixture.jwks.status();
    assert!(status.failures > 10 && status.keys == 1, "{status:?}");
    let request_fetch = "the keys of https://id.example/keys were not fetched: the issuer did not answer within 10 s";
    assert_eq!(status.problem.as_deref(), Some(request_fetch));
    assert_eq!(fixture.asked_s()[..6], [0, 640, 645, 655, 675, 715]);
    pass(100).await;
    assert!(matches!(known(&fixture.jwks, "a"), TokenStatus::KeyPending), "dropped after 7,200 s");
    assert_eq!((fixture.jwks.status().keys, fixture.jwks.status().loaded), (0, None));
    fixture.publish(Ok("a"));
    pass(60).await;
    assert!(has_key(&fixture.jwks, "a"));
    assert_eq!(fixture.jwks.status().problem, None);
}

#[tokio::test(start_paused = true)]
async fn bad_key_set_is_reported_and_the_old_one_stays() {
    let fixture = begin(Ok("a"));
    pass(0).await;
    *fixture.issuer.publishes.lock() = Ok(r#"{"keys":[{"kty":"oct","k":"aHVzaA"}]}"#.into());
    pass(640).await;
    assert_eq!((fixture.jwks.status().failures, fixture.jwks.status().problem), (1, None));
    pass(35).await;
    assert!(has_key(&fixture.jwks, "a"));
    let problem = fixture.jwks.status().problem.unwrap();
    assert!(problem.contains(&JwksError::SymmetricKey.to_string()), "{problem}");
    assert!(!problem.contains("aHVzaA"), "{problem}");
}

#[tokio::test(start_paused = true)]
async fn issuer_that_is_down_at_first_is_retried_until_it_answers() {
    let fixture = begin(Err(()));
    pass(30).await;
    assert!(matches!(known(&fixture.jwks, "a"), TokenStatus::KeyPending));
    assert_eq!(fixture.asked_s(), [0, 5, 15]);
    fixture.publish(Ok("a"));
    pass(10).await;
    assert!(has_key(&fixture.jwks, "a"));
}

#[tokio::test(start_paused = true)]
async fn fetching_ends_with_the_last_clone_of_the_keys() {
    let Fixture { jwks, fetching, .. } = begin(Ok("a"));
    let jwt = Jwt::from_jwks(jwks.clone());
    pass(0).await;
    drop(jwks);
    pass(1).await;
    assert!(!fetching.is_finished());
    drop(jwt);
    pass(1).await;
    assert!(fetching.is_finished());
}

#[test]
fn a_set_of_the_same_keys_is_no_change() {
    let jwks = Jwks::fetched_by(UrlRefresh::new(Jwks::url("https://id.example/").unwrap()));
    assert!(jwks.fetched(set("a")));
    assert!(!jwks.fetched(set("a")));
    assert!(jwks.fetched(set("b")));
}
