//! Tokens that somebody made up, or changed.

use proptest::prelude::*;

use super::*;

/// An attacker's signature: empty.
fn unsigned(header: &str, claims: &str) -> String {
    format!("{}.{}.", encode(header), encode(claims))
}

#[test]
fn a_token_without_a_signature_never_counts() {
    for issuer in ISSUERS {
        let jwt = issuer.jwt();
        for algorithm in ["none", "nOnE", "NONE", "None", "", "hs256", "HS256 ", "HS256\\u0000"] {
            let header = format!(r#"{{"alg":"{algorithm}"}}"#);
            for token in [unsigned(&header, CLAIMS), issuer.token(&header, CLAIMS)] {
                let why = why_not_for_free(&jwt, &token);
                assert_eq!(why, Some(InvalidToken::Algorithm), "{algorithm}");
            }
        }
        let algorithm = issuer.algorithm();
        let header = format!(r#"{{"alg":"{algorithm}"}}"#);
        assert_eq!(why_not(&jwt, &unsigned(&header, CLAIMS)), Some(InvalidToken::Signature));
        let signature_less = format!("{}.{}", encode(&header), encode(CLAIMS));
        assert_eq!(why_not_for_free(&jwt, &signature_less), Some(InvalidToken::Malformed));
    }
}

/// The oldest trick: the public key is public, so sign with it as if it were a secret.
#[test]
fn a_public_key_is_no_secret() {
    let public = |issuer| match issuer {
        Issuer::Rs256 => keys::RSA_PUBLIC,
        Issuer::Es384 => keys::P384,
        Issuer::EdDsa => keys::ED25519,
        _ => keys::P256_PUBLIC,
    };
    for issuer in [Issuer::Rs256, Issuer::Es256, Issuer::Es384, Issuer::EdDsa] {
        let pem: &'static str = public(issuer);
        for secret in [pem.as_bytes(), pem.trim_end().as_bytes()] {
            let forged = Issuer::Hs256(secret).token_with(CLAIMS);
            assert_eq!(why_not_for_free(&issuer.jwt(), &forged), Some(InvalidToken::Algorithm));
            let with_secret = Jwt::new([issuer.key(), Issuer::Hs256(SECRET).key()]).unwrap();
            assert_eq!(why_not(&with_secret, &forged), Some(InvalidToken::Signature));
            // The header says one thing, the signature is another.
            let header = format!(r#"{{"alg":"{}"}}"#, issuer.algorithm());
            let forged = Issuer::Hs256(secret).token(&header, CLAIMS);
            assert_eq!(why_not(&issuer.jwt(), &forged), Some(InvalidToken::Signature));
        }
    }
}

#[test]
fn a_token_of_another_algorithm_is_not_for_the_key() {
    for issuer in ISSUERS {
        for other in ISSUERS.iter().filter(|other| other.algorithm() != issuer.algorithm()) {
            let token = other.token_with(CLAIMS);
            assert_eq!(why_not_for_free(&issuer.jwt(), &token), Some(InvalidToken::Algorithm));
            let named = Jwt::new([issuer.key().id("a"), other.key()]).unwrap();
            let header = format!(r#"{{"alg":"{}","kid":"a"}}"#, other.algorithm());
            let token = other.token(&header, CLAIMS);
            assert_eq!(why_not_for_free(&named, &token), Some(InvalidToken::Algorithm));
        }
        for algorithm in ["HS384", "HS512", "RS384", "RS512", "PS256", "ES512", "ES256K", "Ed448"] {
            let token = issuer.token(&format!(r#"{{"alg":"{algorithm}"}}"#), CLAIMS);
            assert_eq!(why_not_for_free(&issuer.jwt(), &token), Some(InvalidToken::Algorithm));
        }
    }
}

/// The 32 bytes of an Ed25519 key make a secret of exactly the least length.
#[test]
fn the_bytes_of_an_ed25519_key_are_no_secret() {
    let body: String = keys::ED25519.lines().filter(|line| !line.starts_with('-')).collect();
    let der = base64::engine::general_purpose::STANDARD.decode(body).unwrap();
    let secret: &'static [u8] = der[der.len() - 32..].to_vec().leak();
    let forged = Issuer::Hs256(secret).token_with(CLAIMS);
    assert_eq!(why_not_for_free(&Issuer::EdDsa.jwt(), &forged), Some(InvalidToken::Algorithm));
    for algorithm in ["EdDSA", "Ed25519"] {
        let header = format!(r#"{{"alg":"{algorithm}"}}"#);
        let forged = Issuer::Hs256(secret).token(&header, CLAIMS);
        assert_eq!(why_not(&Issuer::EdDsa.jwt(), &forged), Some(InvalidToken::Signature));
        let genuine = Issuer::EdDsa.token(&header, CLAIMS);
        assert_eq!(why_not(&Issuer::EdDsa.jwt(), &genuine), None, "{algorithm}");
    }
}

#[test]
fn a_signature_of_zeros_never_counts() {
    for (issuer, bytes) in [
        (Issuer::Es256, 64),
        (Issuer::Es384, 96),
        (Issuer::EdDsa, 64),
        (Issuer::Rs256, 256),
        (Issuer::Hs256(SECRET), 32),
    ] {
        let genuine = issuer.token_with(CLAIMS);
        let (message, _) = genuine.rsplit_once('.').unwrap();
        for signature in [vec![0; bytes], vec![0xff; bytes], vec![0; 1], vec![0x30; 72]] {
            let token = format!("{message}.{}", encode(signature));
            assert_eq!(why_not(&issuer.jwt(), &token), Some(InvalidToken::Signature), "{issuer:?}");
        }
    }
}

#[test]
fn a_token_with_any_bit_flipped_never_counts() {
    for issuer in ISSUERS {
        let (jwt, genuine) = (issuer.jwt(), issuer.token_with(CLAIMS));
        // The genuine token is cached, which must not help tokens that resemble it.
        assert_eq!(why_not(&jwt, &genuine), None);
        for position in 0..genuine.len() {
            for bit in 0..7 {
                let mut bytes = genuine.clone().into_bytes();
                bytes[position] ^= 1 << bit;
                let token = String::from_utf8(bytes).unwrap();
                assert!(why_not(&jwt, &token).is_some(), "{issuer:?} {position} {bit}");
            }
        }
        for end in 0..genuine.len() {
            assert!(why_not(&jwt, &genuine[..end]).is_some(), "{issuer:?} up to {end}");
            assert!(why_not(&jwt, &genuine[end + 1..]).is_some(), "{issuer:?} after {end}");
        }
    }
}

#[test]
fn parts_of_two_tokens_make_no_third() {
    for issuer in ISSUERS {
        let ada = issuer.token_with(CLAIMS);
        let eve = issuer.token_with(r#"{"sub":"eve","exp":1700000100}"#);
        let (message, _) = ada.rsplit_once('.').unwrap();
        let (_, signature) = eve.rsplit_once('.').unwrap();
        let mixed = format!("{message}.{signature}");
        assert_eq!(why_not(&issuer.jwt(), &mixed), Some(InvalidToken::Signature));
        let (_, ada_after_header) = ada.split_once('.').unwrap();
        let header = encode(format!(r#"{{"alg":"{}"}}"#, issuer.algorithm()));
        let other_header = format!("{header}.{ada_after_header}");
        assert_eq!(why_not(&issuer.jwt(), &other_header), Some(InvalidToken::Signature));
    }
}

#[test]
fn a_header_that_asks_for_more_is_refused_for_free() {
    let issuer = Issuer::Hs256(SECRET);
    let table = [
        (r#"{"alg":"HS256","crit":["b64"],"b64":false}"#, InvalidToken::Critical),
        (r#"{"alg":"HS256","crit":[]}"#, InvalidToken::Critical),
        (r#"{"alg":"HS256","crit":null}"#, InvalidToken::Critical),
        (r#"{"alg":"none","crit":["exp"]}"#, InvalidToken::Critical),
        (r#"{"alg":"HS256","kid":7}"#, InvalidToken::Malformed),
        (r#"{"alg":"HS256","kid":null}"#, InvalidToken::Malformed),
        (r#"{"alg":["HS256"]}"#, InvalidToken::Malformed),
        (r#"{"alg":null}"#, InvalidToken::Malformed),
        (r#"{"typ":"JWT"}"#, InvalidToken::Malformed),
        (r#"{"alg":"HS256","alg":"none"}"#, InvalidToken::Malformed),
        (r#"{"alg":"HS256","alg":"HS256"}"#, InvalidToken::Malformed),
        (r#"{"alg":"HS256","kid":"a","kid":"b"}"#, InvalidToken::Malformed),
        (r#"{"crit":["b64"],"alg":"HS256","crit":[]}"#, InvalidToken::Malformed),
        (r#" ["HS256"]"#, InvalidToken::Malformed),
        (r#"["HS256"]"#, InvalidToken::Malformed),
        (r#""HS256""#, InvalidToken::Malformed),
        (r#"{"alg":"HS256"} "x""#, InvalidToken::Malformed),
        (r#"{"alg":"HS256""#, InvalidToken::Malformed),
        ("", InvalidToken::Malformed),
    ];
    for (header, want) in table {
        let token = issuer.token(header, CLAIMS);
        assert_eq!(why_not_for_free(&issuer.jwt(), &token), Some(want), "{header}");
    }
}

/// A key in the header, or where to get one, is the attacker's own.
#[test]
fn a_key_that_the_token_brings_along_is_not_used() {
    let mallory = Issuer::Hs256(b"the secret of somebody else, 39 bytes..");
    let issuer = Issuer::Hs256(SECRET);
    let jwk = encode("the secret of somebody else, 39 bytes..");
    for header in [
        format!(r#"{{"alg":"HS256","jwk":{{"kty":"oct","k":"{jwk}"}}}}"#),
        r#"{"alg":"HS256","jku":"https://mallory.example/keys"}"#.into(),
        r#"{"alg":"HS256","x5u":"https://mallory.example/cert","x5c":["AAAA"]}"#.into(),
    ] {
        let why = why_not(&issuer.jwt(), &mallory.token(&header, CLAIMS));
        assert_eq!(why, Some(InvalidToken::Signature), "{header}");
    }
}

#[test]
fn junk_is_refused_for_free() {
    let issuer = Issuer::Hs256(SECRET);
    let good = issuer.token_with(CLAIMS);
    let header = encode(r#"{"alg":"HS256"}"#);
    let not_utf8 = encode(b"{\"alg\":\"HS256\",\"x\":\"\xff\xfe\"}");
    for token in [
        String::new(),
        ".".into(),
        "..".into(),
        "...".into(),
        "a.b.c".into(),
        "Bearer".into(),
        "héllo.wörld.!".into(),
        format!(" {good}"),
        format!("{good} "),
        format!("{good}\n"),
        format!("{good}="),
        format!("{good}.{good}"),
        format!("{good}.."),
        format!("{header}=.e30.AAAA"),
        format!("{header}.e3+/.AAAA"),
        format!("{header}.e30.AA+/"),
        format!("{header}.e30.AAA$"),
        format!("{header}.e3 0.AAAA"),
        format!("{header}.e30.A"),
        format!("{not_utf8}.e30.AAAA"),
    ] {
        let why = why_not_for_free(&issuer.jwt(), &token);
        assert_eq!(why, Some(InvalidToken::Malformed), "{token:?}");
    }
}

#[test]
fn a_token_over_8_kib_is_not_looked_at() {
    let issuer = Issuer::Hs256(SECRET);
    // Base64 takes 4 characters for 3 bytes, and a token's header and signature their own.
    let of_length = |padding: usize| {
        issuer.token_with(&format!(r#"{{"exp":1700000100,"x":"{}"}}"#, "x".repeat(padding)))
    };
    let longest = (5_900..6_200).map(of_length).rfind(|token| token.len() <= 8_192).unwrap();
    assert!(longest.len() > 8_188, "{}", longest.len());
    assert_eq!(why_not(&issuer.jwt(), &longest), None);
    for padding in [6_200, 75_000, 1_000_000] {
        let why = why_not_for_free(&issuer.jwt(), &of_length(padding));
        assert_eq!(why, Some(InvalidToken::TooLong));
    }
    assert_eq!(why_not_for_free(&issuer.jwt(), &".".repeat(8_192)), Some(InvalidToken::Malformed));
    assert_eq!(why_not_for_free(&issuer.jwt(), &".".repeat(8_193)), Some(InvalidToken::TooLong));
}

#[test]
fn a_header_over_1_kib_is_not_read() {
    let issuer = Issuer::Hs256(SECRET);
    // 768 bytes are 1,024 characters.
    let of_bytes = |bytes: usize| format!("{:<bytes$}", r#"{"alg":"HS256"}"#);
    assert_eq!(why_not(&issuer.jwt(), &issuer.token(&of_bytes(768), CLAIMS)), None);
    for bytes in [769, 6_000] {
        let why = why_not_for_free(&issuer.jwt(), &issuer.token(&of_bytes(bytes), CLAIMS));
        assert_eq!(why, Some(InvalidToken::TooLong));
    }
    // Not even whether it is base64.
    let junk = format!("{}.e30.AAAA", "!".repeat(1_025));
    assert_eq!(why_not_for_free(&issuer.jwt(), &junk), Some(InvalidToken::TooLong));
}

#[test]
fn unknown_members_of_a_header_are_skipped() {
    let issuer = Issuer::Hs256(SECRET);
    for header in [
        r#"{"a":[{"":0},{"":[1e9,null,"x"]}],"alg":"HS256","typ":"JWT","typ":7}"#,
        " {\"alg\":\"HS256\",\"x5c\":[\"AAAA\",\"\\u0000\"]}\n",
        r#"{"\u0061lg":"HS\u003256"}"#,
    ] {
        assert_eq!(why_not(&issuer.jwt(), &issuer.token(header, CLAIMS)), None, "{header}");
    }
}

#[test]
fn claims_that_are_no_object_do_not_count_though_signed() {
    let issuer = Issuer::Hs256(SECRET);
    for claims in ["", "null", "[]", "7", r#""exp""#, "{", r#"{"exp":1700000100,}"#, "\u{feff}{}"] {
        let why = why_not(&issuer.jwt(), &issuer.token_with(claims));
        assert_eq!(why, Some(InvalidToken::Malformed), "{claims}");
    }
    let header = encode(r#"{"alg":"HS256"}"#);
    let not_utf8 = encode(b"{\"exp\":1700000100,\"x\":\"\xff\"}");
    // The last character has bits that belong to no byte.
    for claims in [not_utf8.as_str(), "e31", "e"] {
        let token = issuer.sign(&format!("{header}.{claims}"));
        assert_eq!(why_not(&issuer.jwt(), &token), Some(InvalidToken::Malformed), "{claims}");
    }
}

#[test]
fn depth_is_bounded() {
    let issuer = Issuer::Hs256(SECRET);
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        for depth in [200, 900] {
            let deep = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            let claims = format!(r#"{{"exp":1700000100,"x":{deep}}}"#);
            let why = why_not(&issuer.jwt(), &issuer.token_with(&claims));
            assert_eq!(why, Some(InvalidToken::Malformed));
            let header = format!(r#"{{"alg":"HS256","x":{deep}}}"#);
            let why = why_not_for_free(&issuer.jwt(), &issuer.token(&header, CLAIMS));
            let is_long = encode(&header).len() > 1_024;
            assert_eq!(why, is_long.then_some(InvalidToken::TooLong));
        }
    }
}

proptest! {
    #[test]
    fn no_text_counts_or_panics(text in any::<String>(), parts in "[A-Za-z0-9_-]{0,40}(\\.[A-Za-z0-9_-]{0,40}){0,4}") {
        for issuer in ISSUERS {
            prop_assert!(why_not(&issuer.jwt(), &text).is_some());
            prop_assert!(why_not(&issuer.jwt(), &parts).is_some());
        }
    }

    /// An issuer may be careless: whatever it signs, nothing panics.
    #[test]
    fn any_signed_claim_is_read_or_refused(
        value in "(-?[0-9]{1,40}(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,4})?|\"[^\"\\\\]{0,9}\"|null|\\[\\]|.{0,9})",
        now_us in any::<u64>(),
        leeway in any::<u64>(),
    ) {
        let issuer = Issuer::Hs256(SECRET);
        let jwt = issuer.jwt().leeway(Duration::from_micros(leeway));
        for claims in [format!(r#"{{"exp":{value}}}"#), format!(r#"{{"exp":9e9,"nbf":{value}}}"#), value] {
            if let Ok(claims) = at(&jwt, &issuer.token_with(&claims), now_us) {
                prop_assert!(claims.get("exp").is_some());
            }
        }
    }
}
