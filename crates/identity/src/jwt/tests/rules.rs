//! The conditions under which a token counts: its time, its key, its issuer and its audience.

use super::*;

#[test]
fn a_token_counts_under_each_algorithm() {
    for issuer in ISSUERS {
        let claims = at(&issuer.jwt(), &issuer.token_with(CLAIMS), NOW_US).unwrap();
        assert_eq!(claims.get("sub").as_deref(), Some("ada"), "{issuer:?}");
    }
}

#[test]
fn times_are_kept_to_the_microsecond() {
    let table = [
        // claims, first and last microsecond that count
        (r#"{"exp":1000}"#, 0, 999_999_999),
        (r#"{"exp":1000,"nbf":900}"#, 900_000_000, 999_999_999),
        (r#"{"exp":1000.5,"nbf":900.25}"#, 900_250_000, 1_000_499_999),
        (r#"{"exp":1e3,"nbf":9e2}"#, 900_000_000, 999_999_999),
        (r#"{"exp":0.0000019}"#, 0, 0),
        (r#"{"exp":1000,"nbf":-5}"#, 0, 999_999_999),
        (r#"{"exp":1000,"nbf":-1e300}"#, 0, 999_999_999),
        (r#"{"exp":18446744073709551615}"#, 0, u64::MAX - 1),
        (r#"{"exp":1e300}"#, 0, u64::MAX - 1),
        (r#"{"exp":99999999999999999999999999}"#, 0, u64::MAX - 1),
    ];
    let issuer = Issuer::Hs256(SECRET);
    for (claims, first_us, last_us) in table {
        let token = issuer.token_with(claims);
        for jwt in [issuer.jwt().max_cached(0), issuer.jwt()] {
            assert!(at(&jwt, &token, last_us).is_ok(), "{claims}");
            assert!(at(&jwt, &token, first_us).is_ok(), "{claims}");
            if let Some(before_us) = first_us.checked_sub(1) {
                let early = at(&jwt, &token, before_us);
                assert_eq!(early.err(), Some(InvalidToken::NotYetValid), "{claims}");
            }
            let late = at(&jwt, &token, last_us + 1);
            assert_eq!(late.err(), Some(InvalidToken::Expired), "{claims}");
        }
    }
}

#[test]
fn a_token_that_expired_before_the_epoch_never_counts() {
    let issuer = Issuer::Hs256(SECRET);
    for claims in [r#"{"exp":-1}"#, r#"{"exp":-0.5}"#, r#"{"exp":0}"#, r#"{"exp":-1e300}"#] {
        let expired = at(&issuer.jwt(), &issuer.token_with(claims), 0).err();
        assert_eq!(expired, Some(InvalidToken::Expired), "{claims}");
    }
    // Rounded down, also below zero: with the leeway these end as the clock begins.
    for (claims, leeway_us) in [(r#"{"exp":-1}"#, 1_000_000), (r#"{"exp":-0.0000005}"#, 1)] {
        let jwt = issuer.jwt().leeway(Duration::from_micros(leeway_us));
        let expired = at(&jwt, &issuer.token_with(claims), 0).err();
        assert_eq!(expired, Some(InvalidToken::Expired), "{claims}");
    }
}

#[test]
fn the_leeway_is_for_both_ends() {
    let issuer = Issuer::Hs256(SECRET);
    let token = issuer.token_with(r#"{"exp":1000,"nbf":900}"#);
    let usual = Jwt::new([issuer.key()]).unwrap();
    for (jwt, leeway_us) in [
        (usual.clone(), 5_000_000),
        (usual.clone().leeway(Duration::from_micros(7)), 7),
        (usual.leeway(Duration::ZERO), 0),
    ] {
        assert!(at(&jwt, &token, 900_000_000 - leeway_us).is_ok());
        assert!(at(&jwt, &token, 999_999_999 + leeway_us).is_ok());
        let early = at(&jwt, &token, 899_999_999 - leeway_us);
        assert_eq!(early.err(), Some(InvalidToken::NotYetValid));
        let late = at(&jwt, &token, 1_000_000_000 + leeway_us);
        assert_eq!(late.err(), Some(InvalidToken::Expired));
    }
}

#[test]
fn no_leeway_is_too_long() {
    let issuer = Issuer::Hs256(SECRET);
    let jwt = issuer.jwt().leeway(Duration::MAX);
    let token = issuer.token_with(r#"{"exp":-1e300,"nbf":-1e300}"#);
    assert_eq!(at(&jwt, &token, 0).err(), Some(InvalidToken::Expired));
    let token = issuer.token_with(r#"{"exp":1,"nbf":2}"#);
    assert!(at(&jwt, &token, NOW_US).is_ok());
}

#[test]
fn an_expiry_is_a_number_and_must_be_there() {
    let issuer = Issuer::Hs256(SECRET);
    let table = [
        (r#"{}"#, InvalidToken::NoExpiry),
        (r#"{"sub":"ada","EXP":1700000100}"#, InvalidToken::NoExpiry),
        (r#"{"exp":null}"#, InvalidToken::Malformed),
        (r#"{"exp":"1700000100"}"#, InvalidToken::Malformed),
        (r#"{"exp":true}"#, InvalidToken::Malformed),
        (r#"{"exp":[1700000100]}"#, InvalidToken::Malformed),
        (r#"{"exp":{}}"#, InvalidToken::Malformed),
        (r#"{"exp":1e400}"#, InvalidToken::Malformed),
        (r#"{"exp":NaN}"#, InvalidToken::Malformed),
        (r#"{"exp":0x7fffffff}"#, InvalidToken::Malformed),
        (r#"{"exp":1700000100,"nbf":"0"}"#, InvalidToken::Malformed),
        (r#"{"exp":1700000100,"nbf":null}"#, InvalidToken::Malformed),
    ];
    for (claims, want) in table {
        let why = why_not(&issuer.jwt(), &issuer.token_with(claims));
        assert_eq!(why, Some(want), "{claims}");
    }
}

#[test]
fn only_tokens_of_the_issuer_count() {
    let issuer = Issuer::Hs256(SECRET);
    let jwt = issuer.jwt().issuer("a");
    let table = [
        (r#"{"exp":1700000100,"iss":"a"}"#, None),
        (r#"{"exp":1700000100,"iss":"b"}"#, Some(InvalidToken::Issuer)),
        (r#"{"exp":1700000100,"iss":"A"}"#, Some(InvalidToken::Issuer)),
        (r#"{"exp":1700000100,"iss":["a"]}"#, Some(InvalidToken::Issuer)),
        (r#"{"exp":1700000100}"#, Some(InvalidToken::Issuer)),
    ];
    for (claims, want) in table {
        let token = issuer.token_with(claims);
        assert_eq!(why_not(&jwt, &token), want, "{claims}");
        assert_eq!(why_not(&issuer.jwt(), &token), None, "{claims}");
        let either = jwt.clone().issuer("b");
        let counts = [r#""iss":"a""#, r#""iss":"b""#].iter().any(|one| claims.contains(one));
        assert_eq!(why_not(&either, &token).is_none(), counts, "{claims}");
    }
}

#[test]
fn only_tokens_for_the_audience_count() {
    let issuer = Issuer::Hs256(SECRET);
    let jwt = issuer.jwt().audience("shop").audience("till");
    let table = [
        (r#"{"exp":1700000100,"aud":"shop"}"#, None),
        (r#"{"exp":1700000100,"aud":"till"}"#, None),
        (r#"{"exp":1700000100,"aud":["bank",7,"till"]}"#, None),
        (r#"{"exp":1700000100,"aud":"bank"}"#, Some(InvalidToken::Audience)),
        (r#"{"exp":1700000100,"aud":["bank"]}"#, Some(InvalidToken::Audience)),
        (r#"{"exp":1700000100,"aud":[]}"#, Some(InvalidToken::Audience)),
        (r#"{"exp":1700000100,"aud":[["shop"]]}"#, Some(InvalidToken::Audience)),
        (r#"{"exp":1700000100,"aud":{"shop":"shop"}}"#, Some(InvalidToken::Audience)),
        (r#"{"exp":1700000100}"#, Some(InvalidToken::Audience)),
    ];
    for (claims, want) in table {
        let token = issuer.token_with(claims);
        assert_eq!(why_not(&jwt, &token), want, "{claims}");
        assert_eq!(why_not(&issuer.jwt(), &token), None, "{claims}");
    }
}

#[test]
fn a_token_that_names_its_key_is_for_that_key() {
    const OTHER: Issuer = Issuer::Hs256(b"another secret, of 35 bytes in all.");
    let issuer = Issuer::Hs256(SECRET);
    let named = |id| format!(r#"{{"alg":"HS256","kid":"{id}"}}"#);
    let both = Jwt::new([issuer.key().id("a"), OTHER.key().id("b")]).unwrap();
    assert_eq!(why_not(&both, &issuer.token(&named("a"), CLAIMS)), None);
    assert_eq!(why_not(&both, &OTHER.token(&named("b"), CLAIMS)), None);
    let mixed_up = issuer.token(&named("b"), CLAIMS);
    assert_eq!(why_not(&both, &mixed_up), Some(InvalidToken::Signature));
    for unknown in [issuer.token(&named("c"), CLAIMS), issuer.token_with(CLAIMS)] {
        assert_eq!(why_not_for_free(&both, &unknown), Some(InvalidToken::UnknownKey));
    }

    let one_without = Jwt::new([issuer.key().id("a"), OTHER.key()]).unwrap();
    assert_eq!(why_not(&one_without, &OTHER.token_with(CLAIMS)), None);
    assert_eq!(why_not(&one_without, &OTHER.token(&named("c"), CLAIMS)), None);
    let not_its_key = OTHER.token(&named("a"), CLAIMS);
    assert_eq!(why_not(&one_without, &not_its_key), Some(InvalidToken::Signature));
    let not_named = issuer.token_with(CLAIMS);
    assert_eq!(why_not(&one_without, &not_named), Some(InvalidToken::Signature));
}

#[test]
fn a_token_that_names_no_key_is_tried_on_all_of_its_algorithm_without_an_id() {
    let secrets: Vec<[u8; 32]> = (0..7).map(|seed| [seed; 32]).collect();
    let others = secrets.iter().map(|secret| JwtKey::hs256(secret).unwrap());
    let keys = others.chain(ISSUERS.map(Issuer::key));
    let jwt = Jwt::new(keys).unwrap();
    for issuer in ISSUERS {
        assert_eq!(why_not(&jwt, &issuer.token_with(CLAIMS)), None, "{issuer:?}");
    }
}

#[test]
fn missing_and_ambiguous_keys_are_refused() {
    let key = || Issuer::Hs256(SECRET).key();
    let jwt_of = |keys: Vec<JwtKey>| Jwt::new(keys).err();
    assert_eq!(jwt_of(vec![]), Some(JwtError::NoKeys));
    let same = jwt_of(vec![key().id("a"), key().id("b"), Issuer::Es256.key().id("a")]);
    assert_eq!(same, Some(JwtError::SameId { id: "a".into() }));
    let mut keys: Vec<JwtKey> = (0..20).map(|id| key().id(id.to_string())).collect();
    keys.extend(vec![key(); 8]);
    keys.push(Issuer::Es256.key());
    assert_eq!(jwt_of(keys.clone()), None);
    keys.push(key());
    assert_eq!(jwt_of(keys), Some(JwtError::TooManyWithoutId { most: 8 }));
}

#[test]
fn claims_are_checked_at_the_system_time() {
    let issuer = Issuer::Hs256(SECRET);
    let future = issuer.token_with(r#"{"sub":"ada","exp":4102444800}"#);
    let claims = issuer.jwt().claims(&future).unwrap();
    assert_eq!(claims.get("sub").as_deref(), Some("ada"));
    let past = issuer.token_with(r#"{"sub":"ada","exp":1700000000}"#);
    assert_eq!(issuer.jwt().claims(&past).err(), Some(InvalidToken::Expired));
}
