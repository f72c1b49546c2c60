//! Refunds on a real Redis, healthy or failing.

use std::time::Duration;

use redis::Connection;
use tokio::runtime::Runtime;
use tollgate::{Error, Redis, StoreError};
use tollgate_launcher::{Cluster, Flavour, Launch, Proxy, Server};

use super::*;

const LIMIT: &str = "limits: { it: token-bucket capacity=10 refill=10/1h }";

/// A deadline that is long enough on any machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A server with a Redis store: its rules and receipts.
pub(super) struct RedisFixture {
    pub(super) rules: Rules,
    pub(super) receipts: Receipts,
    pub(super) runtime: Runtime,
}

impl RedisFixture {
    pub(super) fn at(url: &str) -> RedisFixture {
        RedisFixture::within(url, PATIENCE)
    }

    /// Returns a server with this deadline, and the default failure policy.
    pub(super) fn within(url: &str, deadline: Duration) -> RedisFixture {
        let runtime = runtime();
        let builder = Redis::at(url).unwrap().deadline(deadline);
        let fixture = RedisFixture::new(runtime, builder);
        fixture.refresh_lifetime().unwrap();
        fixture
    }

    /// Returns a server that has not read the lifetime of the store yet.
    pub(super) fn new(runtime: Runtime, builder: Redis) -> RedisFixture {
        let limiter = runtime.block_on(async { builder.build().unwrap() });
        let rules = Rules::new(&limiter, &config(LIMIT)).unwrap();
        let secret = secret("known to all of them");
        let receipts = Receipts::on_servers(&limiter, Some(&secret)).unwrap();
        RedisFixture { rules, receipts, runtime }
    }

    pub(super) fn refresh_lifetime(&self) -> Result<(), Error> {
        self.runtime.block_on(self.receipts.refresh_lifetime())
    }

    pub(super) fn check(&self, cost: u64) -> String {
        self.receipt(cost).unwrap()
    }

    pub(super) fn receipt(&self, cost: u64) -> Option<String> {
        let scope = self.rules.limit("it").unwrap();
        let decision = self.runtime.block_on(async { scope.check("a").cost(cost).await }).unwrap();
        self.receipts.of_limit(&scope, b"a", &decision)
    }

    pub(super) fn refund(&self, text: &str) -> Result<u64, RefundError> {
        self.runtime
            .block_on(self.receipts.refund(&self.rules, text))
            .map(|refunded| refunded.units)
    }

    pub(super) fn remaining(&self) -> u64 {
        let scope = self.rules.limit("it").unwrap();
        self.runtime.block_on(async { scope.peek("a").await }).unwrap().remaining()
    }
}

pub(super) fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

pub(super) fn start() -> Server {
    Launch::new(Flavour::Redis).start().unwrap_or_else(|error| panic!("{error}"))
}

pub(super) fn admin(server: &Server) -> Connection {
    redis::Client::open(server.unix_url()).unwrap().get_connection().unwrap()
}

#[test]
fn a_mark_expires_by_itself() {
    let server = start();
    let ours = RedisFixture::at(&server.url());
    let text = ours.check(3);
    assert_eq!(ours.refund(&text).unwrap(), 3);
    let mut admin = admin(&server);
    let keys: Vec<String> = redis::cmd("KEYS").arg("*refunded*").query(&mut admin).unwrap();
    assert_eq!(keys.len(), 1, "{keys:?}");
    let ttl_ms: i64 = redis::cmd("PTTL").arg(&keys[0]).query(&mut admin).unwrap();
    // 3 units refill in 18 minutes; with 10 s more the mark stays for 9 * 2^27 us. Redis keeps the key a little longer.
    assert!((1_100_000..1_230_000).contains(&ttl_ms), "{ttl_ms}");
}

#[test]
fn a_refund_that_failed_without_effect_can_be_repeated() {
    let server = start();
    let ours = RedisFixture::at(&server.url());
    let text = ours.check(3);
    let mut admin = admin(&server);
    let mut run = |words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query::<redis::Value>(&mut admin).unwrap();
    };
    let key = "tollgate:{a}:it";
    run(&["RENAME", key, "aside"]);
    run(&["SET", key, "another program's value"]);
    for _ in 0..2 {
        let failed = ours.refund(&text);
        let is_corrupt = |error: &Error| matches!(error, Error::Store(StoreError::Corrupt { .. }));
        assert!(
            matches!(&failed, Err(RefundError::Failed(error)) if is_corrupt(error)),
            "{failed:?}"
        );
        let message = failed.unwrap_err().to_string();
        assert!(message.contains("data in the store that is not a state of a limit"), "{message}");
    }
    run(&["RENAME", "aside", key]);
    assert_eq!(ours.refund(&text).unwrap(), 3);
    assert_eq!(ours.remaining(), 10);
    assert!(matches!(ours.refund(&text), Err(RefundError::AlreadyRefunded)));
}

#[test]
fn a_mark_with_an_unknown_outcome_counts_as_set() {
    let server = start();
    let proxy = Proxy::start(server.addr()).unwrap();
    let (ours, direct) = (RedisFixture::at(&proxy.url()), RedisFixture::at(&server.url()));
    let text = ours.check(3);
    // The reply to the read of the lifetime is in time, the reply to the mark is not.
    let mut replies = 0;
    proxy.delay(move || {
        replies += 1;
        if replies > 1 { PATIENCE } else { Duration::ZERO }
    });
    let unknown = ours.refund(&text);
    assert!(matches!(unknown, Err(RefundError::OutcomeUnknown(_))), "{unknown:?}");
    assert!(matches!(direct.refund(&text), Err(RefundError::AlreadyRefunded)));
    assert_eq!(direct.remaining(), 7);
}

#[test]
fn a_receipt_is_not_refunded_if_the_lifetime_cannot_be_read() {
    let server = start();
    let proxy = Proxy::start(server.addr()).unwrap();
    let (ours, direct) = (RedisFixture::at(&proxy.url()), RedisFixture::at(&server.url()));
    let text = ours.check(3);
    proxy.cut_after_request(1);
    let failed = ours.refund(&text);
    assert!(matches!(failed, Err(RefundError::Failed(_))), "{failed:?}");
    assert_eq!(direct.remaining(), 7);
    assert_eq!(direct.refund(&text).unwrap(), 3);
}

#[test]
fn a_refund_with_an_unknown_outcome_is_not_repeated() {
    let server = start();
    let proxy = Proxy::start(server.addr()).unwrap();
    let (ours, direct) = (RedisFixture::at(&proxy.url()), RedisFixture::at(&server.url()));
    let text = ours.check(3);
    // The replies to the read of the lifetime and to the mark are in time, the reply to the refund is not.
    let mut replies = 0;
    proxy.delay(move || {
        replies += 1;
        if replies > 2 { PATIENCE } else { Duration::ZERO }
    });
    let unknown = ours.refund(&text);
    assert!(matches!(unknown, Err(RefundError::OutcomeUnknown(_))), "{unknown:?}");
    assert!(matches!(direct.refund(&text), Err(RefundError::AlreadyRefunded)));
    assert_eq!(direct.remaining(), 10);
}

#[test]
fn a_receipt_stays_valid_while_the_store_does_not_answer() {
    let server = start();
    let proxy = Proxy::start(server.addr()).unwrap();
    let (ours, direct) = (RedisFixture::at(&proxy.url()), RedisFixture::at(&server.url()));
    let text = ours.check(3);
    proxy.refuse_connections();
    proxy.cut_connections();
    // The breaker opens soon, and refunds then fail at once.
    let failed = (0..1_000)
        .map(|_| ours.refund(&text))
        .find(|why| matches!(why, Err(RefundError::Failed(_))));
    assert!(failed.is_some());
    assert_eq!(direct.refund(&text).unwrap(), 3);
}

#[test]
fn refunds_have_a_longer_deadline_than_checks() {
    let server = start();
    let proxy = Proxy::start(server.addr()).unwrap();
    let impatient = RedisFixture::within(&proxy.url(), Duration::from_millis(1));
    let text = RedisFixture::at(&server.url()).check(3);
    proxy.delay(|| Duration::from_millis(50));
    assert_eq!(impatient.refund(&text).unwrap(), 3);
}

#[test]
fn a_mark_may_be_on_another_server_than_the_units() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0).unwrap_or_else(|error| panic!("{error}"));
    let shards = [start(), start()];
    let addrs = shards.each_ref().map(|server| server.addr().to_string());
    for url in [cluster.url(), format!("redis+shards://{}", addrs.join(","))] {
        let ours = RedisFixture::at(&url);
        // Each receipt has another id, so the marks are on different servers.
        for _ in 0..8 {
            let text = ours.check(3);
            assert_eq!(ours.refund(&text).unwrap(), 3);
            assert!(matches!(ours.refund(&text), Err(RefundError::AlreadyRefunded)));
        }
        assert_eq!(ours.remaining(), 10);
    }
}
