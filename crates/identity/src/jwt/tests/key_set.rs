//! Keys of a JSON Web Key Set: which are taken, and which tokens they are for.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::jwt::key_set::KeySet;

const PUBLISHED: [(Issuer, &str); 4] = [
    (Issuer::Rs256, keys::RSA_JWK),
    (Issuer::Es256, keys::P256_JWK),
    (Issuer::Es384, keys::P384_JWK),
    (Issuer::EdDsa, keys::ED25519_JWK),
];

fn set(keys: impl IntoIterator<Item = Value>) -> Vec<u8> {
    json!({ "keys": keys.into_iter().collect::<Vec<_>>() }).to_string().into_bytes()
}

fn jwk(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// A key with further members.
fn with(text: &str, members: &Value) -> Value {
    let mut key = jwk(text);
    for (name, value) in members.as_object().unwrap() {
        key[name] = value.clone();
    }
    key
}

fn named(text: &str, id: &str) -> Value {
    with(text, &json!({ "kid": id }))
}

fn jwt(set: &[u8]) -> Jwt {
    Jwt::from_jwks(Jwks::parse(set).unwrap()).leeway(Duration::ZERO)
}

/// How many keys a set has, and how many of it are not used.
fn counts(json: &[u8]) -> (usize, usize) {
    let set = KeySet::parse(json).unwrap();
    (set.keys().len(), set.skipped())
}

#[test]
fn a_key_of_each_kind_verifies_its_tokens_and_no_others() {
    for (issuer, own) in PUBLISHED {
        let jwt = jwt(&set([named(own, "a")]));
        let header = format!(r#"{{"alg":"{}","kid":"a"}}"#, issuer.algorithm());
        assert_eq!(why_not(&jwt, &issuer.token(&header, CLAIMS)), None, "{issuer:?}");
        for other in ISSUERS.iter().filter(|other| other.algorithm() != issuer.algorithm()) {
            let forged = other.token(&header, CLAIMS);
            assert_eq!(why_not(&jwt, &forged), Some(InvalidToken::Signature), "{other:?}");
            let header = format!(r#"{{"alg":"{}","kid":"a"}}"#, other.algorithm());
            let forged = other.token(&header, CLAIMS);
            assert_eq!(why_not_for_free(&jwt, &forged), Some(InvalidToken::Algorithm));
        }
    }
}

#[test]
fn a_token_is_for_the_key_that_it_names() {
    let all =
        PUBLISHED.iter().enumerate().map(|(number, (_, key))| named(key, &number.to_string()));
    let jwt = jwt(&set(all));
    for (number, (issuer, _)) in PUBLISHED.iter().enumerate() {
        let token = |id: &str| {
            let header = format!(r#"{{"alg":"{}","kid":"{id}"}}"#, issuer.algorithm());
            issuer.token(&header, CLAIMS)
        };
        assert_eq!(why_not(&jwt, &token(&number.to_string())), None);
        let why = why_not_for_free(&jwt, &token(&((number + 1) % 4).to_string()));
        assert_eq!(why, Some(InvalidToken::Algorithm));
        assert_eq!(why_not_for_free(&jwt, &token("4")), Some(InvalidToken::UnknownKey));
        assert_eq!(why_not_for_free(&jwt, &token("")), Some(InvalidToken::UnknownKey));
    }
}

#[test]
fn a_token_that_names_no_key_is_for_the_only_one_of_its_algorithm() {
    let other =
        r#"{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#;
    let unnamed = Issuer::EdDsa.token_with(CLAIMS);
    let only = jwt(&set([named(keys::ED25519_JWK, "a"), named(keys::P256_JWK, "b")]));
    assert_eq!(why_not(&only, &unnamed), None);
    assert_eq!(why_not(&only, &Issuer::Es256.token_with(CLAIMS)), None);
    let why = why_not_for_free(&only, &Issuer::Es384.token_with(CLAIMS));
    assert_eq!(why, Some(InvalidToken::UnknownKey));
    for two in
        [[named(keys::ED25519_JWK, "a"), named(other, "b")], [jwk(keys::ED25519_JWK), jwk(other)]]
    {
        assert_eq!(why_not_for_free(&jwt(&set(two)), &unnamed), Some(InvalidToken::UnknownKey));
    }
    // A key without a name is for no token that names one.
    let header = r#"{"alg":"EdDSA","kid":"a"}"#;
    let why = why_not_for_free(
        &jwt(&set([jwk(keys::ED25519_JWK)])),
        &Issuer::EdDsa.token(header, CLAIMS),
    );
    assert_eq!(why, Some(InvalidToken::UnknownKey));
}

#[test]
fn keys_by_themselves_count_beside_a_set() {
    let jwks = Jwks::parse(&set([named(keys::ED25519_JWK, "a")])).unwrap();
    let jwt = Jwt::new([Issuer::Es256.key(), Issuer::Hs256(SECRET).key().id("b")]).unwrap();
    let jwt = jwt.jwks(jwks).leeway(Duration::ZERO);
    for token in [
        Issuer::EdDsa.token(r#"{"alg":"EdDSA","kid":"a"}"#, CLAIMS),
        Issuer::EdDsa.token_with(CLAIMS),
        Issuer::Es256.token_with(CLAIMS),
        Issuer::Es256.token(r#"{"alg":"ES256","kid":"unknown"}"#, CLAIMS),
        Issuer::Hs256(SECRET).token(r#"{"alg":"HS256","kid":"b"}"#, CLAIMS),
    ] {
        assert_eq!(why_not(&jwt, &token), None, "{token}");
    }
    // The set's key is public: it is no secret, whatever the token says.
    let forged = Issuer::Hs256(keys::ED25519_JWK.as_bytes());
    let forged = forged.token(r#"{"alg":"HS256","kid":"a"}"#, CLAIMS);
    assert_eq!(why_not_for_free(&jwt, &forged), Some(InvalidToken::Algorithm));
}

#[test]
fn a_set_with_a_secret_or_a_private_key_is_refused() {
    let good = jwk(keys::P256_JWK);
    for usage in [json!({}), json!({ "use": "enc" }), json!({ "alg": "A128KW" })] {
        let secret =
            with(r#"{"kty":"oct","k":"aHVzaC1odXNoLWh1c2gtaHVzaC1odXNoLWh1c2gtaHU"}"#, &usage);
        let refused = KeySet::parse(&set([good.clone(), secret])).unwrap_err();
        assert_eq!(refused, JwksError::SymmetricKey);
        assert!(refused.to_string().contains("symmetric key (`oct`)"), "{refused}");
    }
    for (_, key) in PUBLISHED {
        let private = with(key, &json!({ "d": "AAAA", "use": "enc" }));
        assert_eq!(
            KeySet::parse(&set([good.clone(), private])).unwrap_err(),
            JwksError::PrivateKey
        );
    }
}

#[test]
fn keys_that_verify_no_signatures_are_skipped_and_counted() {
    let rsa = keys::RSA_JWK;
    let short = json!({ "kty": "RSA", "e": "AQAB", "n": encode([0xff; 128]) });
    let exponents = ["", "AA", "AQ", "Ag", "BA"].map(|e| with(rsa, &json!({ "e": e })));
    let others = [
        with(rsa, &json!({ "use": "enc" })),
        with(rsa, &json!({ "use": 7 })),
        with(rsa, &json!({ "key_ops": ["encrypt"] })),
        with(rsa, &json!({ "key_ops": "verify" })),
        with(rsa, &json!({ "alg": "RS512" })),
        with(rsa, &json!({ "alg": "HS256" })),
        with(rsa, &json!({ "alg": "none" })),
        with(rsa, &json!({ "alg": null })),
        with(rsa, &json!({ "kid": 7 })),
        with(rsa, &json!({ "kid": "" })),
        with(rsa, &json!({ "kid": "x".repeat(257) })),
        with(rsa, &json!({ "n": "!" })),
        with(rsa, &json!({ "n": encode([0xff; 2_000]) })),
        short,
        with(keys::P256_JWK, &json!({ "crv": "P-384" })),
        with(keys::P256_JWK, &json!({ "crv": "P-521" })),
        with(keys::P256_JWK, &json!({ "crv": "secp256k1" })),
        with(keys::P256_JWK, &json!({ "y": null })),
        with(keys::P256_JWK, &json!({ "x": encode([0; 33]) })),
        with(keys::P384_JWK, &json!({ "alg": "ES256" })),
        with(keys::ED25519_JWK, &json!({ "crv": "X25519" })),
        with(keys::ED25519_JWK, &json!({ "crv": "Ed448" })),
        with(keys::ED25519_JWK, &json!({ "x": encode([0; 31]) })),
        json!({ "kty": "AKP", "alg": "ML-DSA-44", "pub": "AAAA" }),
        json!({ "kty": 7 }),
        json!({}),
        json!(null),
        json!([]),
    ];
    for other in others.into_iter().chain(exponents) {
        let json = set([other.clone(), jwk(keys::ED25519_JWK)]);
        assert_eq!(counts(&json), (1, 1), "{other}");
    }
    for same in [
        json!({ "use": "sig", "alg": "Ed25519", "key_ops": ["verify"] }),
        json!({ "alg": "EdDSA", "x5c": ["AAAA"], "kid": "x".repeat(256) }),
    ] {
        assert_eq!(counts(&set([with(keys::ED25519_JWK, &same)])), (1, 0), "{same}");
    }
    // If two keys have the same name and algorithm, the first counts.
    let twice = set([named(keys::P256_JWK, "a"), named(keys::P256_JWK, "a")]);
    assert_eq!(counts(&twice), (1, 1));
    let of_two_kinds = set([named(keys::P256_JWK, "a"), named(keys::ED25519_JWK, "a")]);
    assert_eq!(counts(&of_two_kinds), (2, 0));
    assert_eq!(counts(&set([])), (0, 0));
}

#[test]
fn a_set_is_bounded() {
    let keys = |count: usize| (0..count).map(|id| named(keys::P256_JWK, &id.to_string()));
    assert_eq!(counts(&set(keys(64))), (64, 0));
    let refused = KeySet::parse(&set(keys(65))).unwrap_err();
    assert_eq!(refused, JwksError::TooManyKeys { keys: 65, most: 64 });
    let padded = |bytes: usize| {
        let json = set(keys(1));
        [json.as_slice(), &vec![b' '; bytes - json.len()]].concat()
    };
    assert_eq!(counts(&padded(256 << 10)), (1, 0));
    assert_eq!(KeySet::parse(&padded((256 << 10) + 1)).unwrap_err(), JwksError::TooLarge);
    for open in ["[", r#"{"keys":["#, r#"{"keys":[{"a":"#] {
        let deep = open.repeat(10_000);
        assert_eq!(KeySet::parse(deep.as_bytes()).unwrap_err(), JwksError::Malformed);
    }
}

#[test]
fn malformed_set_is_refused() {
    for json in [
        "",
        "{}",
        "[]",
        "[[]]",
        "null",
        r#"{"keys":{}}"#,
        r#"{"keys":null}"#,
        r#"{"keys":[]"#,
        "<html>",
        "\u{feff}{}",
    ] {
        assert_eq!(KeySet::parse(json.as_bytes()).unwrap_err(), JwksError::Malformed, "{json}");
    }
    assert_eq!(KeySet::parse(b"{\"keys\":[\"\xff\"]}").unwrap_err(), JwksError::Malformed);
}

/// A key that was withdrawn verifies nothing, although its tokens were remembered; a new one verifies tokens that
/// were remembered as bad.
#[test]
fn tokens_are_judged_anew_when_the_keys_change() {
    let [old, new] = [(Issuer::Es256, keys::P256_JWK), (Issuer::EdDsa, keys::ED25519_JWK)];
    let token = |(issuer, _): (Issuer, _)| {
        issuer.token(&format!(r#"{{"alg":"{}","kid":"a"}}"#, issuer.algorithm()), CLAIMS)
    };
    let jwks = Jwks::parse(&set([named(old.1, "a")])).unwrap();
    let jwt = Jwt::from_jwks(jwks.clone()).leeway(Duration::ZERO);
    let forged = Issuer::Es384.token(r#"{"alg":"EdDSA","kid":"a"}"#, CLAIMS);
    assert_eq!(why_not(&jwt, &token(old)), None);
    assert_eq!(why_not(&jwt, &token(new)), Some(InvalidToken::Algorithm));
    jwks.replace(&set([named(new.1, "a")])).unwrap();
    assert_eq!(why_not(&jwt, &token(old)), Some(InvalidToken::Algorithm));
    assert_eq!(why_not(&jwt, &token(new)), None);
    assert_eq!(why_not(&jwt, &forged), Some(InvalidToken::Signature));
    // The same keys again: what is known stays known, and a bad set changes nothing.
    jwks.replace(&set([with(new.1, &json!({ "kid": "a", "x5t": "AAAA" }))])).unwrap();
    assert_eq!(jwks.replace(b"{}"), Err(JwksError::Malformed));
    for known in [token(new), forged] {
        assert!(!matches!(jwt.verify(&known, NOW_US, || false), TokenStatus::NotVerified));
    }
    jwks.replace(&set([])).unwrap();
    assert_eq!(why_not(&jwt, &token(new)), Some(InvalidToken::UnknownKey));
    assert_eq!(jwks.status().keys, 0);
    assert!(jwks.status().problem.is_some_and(|problem| problem.contains("no key")));
}

#[test]
fn debug_shows_no_text_of_a_set() {
    let jwks = Jwks::parse(&set([named(keys::P256_JWK, "hush")])).unwrap();
    assert_eq!(format!("{jwks:?}"), "Jwks { keys: 1, skipped: 0, problem: None, .. }");
}

fn any_json() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "kty", "crv", "x", "y", "n", "e", "d", "k", "use", "alg", "kid", "key_ops", "keys", "",
    ]);
    let texts = prop::sample::select(vec![
        "RSA", "EC", "OKP", "P-256", "P-384", "Ed25519", "sig", "AQAB", "AAAA", "verify", "RS256",
        "",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        texts.prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        prop::collection::vec(any::<u8>(), 0..70).prop_map(|bytes| Value::from(encode(bytes))),
    ];
    leaf.prop_recursive(4, 64, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((names.clone(), inner), 0..8).prop_map(|members| {
                members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
            }),
        ]
    })
}

proptest! {
    #[test]
    fn any_json_is_read_without_panic(keys in prop::collection::vec(any_json(), 0..70), rest in any_json()) {
        for json in [set(keys), rest.to_string().into_bytes(), json!({ "keys": rest }).to_string().into_bytes()] {
            if let Ok(set) = KeySet::parse(&json) {
                prop_assert!(set.keys().len() + set.skipped() <= 64);
            }
        }
    }

    /// With any damage to the bytes of a set, no forged token is accepted and nothing panics.
    #[test]
    fn a_damaged_set_is_read_without_panic(
        at in any::<prop::sample::Index>(),
        bytes in prop::collection::vec(any::<u8>(), 0..4),
        cut in 0_usize..4,
    ) {
        let mut json = set(PUBLISHED.map(|(_, key)| named(key, "a")));
        let at = at.index(json.len());
        let end = (at + cut).min(json.len());
        json.splice(at..end, bytes);
        if let Ok(jwks) = Jwks::parse(&json) {
            let jwt = Jwt::from_jwks(jwks);
            for (issuer, _) in PUBLISHED {
                let header = format!(r#"{{"alg":"{}","kid":"a"}}"#, issuer.algorithm());
                let forged = Issuer::Hs256(SECRET).token(&header, CLAIMS);
                prop_assert!(why_not(&jwt, &forged).is_some());
            }
        }
    }
}
