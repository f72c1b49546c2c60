//! Keys for these tests and nothing else: everybody has them.

/// 2048 bits, PKCS #8.
pub(super) const RSA_PRIVATE: &str = "\
-----BEGIN PRIVATE KEY-----
MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC1n7qe9nL7j5yN
BXS0v6HC2AUc3MhtHto77BnAewEAVyBFpr+5YLNSWXLu1Kqnv4Jkg5yT8rQ7kRSK
HbQJe4XvF9CA5l9Ij2fVTI8Ni5dcMowRaGjbZQ7qkNwUzGVUXS85OnJGWO4Wztkv
JtwlzzMtYozYvTCzfoMGVJJBkatDoS8LKnclOEu/6B2QLPWlAtygIgf+phNJX5EC
/Ga+mQbxaVRCklUABt9FJ9kvv3lYasuUx7JgDL02BMDbN8mEDN70NhTlj0WSCy9G
MEm5Dl5AE+mL5/JSCk9Z0dL1ZGh3vf2lgqyv1IM6ht8fmfq/glCu4tapDDPmYEwS
CMcPd68/AgMBAAECggEAWiJm7zTHY2il/KZUgM8JbDTgdK5tGRpSm6JUNV3V5WFX
trlGNK100M1raHNKLe2wvElEj3fHUjhxxQlwq7QNh9Z9tzqc1tm0YfqYk9ROzYaY
VJtITnkcqfQyBHBbaT7FjNUgmSDRJ6iHyAq0/l6Ru1hJJdbeMHX8eEvIOZodMHYa
owudWEjrdTG5B81i5Z7iEu5l/UlKa3eix7TT3+myaLl1/73MsRzkkiWs23QR53pO
zg2TTSXFXPNOtIWKEzH9sAtD1r5oVvu1L2TMUdJxQXVjuLUnuZemQlwxbwn7hd1H
wX//qzY/srhHF7EP/bAJDfmgsz//bSM4gVPvs2m0oQKBgQDqvacI+Gjk14lsG24D
CfcvD9u8KEL85qB4xDDtV2o9UefPFiLYrRrBeL0k314HRcNyU/TxOXHURW9ymsvA
KMQmiQsP6rqTTh37sF7QmhAXmRXIBPjwkFQL6/qaA6lYWsuwJiCLvXB4TGovgdt4
r0uqEt/aRgCgzPu1tU6ebZ2IewKBgQDGEpaZ8G/JJ2yHYX1oRVS5az7Do2NPZekD
qN52cAyLtKINvl4SQupvOY5CFF0vPCYGKbXvgYYUNZ+SguI9fTE53du+F680oafG
6HMFpaFndbrvEo9qrDaIPP0xvYi7CxanjX2CzoPRrwyFLOcYEKdwICF5Jx/0mPqA
2qFHJVHzDQKBgQCYBrPDL35flue9SBZ7iVy48gBRX5Hi0EplbEpzrAV2KTGEAMYY
piOJ4XQ+CRuQgjIOPSmJgLajz0RaaL5EeSJwAplTeaXT+OeaNaNyXhTF87MTk4TV
5+NGxVHLpUtrmYIJVugFGG9aucKbefJ1urG6N/caGfQWMCtkh0Off0ZjOQKBgDy9
PIOOUKlNtqE5SxyrjhSiB4g01WJmrPLbWQTWzXIV/U/bnbtZ28wpyS8IUZ8Hgd2H
8uu0O2p9GybxjfEvL+Y/23/KgYbRP8LmS0djCEDSwHVJqsMadkqG8VnMdl5tQxA0
elWfgJrPZDZ+k4s0qDPhFoKxdcIrGz5iTOylTCENAoGAVZgTRL1ku6V7zsHhqnmM
A4i73Bbi7eL838OaKwaxlpxjnlh5SA65x2y3CrrrJjYFVh8NbuwB+/otSn5HGbl9
6wFpfAadF/up7UqgRpCboN+rn3DDXDiNdlhvuB5Q1QGbY+QFITtAp+rRiJaOUnJ8
3omZndcnrUAyELWhdieUX7k=
-----END PRIVATE KEY-----
";

/// Its public key.
pub(super) const RSA_PUBLIC: &str = include_str!("../../../../tollgate/tests/keys/rsa.pem");

/// The same, without the name of its algorithm.
pub(super) const RSA_PUBLIC_PKCS1: &str = "\
-----BEGIN RSA PUBLIC KEY-----
MIIBCgKCAQEAtZ+6nvZy+4+cjQV0tL+hwtgFHNzIbR7aO+wZwHsBAFcgRaa/uWCz
Ully7tSqp7+CZIOck/K0O5EUih20CXuF7xfQgOZfSI9n1UyPDYuXXDKMEWho22UO
6pDcFMxlVF0vOTpyRljuFs7ZLybcJc8zLWKM2L0ws36DBlSSQZGrQ6EvCyp3JThL
v+gdkCz1pQLcoCIH/qYTSV+RAvxmvpkG8WlUQpJVAAbfRSfZL795WGrLlMeyYAy9
NgTA2zfJhAze9DYU5Y9FkgsvRjBJuQ5eQBPpi+fyUgpPWdHS9WRod739pYKsr9SD
OobfH5n6v4JQruLWqQwz5mBMEgjHD3evPwIDAQAB
-----END RSA PUBLIC KEY-----
";

/// 1024 bits.
pub(super) const RSA_1024: &str = "\
-----BEGIN PUBLIC KEY-----
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDDiK6Lgh7m0AGlDfk3dq4MEGDF
z4pnkbBCPygdSPW9QNRzIUooJu9L1uaGNNPO630O6aEb91tAr+0lRY2rYAJkVNpk
98wERUW1D9WAEgnXys5qVCkEZtTCaOyoB3QAuNRMq0CCClBwCH++8Rl4jGSYQW/m
sHn5AJC8Y0kJIB9OiwIDAQAB
-----END PUBLIC KEY-----
";

/// PKCS #8.
pub(super) const P256_PRIVATE: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgJ3c9hV99Jz7gGOAU
h8jnDuK6ZFlDkncG76wVrS//2sahRANCAARKb3H9QEIhWHIgIL3O9kSRLrPJfmHo
m3wRKL/QgsZnIFMz8XoLEdkXSkaSJT4dbw0hW2IQxckcgMq08sWLXavN
-----END PRIVATE KEY-----
";

/// Its public key.
pub(super) const P256_PUBLIC: &str = "\
-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAESm9x/UBCIVhyICC9zvZEkS6zyX5h
6Jt8ESi/0ILGZyBTM/F6CxHZF0pGkiU+HW8NIVtiEMXJHIDKtPLFi12rzQ==
-----END PUBLIC KEY-----
";

/// The same, with half a point.
pub(super) const P256_COMPRESSED: &str = "\
-----BEGIN PUBLIC KEY-----
MDkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDIgADSm9x/UBCIVhyICC9zvZEkS6zyX5h
6Jt8ESi/0ILGZyA=
-----END PUBLIC KEY-----
";

/// The same, signed by itself.
pub(super) const P256_CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----
MIIBfzCCASWgAwIBAgIUNHkNVUy6r3N8fMqFA1ICDBDgxH4wCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJdGVzdC1vbmx5MCAXDTI2MTExNTE4MDk1OFoYDzIxMjYxMDIy
MTgwOTU4WjAUMRIwEAYDVQQDDAl0ZXN0LW9ubHkwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAARKb3H9QEIhWHIgIL3O9kSRLrPJfmHom3wRKL/QgsZnIFMz8XoLEdkX
SkaSJT4dbw0hW2IQxckcgMq08sWLXavNo1MwUTAdBgNVHQ4EFgQUEpsYguI1XeWV
dcWMyofb3mjNhdQwHwYDVR0jBBgwFoAUEpsYguI1XeWVdcWMyofb3mjNhdQwDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiEAxRvdmruzKAJoCBufWjr4
V55M1EFytxu40PgVNrXH2g4CIF63cCu30yzhtQhgIQzPr3dv+TsicjkiYDBl7ehQ
CBLg
-----END CERTIFICATE-----
";

/// The private key as older tools write it.
pub(super) const P256_PRIVATE_SEC1: &str = "\
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEICd3PYVffSc+4BjgFIfI5w7iumRZQ5J3Bu+sFa0v/9rGoAoGCCqGSM49
AwEHoUQDQgAESm9x/UBCIVhyICC9zvZEkS6zyX5h6Jt8ESi/0ILGZyBTM/F6CxHZ
F0pGkiU+HW8NIVtiEMXJHIDKtPLFi12rzQ==
-----END EC PRIVATE KEY-----
";

/// Another curve, PKCS #8.
pub(super) const P384_PRIVATE: &str = "\
-----BEGIN PRIVATE KEY-----
MIG2AgEAMBAGByqGSM49AgEGBSuBBAAiBIGeMIGbAgEBBDCwE4+rJSqwvt2ShcKo
VUYQR9UEHTsottkHFF4VfSD1r49L67QFU17772hfvH77KTehZANiAATXU5/aazn0
lj9PHPh9prM4RfrnOmaTGw/Cv8FUsB8FCXm/+dFVkBBGFtJmyaMKF/ezaMyob3Ew
C5DKVusyzLJeQ3T3gdSS+nSszGiif3Co8NSM0rL8jCmkJdrsijf+eeE=
-----END PRIVATE KEY-----
";

/// Its public key.
pub(super) const P384: &str = "\
-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAE11Of2ms59JY/Txz4faazOEX65zpmkxsP
wr/BVLAfBQl5v/nRVZAQRhbSZsmjChf3s2jMqG9xMAuQylbrMsyyXkN094HUkvp0
rMxoon9wqPDUjNKy/IwppCXa7Io3/nnh
-----END PUBLIC KEY-----
";

/// Another curve, whose points are as long as the points of P-256.
pub(super) const SECP256K1: &str = "\
-----BEGIN PUBLIC KEY-----
MFYwEAYHKoZIzj0CAQYFK4EEAAoDQgAEEdVJh99x7ON7n8RNCv7XPrMf/ozRsS2c
Y6LEL+u8UlQQbsiVIubIg5bY08CjLX6lFSCOM4SIsrEA7dknZdCeUw==
-----END PUBLIC KEY-----
";

/// Another algorithm, PKCS #8.
pub(super) const ED25519_PRIVATE: &str = "\
-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEINYH3OBBALtVgg8RgzCNZFhq3+VOKfTOeqQihfDFl9W6
-----END PRIVATE KEY-----
";

/// Its public key.
pub(super) const ED25519: &str = "\
-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEALs5AiS3G1dnetVQbtVTWeiL7HVYdr/KUD+GmO5SpiVc=
-----END PUBLIC KEY-----
";

/// [`RSA_PUBLIC`] as a key of a set, without a name.
pub(super) const RSA_JWK: &str = r#"{"kty":"RSA","e":"AQAB","n":"tZ-6nvZy-4-cjQV0tL-hwtgFHNzIbR7aO-wZwHsBAFcgRaa_uWCzUlly7tSqp7-CZIOck_K0O5EUih20CXuF7xfQgOZfSI9n1UyPDYuXXDKMEWho22UO6pDcFMxlVF0vOTpyRljuFs7ZLybcJc8zLWKM2L0ws36DBlSSQZGrQ6EvCyp3JThLv-gdkCz1pQLcoCIH_qYTSV-RAvxmvpkG8WlUQpJVAAbfRSfZL795WGrLlMeyYAy9NgTA2zfJhAze9DYU5Y9FkgsvRjBJuQ5eQBPpi-fyUgpPWdHS9WRod739pYKsr9SDOobfH5n6v4JQruLWqQwz5mBMEgjHD3evPw"}"#;

/// [`P256_PUBLIC`].
pub(super) const P256_JWK: &str = r#"{"kty":"EC","crv":"P-256","x":"Sm9x_UBCIVhyICC9zvZEkS6zyX5h6Jt8ESi_0ILGZyA","y":"UzPxegsR2RdKRpIlPh1vDSFbYhDFyRyAyrTyxYtdq80"}"#;

/// [`P384`].
pub(super) const P384_JWK: &str = r#"{"kty":"EC","crv":"P-384","x":"11Of2ms59JY_Txz4faazOEX65zpmkxsPwr_BVLAfBQl5v_nRVZAQRhbSZsmjChf3","y":"s2jMqG9xMAuQylbrMsyyXkN094HUkvp0rMxoon9wqPDUjNKy_IwppCXa7Io3_nnh"}"#;

/// [`ED25519`].
pub(super) const ED25519_JWK: &str =
    r#"{"kty":"OKP","crv":"Ed25519","x":"Ls5AiS3G1dnetVQbtVTWeiL7HVYdr_KUD-GmO5SpiVc"}"#;
