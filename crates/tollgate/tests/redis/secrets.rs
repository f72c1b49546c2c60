//! A password in a URL is never shown.

use tollgate::{Error, Redis, StoreError};
use tollgate_launcher::Flavour;

use crate::fake::Parrot;
use crate::setup::{
    LIMITS, admin, at, builder, free_addr, named, refusal, start, store_error, within,
};

const SECRET: &str = "hunter2";

fn assert_hidden(text: &str) {
    assert!(!text.contains(SECRET), "{text}");
}

fn assert_error_hides(error: &impl std::error::Error) {
    assert_hidden(&format!("{error} {error:?} {error:#?}"));
    let mut source = std::error::Error::source(error);
    while let Some(deeper) = source {
        assert_hidden(&format!("{deeper} {deeper:?}"));
        source = deeper.source();
    }
}

#[test]
fn invalid_url_is_not_quoted() {
    for url in [
        "redis://user:hunter2@host:port",
        "redis://user:hunter2@host:99999",
        "redis://user:hunter2@host/not-a-number",
        "redis://user:hunter2@",
        "redis://:hunter2@[::1",
        "http://user:hunter2@host",
        "hunter2",
        "rediss://user:hunter2@host/#insecure",
        "redis://host/hunter2",
        "redis://host:hunter2",
        "user:hunter2@host",
        "redis://user:hunter2/x@host",
        "redis://user:x?hunter2=1@host",
        "redis://host?hunter2=1",
        "redis://host?protocol=hunter2",
        "redis+cluster://a:1,user:hunter2@b:1/1",
        "redis+sentinel://user:hunter2@a/name?sentinel_password=hunter2&sentinel=1",
        "redis+sentinel://a/name?sentinel_password=x&hunter2=1",
        "redis+shards://user:hunter2@a,a",
        "",
    ] {
        match Redis::at(url) {
            Ok(builder) => assert_hidden(&format!("{builder:?}")),
            Err(error) => {
                assert!(matches!(error, Error::Setting { setting: "redis", .. }), "{error:?}");
                assert_error_hides(&error);
            }
        }
    }
}

#[tokio::test]
async fn password_is_hidden_when_the_server_is_unreachable() {
    let addr = free_addr();
    for url in [
        format!("redis://user:{SECRET}@{addr}"),
        format!("redis://:{SECRET}@{addr}/2"),
        format!("redis://user:{SECRET}@no-such-host.invalid:1234"),
        format!("redis+unix:///no/such/socket?user=user&pass={SECRET}"),
    ] {
        let builder = builder(&url);
        assert_hidden(&format!("{builder:?} {builder:#?}"));
        let limiter = builder.prefix("p:").unwrap().deadline(crate::setup::PATIENCE).build();
        let limiter = limiter.unwrap();
        assert_hidden(&format!("{limiter:?} {limiter:#?}"));
        let scope = named(&limiter, "scope", LIMITS[0]);
        assert_hidden(&format!("{scope:?} {scope:#?}"));
        let check = scope.check("a");
        assert_hidden(&format!("{check:?}"));
        let answer = check.into_future();
        assert_hidden(&format!("{answer:?} {answer:#?}"));
        let error = store_error(answer.await);
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
        assert_error_hides(&error);
        let acquire = scope.acquire("a").into_future();
        assert_hidden(&format!("{acquire:?}"));
        assert_error_hides(&acquire.await.unwrap_err());
    }
}

/// A server that does not know `HELLO` repeats its arguments, the password among them, in the error.
#[tokio::test]
async fn password_is_hidden_when_the_server_repeats_it() {
    let answer = format!("-ERR unknown command 'HELLO', with args '3' 'AUTH' 'u' '{SECRET}'\r\n");
    let parrot = Parrot::to_everything(answer.as_bytes());
    let url = parrot.url().replace("redis://", &format!("redis://u:{SECRET}@"));
    let scope = named(&at(&format!("{url}?protocol=resp3")), "scope", LIMITS[0]);
    let error = store_error(scope.check("a").await);
    assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
    assert_error_hides(&error);
}

#[tokio::test]
async fn wrong_password_is_an_error_that_hides_it() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        redis::cmd("CONFIG")
            .arg("SET")
            .arg("requirepass")
            .arg("correct-horse")
            .exec(&mut admin)
            .unwrap();
        let addr = server.addr();
        for user in [format!(":{SECRET}"), format!("default:{SECRET}"), format!("unknown:{SECRET}")]
        {
            let scope = named(&at(&format!("redis://{user}@{addr}")), "scope", LIMITS[0]);
            let answer = scope.check("a").await;
            assert_error_hides(answer.as_ref().unwrap_err());
            let problem = refusal(answer);
            assert!(problem.contains("WRONGPASS"), "{problem}");
        }
        let without = refusal(named(&at(&server.url()), "scope", LIMITS[0]).check("a").await);
        assert!(without.contains("NOAUTH"), "{without}");
        let right = named(&at(&format!("redis://:correct-horse@{addr}")), "scope", LIMITS[0]);
        assert!(right.check("a").await.unwrap().is_allowed());
        assert!(!format!("{right:#?}").contains("correct-horse"), "{right:#?}");
    }
}

#[tokio::test]
async fn password_is_hidden_in_a_timeout() {
    let mute = crate::fake::Mute::start();
    let url = mute.url().replace("redis://", &format!("redis://user:{SECRET}@"));
    let scope = named(&within(&url, std::time::Duration::from_millis(50)), "scope", LIMITS[0]);
    let error = store_error(scope.check("a").await);
    assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
    assert_error_hides(&error);
}
