//! Clients with tokens (JWT) that share an address, at `/v1/authorize`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tollgate_launcher::{Authority, ServerCertificate};

use crate::check::rules;
use crate::metrics::scrape;
use crate::readiness::readyz;
use crate::server::ServerProcess;

/// The secret that signs the tokens below, with HS256.
const SECRET: (&str, &str) = ("JWT_SECRET", "0123456789abcdef0123456789abcdef");

/// `{"alg":"HS256"}`.
const HEADER: &str = "eyJhbGciOiJIUzI1NiJ9";

/// `{"sub":"ada","exp":4102444800}`, signed; `BOB` is the same for bob.
const ADA: &str =
    "eyJzdWIiOiJhZGEiLCJleHAiOjQxMDI0NDQ4MDB9.WlXhMywctNciXHyKhXzjlxB99mTy1bjEo4gA-ZF5zq4";
const BOB: &str =
    "eyJzdWIiOiJib2IiLCJleHAiOjQxMDI0NDQ4MDB9.zJwCjzi5WfDHGpEy98DzZJckxNgJqFmNE6hHFGHllNs";

/// `{"sub":"eve"}`, signed: a token that never expires.
const WITHOUT_EXPIRY: &str = "eyJzdWIiOiJldmUifQ.NaBdvbrJFukosFaa2cCfjx7pT2KphC9IRzrxZSjxEdY";

#[test]
fn tokens_without_expiry_are_logged_and_counted() {
    let file = rules(
        "identity:\n\
         \x20 trusted_proxies: [127.0.0.1]\n\
         \x20 jwt: { keys: [{ algorithm: HS256, secret_env: JWT_SECRET }] }\n\
         limits: { two: fixed-window limit=2 window=366d }\n\
         rules:\n\
         - { name: each, domain: web, key: [{ first_of: [jwt.sub, ip] }], limit: two }",
    );
    let server = ServerProcess::start_with(&["--config", file.path().to_str().unwrap()], &[SECRET]);
    let ask = |token: &str, address: &str| {
        let request = server.get("/v1/authorize").bearer_auth(format!("{HEADER}.{token}"));
        let request = request.header("x-forwarded-method", "GET").header("x-forwarded-uri", "/");
        request.header("x-forwarded-for", address).send().unwrap().status().as_u16()
    };
    // The requests are limited by address, like requests without a token.
    let statuses = ["203.0.113.9", "203.0.113.9", "203.0.113.9", "203.0.113.8"]
        .map(|address| ask(WITHOUT_EXPIRY, address));
    assert_eq!(statuses, [200, 200, 429, 200]);
    assert_eq!(ask(ADA, "203.0.113.9"), 200);
    let log = server.wait_for_log(|log| log.contains("they have no `exp`"));
    assert_eq!(log.matches("they have no `exp`").count(), 1, "{log}");
    let page = scrape(&server);
    let rejected = |reason| page.value("tollgate_tokens_rejected_total", &[("reason", reason)]);
    assert_eq!((rejected("no_expiry"), rejected("signature")), (4.0, 0.0));
    // A change of the token settings does not reset the counters.
    let text = std::fs::read_to_string(file.path()).unwrap();
    std::fs::write(file.path(), text.replace("jwt: {", "jwt: { audience: shop,")).unwrap();
    server.wait_for_log(|log| log.contains("rules reloaded"));
    assert_eq!(ask(ADA, "203.0.113.9"), 429);
    let page = scrape(&server);
    let rejected = |reason| page.value("tollgate_tokens_rejected_total", &[("reason", reason)]);
    assert_eq!((rejected("no_expiry"), rejected("audience")), (4.0, 1.0));
}

#[test]
fn valid_token_has_its_quota_when_its_address_also_sends_invalid_ones() {
    let file = rules(
        "identity:\n\
         \x20 trusted_proxies: [127.0.0.1]\n\
         \x20 jwt:\n\
         \x20   verifications: fixed-window limit=3 window=366d\n\
         \x20   keys: [{ algorithm: HS256, secret_env: JWT_SECRET }]\n\
         limits: { five: fixed-window limit=5 window=366d }\n\
         rules:\n\
         - { name: each, domain: web, key: [{ first_of: [jwt.sub, ip] }], limit: five }",
    );
    let server = ServerProcess::start_with(&["--config", file.path().to_str().unwrap()], &[SECRET]);
    let ask = |token: &str| {
        let request = server.get("/v1/authorize").bearer_auth(format!("{HEADER}.{token}"));
        let request = request.header("x-forwarded-method", "GET").header("x-forwarded-uri", "/");
        let request = request.header("x-forwarded-for", "203.0.113.9");
        request.send().unwrap().status().as_u16()
    };
    let of_ada: Vec<_> = (0..10).map(|_| ask(ADA)).collect();
    assert_eq!(of_ada, [200, 200, 200, 200, 200, 429, 429, 429, 429, 429]);
    // More invalid tokens than the address may have verified. Their requests are limited by address, and spend its quota.
    let signature = "A".repeat(43);
    let of_bad: Vec<_> = (0..10).map(|number| ask(&format!("bad{number}.{signature}"))).collect();
    assert_eq!(of_bad, [200, 200, 200, 200, 200, 429, 429, 429, 429, 429]);
    assert_eq!(ask(BOB), 200, "a new good token has its own quota");
}

/// A key set with one usable key: the Ed25519 key `a`.
const KEY_SET: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"Ls5AiS3G1dnetVQbtVTWeiL7HVYdr_KUD-GmO5SpiVc"},{"kty":"EC","crv":"P-521"}]}"#;

/// `{"alg":"EdDSA","kid":"a"}` and `{"sub":"ada","exp":4102444800}`, signed by that key.
const OF_KEY_SET: &str = "eyJhbGciOiJFZERTQSIsImtpZCI6ImEifQ.eyJzdWIiOiJhZGEiLCJleHAiOjQxMDI0NDQ4MDB9.w-oHFBq4gaNE3aby6AN35HCxJYQeEjgjnfKAP9_SVyX5JsMdJOMpPavMZsIZC90IMDL7auGpqmUKJtbNovCMBg";

/// Starts an issuer that answers with the key set, or with 503 while it `is_down`.
fn publish(is_down: &Arc<AtomicBool>) -> SocketAddr {
    let is_down = Arc::clone(is_down);
    serve(move |stream| answer(stream, if is_down.load(Relaxed) { "503 Down" } else { "200 OK" }))
}

/// Starts an issuer that answers with the key set over TLS, with a certificate for `localhost`.
fn publish_by_tls(authority: &Authority) -> SocketAddr {
    let ServerCertificate { certificate, key, .. } = authority.certify("localhost").unwrap();
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let config = Arc::new(config.with_single_cert(vec![certificate], key).unwrap());
    serve(move |stream| {
        let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
        answer(StreamOwned::new(connection, stream), "200 OK");
    })
}

fn serve(answer: impl Fn(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || listener.incoming().for_each(|stream| answer(stream.unwrap())));
    address
}

fn answer(mut stream: impl Read + Write, status: &str) {
    let mut head = BufReader::new(&mut stream).lines();
    while head.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    let length = KEY_SET.len();
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    // OK to ignore an error: a client that does not trust the certificate has already closed the connection.
    let _ = stream.write_all((head + KEY_SET).as_bytes()).and_then(|()| stream.flush());
}

#[test]
fn token_keys_are_fetched_over_tls_from_trusted_issuers() {
    let authority = Authority::new("an issuer's").unwrap();
    let issuer = publish_by_tls(&authority);
    let mut trusted = tempfile::NamedTempFile::new().unwrap();
    trusted.write_all(authority.pem().as_bytes()).unwrap();
    let file = rules(&format!(
        "identity: {{ jwt: {{ jwks: {{ url: 'https://localhost:{}/keys' }} }} }}\n\
         limits: {{ two: fixed-window limit=2 window=366d }}",
        issuer.port()
    ));
    let flags = ["--config", file.path().to_str().unwrap()];
    let server =
        ServerProcess::start_with(&flags, &[("SSL_CERT_FILE", trusted.path().to_str().unwrap())]);
    server.wait_for_log(|log| log.contains("keys that verify tokens were fetched"));
    let server = ServerProcess::start_with(&flags, &[]);
    let log = server.wait_for_log(|log| log.contains("keys that verify tokens were not fetched"));
    assert!(log.contains("invalid peer certificate"), "{log}");
}

#[test]
fn token_keys_are_fetched_and_a_failure_is_visible() {
    let is_down = Arc::new(AtomicBool::new(true));
    let issuer = publish(&is_down);
    let file = rules(&format!(
        "identity:\n\
         \x20 trusted_proxies: [127.0.0.1]\n\
         \x20 jwt: {{ jwks: {{ url: 'http://{issuer}/keys?v=hush' }} }}\n\
         limits: {{ two: fixed-window limit=2 window=366d }}\n\
         rules:\n\
         - {{ name: each, domain: web, key: [{{ first_of: [jwt.sub, ip] }}], limit: two }}"
    ));
    let server = ServerProcess::start_with(&["--config", file.path().to_str().unwrap()], &[]);
    let ask = || {
        let request = server.get("/v1/authorize").bearer_auth(OF_KEY_SET);
        let request = request.header("x-forwarded-method", "GET").header("x-forwarded-uri", "/");
        request.header("x-forwarded-for", "203.0.113.9").send().unwrap().status().as_u16()
    };
    // The server starts without its keys: tokens are ignored, and requests are limited by address.
    let log = server.wait_for_log(|log| log.contains("keys that verify tokens were not fetched"));
    assert!(log.contains("status 503") && !log.contains("hush"), "{log}");
    assert_eq!([(); 3].map(|()| ask()), [200, 200, 429]);
    let page = scrape(&server);
    assert_eq!(page.value("tollgate_rules_problem", &[]), 1.0);
    assert_eq!(page.value("tollgate_token_keys", &[]), 0.0);
    let (status, readiness) = readyz(&server);
    let problem = readiness["rules_problem"].as_str().unwrap();
    assert!(status == 200 && problem.ends_with("the issuer answered with status 503"), "{problem}");
    is_down.store(false, Relaxed);
    server.wait_for_log(|log| log.contains("keys that verify tokens were fetched"));
    assert_eq!([(); 3].map(|()| ask()), [200, 200, 429], "ada has a quota of her own");
    let page = scrape(&server);
    assert_eq!(page.value("tollgate_rules_problem", &[]), 0.0);
    let counts = ["tollgate_token_keys", "tollgate_token_keys_skipped"];
    assert_eq!(counts.map(|name| page.value(name, &[])), [1.0, 1.0]);
    let refreshes =
        |result| page.value("tollgate_token_key_refreshes_total", &[("result", result)]);
    assert!(refreshes("ok") == 1.0 && refreshes("failed") >= 1.0);
}
