//! An application may choose how tokens are signed and read in its process. Ours are none of its concern.

use jsonwebtoken::crypto::{CryptoProvider, KeyUtils};
use tollgate::http::{InvalidToken, Jwt, JwtKey};

static UNWILLING: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| unreachable!("asked to sign"),
    verifier_factory: |_, _| unreachable!("asked to verify"),
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
    UNWILLING.install_default().expect("nothing was installed, or used, before");
    let jwt = Jwt::new([JwtKey::hs256(SECRET).unwrap()]).unwrap();
    assert!(jwt.claims(TOKEN).is_ok());
    let forged = format!("{TOKEN}AAAA");
    assert_eq!(jwt.claims(&forged).err(), Some(InvalidToken::Signature));
    assert!(JwtKey::rs256(PEM).is_ok());
}
