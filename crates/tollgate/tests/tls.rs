//! Redis over TLS. Debian's Redis speaks it; the Valkey of `make servers` does not.
//!
//! That a certificate is trusted is tested with the command `tollgate`, in its own process: what the
//! system trusts is said in the environment.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tollgate::{Error, Limit, Limiter, StoreError};
use tollgate_launcher::{Authority, Flavour, Launch};

const LIMIT: &str = "token-bucket capacity=10 refill=1/s";

async fn check(url: &str) -> Result<bool, Error> {
    let limiter = Limiter::builder().redis(url)?.deadline(Duration::from_secs(30)).build()?;
    let scope = limiter.scope("tls", LIMIT.parse::<Limit>().unwrap())?;
    Ok(scope.check("a").await?.is_allowed())
}

#[tokio::test]
async fn a_certificate_that_the_system_does_not_trust_is_refused_and_the_error_says_so() {
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

/// Nobody has to remember to switch it off.
#[tokio::test]
async fn a_url_cannot_say_that_any_certificate_will_do() {
    let certified = Authority::new("stranger").unwrap().certify("127.0.0.1").unwrap();
    let server = Launch::new(Flavour::Redis).tls(certified).start().unwrap();
    let refused = check(&format!("{}/#insecure", server.url())).await;
    assert!(matches!(refused, Err(Error::Store(StoreError::Unreachable { .. }))), "{refused:?}");
}
