//! The keys that are accepted, and how they are shown.

use base64::engine::general_purpose::STANDARD;

use super::*;

fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

/// One value of DER, of up to 65,535 bytes.
fn der(tag: u8, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).unwrap().to_be_bytes();
    let length = match length {
        [0, short @ ..128] => vec![short],
        [0, long] => vec![0x81, long],
        [high, low] => vec![0x82, high, low],
    };
    [&[tag], length.as_slice(), value].concat()
}

/// A number that has `bits` bits, the first and the last of them ones, as a key's modulus.
fn rsa_key(bits: usize, exponent: u8) -> String {
    let mut modulus = vec![0; bits / 8 + 1];
    modulus[bits / 8] = 1;
    let highest = modulus.len() - 1 - (bits - 1) / 8;
    modulus[highest] |= 1 << ((bits - 1) % 8);
    // DER wants a zero before a highest bit that is set, and none else.
    let modulus = if bits.is_multiple_of(8) { &modulus[..] } else { &modulus[highest..] };
    let numbers = [der(2, modulus), der(2, &[exponent])].concat();
    pem("RSA PUBLIC KEY", &der(0x30, &numbers))
}

#[test]
fn a_secret_has_at_least_32_bytes() {
    assert_eq!(JwtKey::hs256(&[7; 31]).err(), Some(JwtError::ShortSecret { bytes: 31, least: 32 }));
    assert_eq!(JwtKey::hs256(b"").err(), Some(JwtError::ShortSecret { bytes: 0, least: 32 }));
    assert!(JwtKey::hs256(&[7; 32]).is_ok());
}

#[test]
fn a_pem_is_no_secret() {
    for pem in [keys::RSA_PUBLIC, keys::P256_PUBLIC, keys::P256_CERTIFICATE, keys::RSA_PRIVATE] {
        for secret in [pem.to_owned(), format!("\n{pem}"), format!("\u{feff}a key:\r\n{pem}")] {
            assert_eq!(JwtKey::hs256(secret.as_bytes()).err(), Some(JwtError::PemAsSecret));
        }
    }
    assert_eq!(JwtKey::hs256(b"-----BEGIN ").err(), Some(JwtError::PemAsSecret));
}

#[test]
fn rs256_takes_rsa_public_keys_alone() {
    let table = [
        (keys::RSA_PUBLIC, None),
        (keys::RSA_PUBLIC_PKCS1, None),
        (keys::RSA_1024, Some(JwtError::RsaBits { bits: 1_024 })),
        (keys::RSA_PRIVATE, Some(JwtError::PrivateKey)),
        (keys::P256_PUBLIC, Some(JwtError::NotRsa)),
        (keys::ED25519, Some(JwtError::NotRsa)),
        (keys::P256_CERTIFICATE, Some(JwtError::Certificate)),
    ];
    for (pem, want) in table {
        assert_eq!(JwtKey::rs256(pem.as_bytes()).err(), want, "{pem}");
    }
}

#[test]
fn es256_takes_keys_on_p256_alone() {
    let table = [
        (keys::P256_PUBLIC, None),
        (keys::P256_COMPRESSED, Some(JwtError::NotP256)),
        (keys::P256_PRIVATE, Some(JwtError::PrivateKey)),
        (keys::P256_PRIVATE_SEC1, Some(JwtError::PrivateKey)),
        (keys::P256_CERTIFICATE, Some(JwtError::Certificate)),
        (keys::P384, Some(JwtError::NotP256)),
        (keys::SECP256K1, Some(JwtError::NotP256)),
        (keys::ED25519, Some(JwtError::NotP256)),
        (keys::RSA_PUBLIC, Some(JwtError::NotP256)),
        (keys::RSA_PUBLIC_PKCS1, Some(JwtError::NotP256)),
    ];
    for (pem, want) in table {
        assert_eq!(JwtKey::es256(pem.as_bytes()).err(), want, "{pem}");
    }
}

#[test]
fn es384_takes_keys_on_p384_alone() {
    let table = [
        (keys::P384, None),
        (keys::P384_PRIVATE, Some(JwtError::PrivateKey)),
        (keys::P256_PUBLIC, Some(JwtError::NotP384)),
        (keys::ED25519, Some(JwtError::NotP384)),
        (keys::RSA_PUBLIC, Some(JwtError::NotP384)),
    ];
    for (pem, want) in table {
        assert_eq!(JwtKey::es384(pem.as_bytes()).err(), want, "{pem}");
    }
}

#[test]
fn eddsa_takes_ed25519_keys_alone() {
    let table = [
        (keys::ED25519, None),
        (keys::ED25519_PRIVATE, Some(JwtError::PrivateKey)),
        (keys::P256_PUBLIC, Some(JwtError::NotEd25519)),
        (keys::P384, Some(JwtError::NotEd25519)),
        (keys::RSA_PUBLIC, Some(JwtError::NotEd25519)),
        (keys::RSA_PUBLIC_PKCS1, Some(JwtError::NotEd25519)),
        (keys::P256_CERTIFICATE, Some(JwtError::Certificate)),
    ];
    for (pem, want) in table {
        assert_eq!(JwtKey::eddsa(pem.as_bytes()).err(), want, "{pem}");
    }
    // X25519, which agrees on secrets and signs nothing: its DER differs in one byte.
    let x25519 = keys::ED25519.replace("MCowBQYDK2Vw", "MCowBQYDK2Vu");
    assert_eq!(JwtKey::eddsa(x25519.as_bytes()).err(), Some(JwtError::NotEd25519));
}

#[test]
fn an_rsa_key_has_2048_to_8192_bits() {
    for (bits, is_taken) in [
        (1_024, false),
        (2_047, false),
        (2_048, true),
        (2_049, true),
        (8_192, true),
        (8_193, false),
    ] {
        let want = (!is_taken).then_some(JwtError::RsaBits { bits });
        assert_eq!(JwtKey::rs256(rsa_key(bits, 3).as_bytes()).err(), want, "{bits}");
    }
}

#[test]
fn zeros_before_a_number_are_none_of_its_bits() {
    let table: [(&[u8], usize); 5] =
        [(&[], 0), (&[0, 0], 0), (&[1], 1), (&[0, 0, 0x80], 8), (&[0, 1, 0], 9)];
    for (number, want) in table {
        assert_eq!(super::super::key::bits(number), want, "{number:?}");
    }
}

/// To raise to the power of 1 changes nothing: everybody could sign.
#[test]
fn an_rsa_key_has_an_exponent_that_does_something() {
    for exponent in [0, 1, 2, 4] {
        let key = JwtKey::rs256(rsa_key(2_048, exponent).as_bytes());
        assert_eq!(key.err(), Some(JwtError::NotRsa), "{exponent}");
    }
}

#[test]
fn a_point_is_written_in_full_and_nothing_follows() {
    let body: String = keys::P256_PUBLIC.lines().filter(|line| !line.starts_with('-')).collect();
    let good = STANDARD.decode(body).unwrap();
    let read = |der: &[u8]| JwtKey::es256(pem("PUBLIC KEY", der).as_bytes()).err();
    assert_eq!(read(&good), None);
    assert_eq!(read(&good[..good.len() - 1]), Some(JwtError::NotP256));
    assert_eq!(read(&[&good[..], &[0]].concat()), Some(JwtError::NotP256));
    for mark in [0, 2, 3, 6, 7] {
        let mut marked = good.clone();
        marked[26] = mark;
        assert_eq!(read(&marked), Some(JwtError::NotP256), "{mark}");
    }
}

#[test]
fn an_rsa_key_is_the_same_in_both_forms() {
    let key = JwtKey::rs256(keys::RSA_PUBLIC_PKCS1.as_bytes()).unwrap();
    let jwt = Jwt::new([key]).unwrap();
    assert_eq!(why_not(&jwt, &Issuer::Rs256.token_with(CLAIMS)), None);
}

#[test]
fn a_pem_may_have_text_around_it_and_any_line_ends() {
    let pem = keys::P256_PUBLIC;
    let one_line = pem.lines().filter(|line| !line.starts_with('-')).collect::<String>();
    for pem in [
        pem.replace('\n', "\r\n"),
        format!("the key of id.example.com:\n{pem}\nand no other"),
        pem.trim_end().to_owned(),
        format!("-----BEGIN PUBLIC KEY-----{one_line}-----END PUBLIC KEY-----"),
    ] {
        let jwt = Jwt::new([JwtKey::es256(pem.as_bytes()).unwrap()]).unwrap();
        assert_eq!(why_not(&jwt, &Issuer::Es256.token_with(CLAIMS)), None, "{pem}");
    }
}

#[test]
fn text_other_than_the_pem_of_one_key_is_refused() {
    let pem = keys::P256_PUBLIC;
    let (cut, _) = pem.split_once("-----END").unwrap();
    for text in [
        String::new(),
        "-----BEGIN ".into(),
        "-----BEGIN PUBLIC KEY-----".into(),
        "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----".into(),
        "-----BEGIN PUBLIC KEY-----\n????\n-----END PUBLIC KEY-----".into(),
        cut.into(),
        pem.repeat(2),
        format!("{pem}{}", keys::RSA_PUBLIC),
        encode(pem),
    ] {
        for key in [JwtKey::rs256(text.as_bytes()), JwtKey::es256(text.as_bytes())] {
            assert_eq!(key.err(), Some(JwtError::NotPem), "{text}");
        }
    }
    assert_eq!(JwtKey::rs256(b"\xff\xfe").err(), Some(JwtError::NotPem));
    let empty = b"-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----";
    assert_eq!(JwtKey::rs256(empty).err(), Some(JwtError::NotRsa));
    assert_eq!(JwtKey::es256(empty).err(), Some(JwtError::NotP256));
}

/// Any byte of a PEM may be lost or changed on the way.
#[test]
fn a_damaged_pem_never_panics_and_its_key_signed_nothing() {
    // How the DER of an RSA key begins may vary a little; its numbers come after 33 bytes.
    const RSA_NUMBERS: usize = 44;
    for issuer in [Issuer::Rs256, Issuer::Es256, Issuer::Es384, Issuer::EdDsa] {
        let token = issuer.token_with(CLAIMS);
        let (pem, read, exact): (_, fn(&[u8]) -> _, _) = match issuer {
            Issuer::Rs256 => (keys::RSA_PUBLIC, JwtKey::rs256, RSA_NUMBERS),
            Issuer::Es384 => (keys::P384, JwtKey::es384, 0),
            Issuer::EdDsa => (keys::ED25519, JwtKey::eddsa, 0),
            _ => (keys::P256_PUBLIC, JwtKey::es256, 0),
        };
        let (start, end) = ("-----BEGIN PUBLIC KEY-----\n".len(), pem.find("-----END").unwrap());
        for position in start..end {
            let mut damaged = pem.as_bytes().to_vec();
            if damaged[position] == b'\n' {
                continue;
            }
            damaged[position] = if damaged[position] == b'A' { b'B' } else { b'A' };
            if let Ok(key) = read(&damaged) {
                let why = why_not(&Jwt::new([key]).unwrap(), &token);
                let may_be_the_same = position < start + exact && why.is_none();
                let is_another = why == Some(InvalidToken::Signature);
                assert!(may_be_the_same || is_another, "{issuer:?} {position}");
            }
            damaged.remove(position);
            assert!(read(&damaged).is_err(), "{issuer:?} {position}");
        }
    }
}

#[test]
fn debug_shows_no_key() {
    let key = Issuer::Hs256(SECRET).key().id("2026-11");
    let want = r#"JwtKey { algorithm: HS256, id: Some("2026-11"), .. }"#;
    assert_eq!(format!("{key:?}"), want);
    let jwt = Jwt::new([key, Issuer::Es256.key()]).unwrap().issuer("a");
    at(&jwt, &Issuer::Es256.token_with(r#"{"exp":1700000100,"iss":"a"}"#), NOW_US).unwrap();
    let want = format!(
        "Jwt {{ keys: [{want}, JwtKey {{ algorithm: ES256, id: None, .. }}], \
         jwks: [], issuers: [\"a\"], audiences: [], leeway_us: 5000000, max_cached: 10000 }}"
    );
    assert_eq!(format!("{jwt:?}"), want);
}

#[test]
fn messages_say_what_to_do() {
    let config = [
        JwtError::ShortSecret { bytes: 6, least: 32 },
        JwtError::PemAsSecret,
        JwtError::RsaBits { bits: 1_024 },
        JwtError::SameId { id: "a".into() },
        JwtError::TooManyWithoutId { most: 8 },
    ]
    .map(|error| error.to_string());
    let want = [
        "an HS256 secret of 6 bytes; use at least 32 random ones (RFC 7518, 3.2)",
        "an HS256 secret that is a PEM; use `JwtKey::rs256` or `JwtKey::es256` for public keys",
        "an RSA key of 1024 bits; use one of 2048 to 8192 (RFC 7518, 3.3)",
        "two keys have the id `a`; give each its own",
        "over 8 keys of one algorithm have no id; give them the ids that tokens name in `kid`",
    ];
    assert_eq!(config, want);
    assert_eq!(InvalidToken::Expired.to_string(), "the token has expired");
}
