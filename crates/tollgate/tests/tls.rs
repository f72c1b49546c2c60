//! Redis over TLS. Debian's Redis supports TLS; the Valkey of `make servers` does not.
//!
//! A test of the command `tollgate` shows that the system's authorities are trusted. It needs its own process,
//! because the environment sets them.

#![allow(clippy::panic, clippy::unwrap_used)]

use std::path::PathBuf;
use std::time::Duration;

use tollgate::{Error, Limit, OnFailure, Redis, StoreError};
use tollgate_launcher::{Authority, Flavour, Launch, Server, ServerCertificate};

const LIMIT: &str = "token-bucket capacity=10 refill=1/s";

async fn check(url: &str) -> Result<bool, Error> {
    check_on(Redis::at(url)?).await
}

async fn check_on(builder: Redis) -> Result<bool, Error> {
    let limiter =
        builder.on_failure(OnFailure::Closed).deadline(Duration::from_secs(30)).build()?;
    let scope = limiter.scope("tls", LIMIT.parse::<Limit>().unwrap())?;
    Ok(scope.check("a").await?.is_allowed())
}

/// Writes a file. Each test uses other names.
fn file(name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path
}

fn server(authority: &Authority) -> Server {
    Launch::new(Flavour::Redis).tls(authority.certify("127.0.0.1").unwrap()).start().unwrap()
}

/// Starts a server that requires a client certificate of the same authority.
fn server_with_client_auth(authority: &Authority, name: &str) -> Server {
    let trusted = file(name, authority.pem());
    Launch::new(Flavour::Redis)
        .tls(authority.certify("127.0.0.1").unwrap())
        .config("tls-auth-clients", "yes")
        .config("tls-ca-cert-file", &format!("\"{}\"", trusted.display()))
        .start()
        .unwrap()
}

fn setting_error<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(error @ Error::Setting { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn untrusted_certificate_is_an_error_that_says_so() {
    let certified = Authority::new("stranger").unwrap().certify("127.0.0.1").unwrap();
    let server = Launch::new(Flavour::Redis).tls(certified).start().unwrap();
    match check(&server.url()).await {
        Err(Error::Store(StoreError::Unreachable { server: at, problem })) => {
            assert_eq!(at, server.addr().to_string());
            assert!(problem.contains("invalid peer certificate: UnknownIssuer"), "{problem}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn url_cannot_disable_certificate_verification() {
    assert_eq!(
        setting_error(Redis::at("rediss://127.0.0.1/#insecure")),
        "redis: `#insecure` is not supported, a certificate is always verified; name the one to trust \
         with `?ca=/path/to/ca.pem`"
    );
}

#[tokio::test]
async fn private_authority_is_trusted_when_set_in_url_or_builder() {
    let authority = Authority::new("private").unwrap();
    let server = server(&authority);
    let ca = file("private-ca.pem", authority.pem());
    assert_eq!(check(&format!("{}?ca={}", server.url(), ca.display())).await, Ok(true));
    let builder = Redis::at(&server.url()).unwrap();
    assert_eq!(check_on(builder.root_certificate(authority.pem()).unwrap()).await, Ok(true));
}

#[tokio::test]
async fn private_authority_replaces_the_others() {
    let server = server(&Authority::new("private").unwrap());
    let other = Authority::new("other").unwrap();
    let ca = file("other-ca.pem", other.pem());
    let refused = check(&format!("{}?ca={}", server.url(), ca.display())).await;
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("invalid peer certificate"), "{message}");
}

#[tokio::test]
async fn client_certificate_is_accepted_by_a_server_that_requires_one() {
    let authority = Authority::new("private").unwrap();
    let server = server_with_client_auth(&authority, "wary-admits-ca.pem");
    let ServerCertificate { certificate, key, .. } = authority.certify("client").unwrap();
    let ca = file("admitted-ca.pem", authority.pem());
    let (cert_file, key_file) = (file("admitted.pem", &certificate), file("admitted.key", &key));
    let (ca, cert_file, key_file) = (ca.display(), cert_file.display(), key_file.display());
    let url = format!("{}?ca={ca}&cert={cert_file}&key={key_file}", server.url());
    assert_eq!(check(&url).await, Ok(true));

    let builder = Redis::at(&format!("{}?ca={ca}", server.url())).unwrap();
    let builder = builder.client_certificate(certificate, key.as_bytes()).unwrap();
    let shown = format!("{builder:?} {builder:#?}");
    assert!(!shown.contains("BEGIN") && !shown.contains("client_key"), "{shown}");
    assert_eq!(check_on(builder).await, Ok(true));
}

#[tokio::test]
async fn missing_or_foreign_client_certificate_is_an_error() {
    let authority = Authority::new("private").unwrap();
    let server = server_with_client_auth(&authority, "wary-refuses-ca.pem");
    let trusting = || {
        let builder = Redis::at(&server.url()).unwrap();
        builder.root_certificate(authority.pem()).unwrap()
    };
    let ServerCertificate { certificate, key, .. } =
        Authority::new("stranger").unwrap().certify("me").unwrap();
    let stranger = trusting().client_certificate(certificate, key).unwrap();
    for (builder, want) in [(trusting(), "CertificateRequired"), (stranger, "UnknownCA")] {
        match check_on(builder).await {
            Err(Error::Store(StoreError::Unreachable { server: at, problem })) => {
                assert_eq!(at, server.addr().to_string());
                assert!(problem.contains(want), "{problem}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn invalid_certificates_are_refused_at_once() {
    let authority = Authority::new("private").unwrap();
    let ServerCertificate { certificate, key, .. } = authority.certify("client").unwrap();
    let other = authority.certify("client").unwrap().key;
    let malformed = certificate.replace("\nMII", "\n!!!");
    let not_a_certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let no_certificate = "no certificate as PEM; one begins with -----BEGIN CERTIFICATE-----";
    let no_key = "no private key as PEM, unencrypted; one begins with -----BEGIN PRIVATE KEY-----";
    let apart = "they do not match, or one is malformed; give a key and its certificate";
    let builder = || Redis::at("rediss://h").unwrap();

    for pem in ["", "hunter2", &malformed, not_a_certificate, &key] {
        let error = setting_error(builder().root_certificate(pem));
        assert_eq!(error, format!("root_certificate: {no_certificate}"));
        let path = file("malformed-ca.pem", pem);
        let url = format!("rediss+cluster://a,b?ca={}", path.display());
        let error = setting_error(Redis::at(&url));
        assert_eq!(error, format!("redis: `ca`: {no_certificate}"));
    }
    for (certificate, key, problem) in [
        ("", &*key, no_certificate),
        (&certificate, "hunter2", no_key),
        (&certificate, &certificate, no_key),
        (&certificate, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", apart),
        (not_a_certificate, &key, apart),
        (&certificate, &other, apart),
    ] {
        let error = setting_error(builder().client_certificate(certificate, key));
        assert_eq!(error, format!("client_certificate: {problem}"));
        let (cert, key) = (file("malformed.pem", certificate), file("malformed.key", key));
        let url = format!("rediss://h?cert={}&key={}", cert.display(), key.display());
        let error = setting_error(Redis::at(&url));
        assert_eq!(error, format!("redis: `cert` and `key`: {problem}"));
    }
}

#[test]
fn invalid_tls_parameter_is_reported_by_name() {
    let there = file("there.pem", "");
    let there = there.display();
    for (query, want) in [
        (
            "ca=/no/such".to_owned(),
            "`ca` names a file that cannot be read (No such file or directory (os error 2)); give the path of a PEM file",
        ),
        (
            format!("cert={there}&key=hunter2"),
            "`key` names a file that cannot be read (No such file or directory (os error 2)); give the path of a PEM file",
        ),
        (format!("cert={there}"), "`cert` needs a `key`; give both"),
        (format!("key={there}"), "`key` needs a `cert`; give both"),
        ("ca=a%FFb".to_owned(), "`ca` is not UTF-8 when its %… are decoded; write it as UTF-8"),
        ("ca=a&ca=b".to_owned(), "`ca` is given twice; leave one out"),
        ("cafile=a".to_owned(), "`cafile` is not known; use only protocol, ca, cert, key"),
    ] {
        let error = setting_error(Redis::at(&format!("rediss://h?{query}")));
        assert_eq!(error, format!("redis: {want}"));
    }
}

#[test]
fn certificate_without_tls_is_an_error() {
    let authority = Authority::new("private").unwrap();
    let ServerCertificate { certificate, key, .. } = authority.certify("client").unwrap();
    for url in ["redis://h", "unix:///s", "redis+sentinel://a/n"] {
        let builder = || Redis::at(url).unwrap();
        assert_eq!(
            setting_error(builder().root_certificate(authority.pem())),
            "root_certificate: the URL does not use TLS; use rediss, or leave the certificate out"
        );
        assert_eq!(
            setting_error(builder().client_certificate(&*certificate, &*key)),
            "client_certificate: the URL does not use TLS; use rediss, or leave the certificate out"
        );
    }
}

/// Every node is reached over TLS, also nodes that the URL does not name.
#[tokio::test]
async fn clusters_shards_and_sentinel_primaries_use_tls() {
    let authority = Authority::new("ours").unwrap();
    let launch = Launch::new(Flavour::Redis).tls(authority.certify("127.0.0.1").unwrap());
    let cluster = launch.clone().cluster().primaries(3).replicas_of_each(0).start().unwrap();
    let seed = cluster.url().split(',').next().unwrap().to_owned();
    let primary = launch.start().unwrap();
    let sentinels = launch.clone().sentinels("limits", &primary).start().unwrap();
    let other = launch.start().unwrap();
    let shards = format!("rediss+shards://{},{}", primary.addr(), other.addr());
    for (url, ids) in [(seed, 30), (sentinels.url(), 1), (shards, 30)] {
        let builder = Redis::at(&url).unwrap().on_failure(OnFailure::Closed);
        let builder = builder.root_certificate(authority.pem()).unwrap();
        let limiter = builder.deadline(Duration::from_secs(30)).build().unwrap();
        let scope = limiter.scope("tls", LIMIT.parse::<Limit>().unwrap()).unwrap();
        for id in 0..ids {
            assert!(scope.check(&id.to_string()).await.unwrap().is_allowed(), "{url}");
        }
    }
    let strange = Redis::at(&sentinels.url()).unwrap();
    assert!(matches!(check_on(strange).await, Err(Error::Store(StoreError::Unreachable { .. }))));
}
