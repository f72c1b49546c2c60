//! The memory of verified and bad tokens.

use std::cell::Cell;

use super::super::cache::{TokenCache, TokenWeight};
use super::*;

/// Returns why `token` is bad, or `None` if it is good; and whether its signature was computed.
fn outcome(jwt: &Jwt, token: &str, now_us: u64) -> (Option<InvalidToken>, bool) {
    let was_computed = Cell::new(false);
    let token = jwt.verify(token, now_us, || {
        was_computed.set(true);
        true
    });
    match token {
        TokenStatus::Verified(_) => (None, was_computed.get()),
        TokenStatus::Invalid(invalid) => (Some(invalid), was_computed.get()),
        TokenStatus::KeyPending => panic!("all keys are here"),
        TokenStatus::NotVerified => panic!("it may be verified"),
    }
}

fn some_claims() -> Arc<Claims> {
    Arc::new(Claims::read(&encode(CLAIMS), 0).unwrap())
}

#[test]
fn a_signature_is_computed_once() {
    for issuer in ISSUERS {
        let (jwt, token) = (issuer.jwt(), issuer.token_with(CLAIMS));
        assert_eq!(outcome(&jwt, &token, NOW_US), (None, true));
        assert_eq!(outcome(&jwt, &token, NOW_US), (None, false));
        assert_eq!(outcome(&jwt.clone(), &token, NOW_US), (None, false));
    }
}

#[test]
fn a_bad_token_is_verified_once() {
    let issuer = Issuer::Hs256(SECRET);
    let jwt = issuer.jwt().audience("shop");
    let token = issuer.token_with(CLAIMS);
    let forged = Issuer::Hs256(b"a secret that somebody made up ...").token_with(CLAIMS);
    for (token, reason) in [(token, InvalidToken::Audience), (forged, InvalidToken::Signature)] {
        assert_eq!(outcome(&jwt, &token, NOW_US), (Some(reason), true));
        assert_eq!(outcome(&jwt, &token, NOW_US), (Some(reason), false));
        assert_eq!(outcome(&jwt.clone(), &token, NOW_US + 1), (Some(reason), false));
    }
}

#[test]
fn a_token_that_may_be_good_at_another_time_is_judged_anew() {
    let issuer = Issuer::Hs256(SECRET);
    let (jwt, now_s) = (issuer.jwt(), NOW_US / 1_000_000);
    let early = issuer.token_with(&format!(r#"{{"nbf":{},"exp":{}}}"#, now_s + 100, now_s + 200));
    for _ in 0..2 {
        assert_eq!(outcome(&jwt, &early, NOW_US), (Some(InvalidToken::NotYetValid), true));
    }
    assert_eq!(outcome(&jwt, &early, NOW_US + 150_000_000), (None, true));

    // A limiter with another clock may share the memory of tokens.
    let expired = issuer.token_with(&format!(r#"{{"exp":{}}}"#, now_s - 100));
    assert_eq!(outcome(&jwt, &expired, NOW_US), (Some(InvalidToken::Expired), true));
    assert_eq!(outcome(&jwt, &expired, NOW_US), (Some(InvalidToken::Expired), false));
    assert_eq!(outcome(&jwt, &expired, NOW_US - 200_000_000), (None, true));
}

#[test]
fn the_memory_of_bad_tokens_is_bounded() {
    let (jwt, forger) =
        (Issuer::Hs256(SECRET).jwt(), Issuer::Hs256(b"somebody else's secret, 34 bytes.."));
    for number in 0..20_000 {
        let token = forger.token_with(&format!(r#"{{"sub":"{number}","exp":1}}"#));
        assert_eq!(outcome(&jwt, &token, NOW_US), (Some(InvalidToken::Signature), true));
    }
    assert!(jwt.shared.bad.len() <= 8_192, "{}", jwt.shared.bad.len());
}

#[test]
fn no_signature_is_computed_without_permission() {
    let issuer = Issuer::Hs256(SECRET);
    let (jwt, token) = (issuer.jwt(), issuer.token_with(CLAIMS));
    assert!(matches!(jwt.verify(&token, NOW_US, || false), TokenStatus::NotVerified));
    assert_eq!(jwt.shared.cache.len(), 0);
    let forged = format!("{token}AAAA");
    assert!(matches!(jwt.verify(&forged, NOW_US, || false), TokenStatus::NotVerified));
    assert_eq!(outcome(&jwt, &token, NOW_US), (None, true));
    assert!(matches!(jwt.verify(&token, NOW_US, || false), TokenStatus::Verified(_)));
}

#[test]
fn expiry_is_checked_for_remembered_tokens_and_removes_them() {
    let issuer = Issuer::Hs256(SECRET);
    let (jwt, token) = (issuer.jwt(), issuer.token_with(CLAIMS));
    let expiry_us = NOW_US + 100_000_000;
    assert_eq!(outcome(&jwt, &token, NOW_US), (None, true));
    assert_eq!(outcome(&jwt, &token, expiry_us - 1), (None, false));
    assert_eq!(outcome(&jwt, &token, expiry_us), (Some(InvalidToken::Expired), false));
    assert_eq!(jwt.shared.cache.len(), 0);
    assert_eq!(outcome(&jwt, &token, expiry_us), (Some(InvalidToken::Expired), true));
}

#[test]
fn not_before_is_checked_for_remembered_tokens() {
    let issuer = Issuer::Hs256(SECRET);
    let token = issuer.token_with(r#"{"exp":1700000100,"nbf":1700000000}"#);
    let jwt = issuer.jwt();
    assert_eq!(outcome(&jwt, &token, NOW_US), (None, true));
    assert_eq!(outcome(&jwt, &token, NOW_US - 1), (Some(InvalidToken::NotYetValid), false));
    assert_eq!(outcome(&jwt, &token, NOW_US), (None, false));
}

#[test]
fn bad_tokens_are_not_in_the_cache_of_good_ones() {
    let issuer = Issuer::Hs256(SECRET);
    let jwt = issuer.jwt().issuer("a");
    for claims in [CLAIMS, r#"{"exp":1,"iss":"a"}"#, r#"{"iss":"a"}"#] {
        let token = issuer.token_with(claims);
        assert!(outcome(&jwt, &token, NOW_US).1);
    }
    assert_eq!((jwt.shared.cache.len(), jwt.shared.bad.len()), (0, 3));
}

/// A stricter clone must verify tokens that the original has accepted.
#[test]
fn clone_with_another_policy_does_not_use_remembered_tokens() {
    let issuer = Issuer::Hs256(SECRET);
    let token = issuer.token_with(CLAIMS);
    let jwt = issuer.jwt();
    assert_eq!(outcome(&jwt, &token, NOW_US), (None, true));
    let stricter = jwt.clone().issuer("a");
    assert_eq!(outcome(&stricter, &token, NOW_US), (Some(InvalidToken::Issuer), true));
    let stricter = jwt.clone().audience("a");
    assert_eq!(outcome(&stricter, &token, NOW_US), (Some(InvalidToken::Audience), true));
    assert_eq!(outcome(&jwt, &token, NOW_US), (None, false));
}

#[test]
fn cache_stays_within_its_size_for_a_million_tokens() {
    let claims = some_claims();
    let table =
        [(10_000, 1_000_000), (255, 9_000), (100, 9_000), (3, 99), (2, 99), (1, 99), (0, 99)];
    for (max, tokens) in table {
        let cache = TokenCache::new(max);
        let mut most = 0;
        for token in 0..tokens {
            cache.insert(
                cache.fingerprint(&token.to_string()),
                TokenWeight::of(""),
                Arc::clone(&claims),
            );
            most = most.max(if token % 97 == 0 { cache.len() } else { 0 });
        }
        assert!(most <= max, "{most} of {max}");
        // Shards turn over at different times, each between half full and full.
        assert!(most * 2 + 1 >= max, "{most} of {max}");
    }
}

#[test]
fn hits_take_no_more_room_than_there_is() {
    let (cache, claims) = (TokenCache::new(1_000), some_claims());
    for token in 0..20_000_u32 {
        cache.insert(
            cache.fingerprint(&token.to_string()),
            TokenWeight::of(""),
            Arc::clone(&claims),
        );
        let recent = cache.fingerprint(&token.saturating_sub(token % 700).to_string());
        cache.get(recent, NOW_US);
        assert!(cache.len() <= 1_000);
    }
}

#[test]
fn long_tokens_count_for_more() {
    let claims = some_claims();
    for (bytes, weight) in [(0, 1), (1_023, 1), (1_024, 2), (8_191, 8), (8_192, 9)] {
        let cache = TokenCache::new(1_000);
        let padding = "x".repeat(bytes);
        let (mut heaviest, mut most) = (0, 0);
        for token in 0..5_000_u32 {
            let fingerprint = cache.fingerprint(&token.to_string());
            cache.insert(fingerprint, TokenWeight::of(&padding), Arc::clone(&claims));
            let recent = cache.fingerprint(&token.saturating_sub(token % 70).to_string());
            cache.get(recent, NOW_US);
            heaviest = heaviest.max(cache.weight());
            most = most.max(cache.len());
        }
        assert!(heaviest <= 1_000, "{heaviest}");
        assert!(most <= 1_000 / weight, "{most} of {bytes} bytes");
        assert!(most * 2 >= 1_000 / weight, "{most} of {bytes} bytes");
    }
}

#[test]
fn a_token_that_is_verified_twice_at_once_counts_once() {
    let (cache, claims) = (TokenCache::new(1_000), some_claims());
    for _ in 0..10 {
        cache.insert(cache.fingerprint("it"), TokenWeight::of(""), Arc::clone(&claims));
    }
    assert_eq!((cache.weight(), cache.len()), (1, 1));
}

#[test]
fn a_token_that_there_is_no_room_for_is_verified_each_time() {
    let issuer = Issuer::Hs256(SECRET);
    let long = format!(r#"{{"exp":1700000100,"x":"{}"}}"#, "x".repeat(1_024));
    let (short, long) = (issuer.token_with(CLAIMS), issuer.token_with(&long));
    for (max, remembers) in [(2, false), (4, true)] {
        let jwt = issuer.jwt().max_cached(max);
        for (token, is_known) in [(&short, true), (&long, remembers)] {
            assert_eq!(outcome(&jwt, token, NOW_US), (None, true));
            assert_eq!(outcome(&jwt, token, NOW_US), (None, !is_known), "{max}");
        }
    }
}

#[test]
fn a_token_in_use_is_not_forgotten_however_many_come() {
    let (cache, claims) = (TokenCache::new(100), some_claims());
    let used = cache.fingerprint("used");
    cache.insert(used, TokenWeight::of(""), Arc::clone(&claims));
    for token in 0..10_000_u32 {
        cache.insert(
            cache.fingerprint(&token.to_string()),
            TokenWeight::of(""),
            Arc::clone(&claims),
        );
        assert!(cache.get(used, NOW_US).is_some(), "{token}");
    }
    let unused = cache.fingerprint("0");
    assert!(cache.get(unused, NOW_US).is_none());
}

#[test]
fn no_two_caches_have_the_same_secret() {
    let (one, other) = (TokenCache::new(1), TokenCache::new(1));
    assert!(one.fingerprint("a") == one.fingerprint("a"));
    assert!(one.fingerprint("a") != one.fingerprint("b"));
    assert!(one.fingerprint("a") != other.fingerprint("a"));
}

#[test]
fn tokens_are_verified_without_a_cache() {
    let issuer = Issuer::Hs256(SECRET);
    let (jwt, token) = (issuer.jwt().max_cached(0), issuer.token_with(CLAIMS));
    for _ in 0..2 {
        assert_eq!(outcome(&jwt, &token, NOW_US), (None, true));
    }
}
