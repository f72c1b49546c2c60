//! An application may install a provider of the crate `jsonwebtoken` for its whole process. Tollgate does not use it.

use jsonwebtoken::crypto::{CryptoProvider, KeyUtils};
use tollgate::http::{InvalidToken, Jwt, JwtKey};

static UNUSED: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| unreachable!("the provider was called to sign"),
    verifier_factory: |_, _| unreachable!("the provider was called to verify"),
    key_utils: KeyUtils::new_unimplemented(),
};

/// Signed with the secret below; expires in the year 2100.
const TOKEN: &str = "eyJhbGciOiJIUzI1NiJ9.\
    eyJpc3MiOiJodHRwczovL2lkLmV4YW1wbGUuY29tIiwic3ViIjoiYWRhIiwi\
    cmVhbG0iOnsicGxhbiI6InBybyJ9LCJleHAiOjQxMDI0NDQ4MDB9.\
    wD2QwRjuyiJfsJMsIICLjBgpv9x1a3mRpcKIVdnlw_A";

const SECRET: &[u8] = b"an example's secret of 34 bytes...";

const PEM: &[u8] = include_bytes!("keys/rsa.pem");

#[test]
fn installed_jwt_provider_is_not_used() {
    UNUSED.install_default().expect("no provider was installed or used before");
    let jwt = Jwt::new([JwtKey::hs256(SECRET).unwrap()]).unwrap();
    assert!(jwt.claims(TOKEN).is_ok());
    let forged = format!("{TOKEN}AAAA");
    assert_eq!(jwt.claims(&forged).err(), Some(InvalidToken::Signature));
    assert!(JwtKey::rs256(PEM).is_ok());
}
