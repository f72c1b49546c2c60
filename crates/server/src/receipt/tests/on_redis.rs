//! Giving back on a real Redis, whole or failing.

use std::time::Duration;

use redis::Connection;
use tokio::runtime::Runtime;
use tollgate::{Error, Redis, StoreError};
use tollgate_launcher::{Cluster, Flavour, Launch, Proxy, Server};

use super::*;

const LIMIT: &str = "limits: { it: token-bucket capacity=10 refill=10/1h }";

/// Long enough for any machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

pub(super) struct OnRedis {
    pub(super) rules: Rules,
    pub(super) receipts: Receipts,
    pub(super) runtime: Runtime,
}

impl OnRedis {
    pub(super) fn at(url: &str) -> OnRedis {
        OnRedis::within(url, PATIENCE)
    }

    /// Open when the store fails, as limiters are unless said.
    pub(super) fn within(url: &str, deadline: Duration) -> OnRedis {
        let runtime = runtime();
        let builder = Redis::at(url).unwrap().deadline(deadline);
        let ours = OnRedis::new(runtime, builder);
        ours.learn().unwrap();
        ours
    }

    /// Which has yet to learn what to sign with.
    pub(super) fn new(runtime: Runtime, builder: Redis) -> OnRedis {
        let limiter = runtime.block_on(async { builder.build().unwrap() });
        let rules = Rules::new(&limiter, &config(LIMIT)).unwrap();
        let secret = secret("known to all of them");
        let receipts = Receipts::on_servers(&limiter, Some(&secret)).unwrap();
        OnRedis { rules, receipts, runtime }
    }

    pub(super) fn learn(&self) -> Result<(), Error> {
        self.runtime.block_on(self.receipts.learn())
    }

    pub(super) fn check(&self, cost: u64) -> String {
        self.receipt(cost).unwrap()
    }

    pub(super) fn receipt(&self, cost: u64) -> Option<String> {
        let scope = self.rules.limit("it").unwrap();
        let decision = self.runtime.block_on(async { scope.check("a").cost(cost).await }).unwrap();
        self.receipts.of_limit(&scope, b"a", &decision)
    }

    pub(super) fn refund(&self, text: &str) -> Result<u64, Unrefunded> {
        self.runtime.block_on(self.receipts.refund(&self.rules, text))
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
    let ours = OnRedis::at(&server.url());
    let text = ours.check(3);
    assert_eq!(ours.refund(&text).unwrap(), 3);
    let mut admin = admin(&server);
    let keys: Vec<String> = redis::cmd("KEYS").arg("*refunded*").query(&mut admin).unwrap();
    assert_eq!(keys.len(), 1, "{keys:?}");
    let ttl_ms: i64 = redis::cmd("PTTL").arg(&keys[0]).query(&mut admin).unwrap();
    // For what takes 18 minutes to come back, and 10 s: 9 * 2^27 us, and a little.
    assert!((1_100_000..1_230_000).contains(&ttl_ms), "{ttl_ms}");
}

#[test]
fn what_failed_without_effect_can_be_asked_again() {
    let server = start();
    let ours = OnRedis::at(&server.url());
    let text = ours.check(3);
    let mut admin = admin(&server);
    let mut run = |words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query::<redis::Value>(&mut admin).unwrap();
    };
    let key = "tollgate:{a}:it";
    run(&["RENAME", key, "aside"]);
    run(&["SET", key, "of somebody else"]);
    for _ in 0..2 {
        let failed = ours.refund(&text);
        let is_corrupt = |error: &Error| matches!(error, Error::Store(StoreError::Corrupt { .. }));
        assert!(
            matches!(&failed, Err(Unrefunded::Failed(error)) if is_corrupt(error)),
            "{failed:?}"
        );
    }
    run(&["RENAME", "aside", key]);
    assert_eq!(ours.refund(&text).unwrap(), 3);
    assert_eq!(ours.remaining(), 10);
    assert!(matches!(ours.refund(&text), Err(Unrefunded::Before)));
}

#[test]
fn a_mark_that_may_be_set_is_taken_for_set() {
    let server = start();
    let proxy = Proxy::start(server.addr()).unwrap();
    let (ours, direct) = (OnRedis::at(&proxy.url()), OnRedis::at(&server.url()));
    let text = ours.check(3);
    // The reply of the store's life is in time, the one to the mark is not.
    let mut replies = 0;
    proxy.delay(move || {
        replies += 1;
        if replies > 1 { PATIENCE } else { Duration::ZERO }
    });
    let unsure = ours.refund(&text);
    assert!(matches!(unsure, Err(Unrefunded::Unsure(_))), "{unsure:?}");
    assert!(matches!(direct.refund(&text), Err(Unrefunded::Before)));
    assert_eq!(direct.remaining(), 7);
}

#[test]
fn a_store_that_does_not_tell_its_life_takes_no_receipt() {
    let server = start();
    let proxy = Proxy::start(server.addr()).unwrap();
    let (ours, direct) = (OnRedis::at(&proxy.url()), OnRedis::at(&server.url()));
    let text = ours.check(3);
    proxy.cut_after_request(1);
    let failed = ours.refund(&text);
    assert!(matches!(failed, Err(Unrefunded::Failed(_))), "{failed:?}");
    assert_eq!(direct.remaining(), 7);
    assert_eq!(direct.refund(&text).unwrap(), 3);
}

#[test]
fn units_that_may_have_come_back_do_not_come_back_again() {
    let server = start();
    let proxy = Proxy::start(server.addr()).unwrap();
    let (ours, direct) = (OnRedis::at(&proxy.url()), OnRedis::at(&server.url()));
    let text = ours.check(3);
    // The replies of the store's life and to the mark are in time, the one to the refund is not.
    let mut replies = 0;
    proxy.delay(move || {
        replies += 1;
        if replies > 2 { PATIENCE } else { Duration::ZERO }
    });
    let unsure = ours.refund(&text);
    assert!(matches!(unsure, Err(Unrefunded::Unsure(_))), "{unsure:?}");
    assert!(matches!(direct.refund(&text), Err(Unrefunded::Before)));
    assert_eq!(direct.remaining(), 10);
}

#[test]
fn while_the_store_is_away_nothing_is_lost() {
    let server = start();
    let proxy = Proxy::start(server.addr()).unwrap();
    let (ours, direct) = (OnRedis::at(&proxy.url()), OnRedis::at(&server.url()));
    let text = ours.check(3);
    proxy.refuse_connections();
    proxy.cut_connections();
    // It is left alone before long.
    let failed = (0..1_000)
        .map(|_| ours.refund(&text))
        .find(|why| matches!(why, Err(Unrefunded::Failed(_))));
    assert!(failed.is_some());
    assert_eq!(direct.refund(&text).unwrap(), 3);
}

#[test]
fn a_store_that_is_slower_than_checks_wait_for_gives_back() {
    let server = start();
    let proxy = Proxy::start(server.addr()).unwrap();
    let hurried = OnRedis::within(&proxy.url(), Duration::from_millis(1));
    let text = OnRedis::at(&server.url()).check(3);
    proxy.delay(|| Duration::from_millis(50));
    assert_eq!(hurried.refund(&text).unwrap(), 3);
}

#[test]
fn a_mark_may_be_on_another_server_than_the_units() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0).unwrap_or_else(|error| panic!("{error}"));
    let shards = [start(), start()];
    let addrs = shards.each_ref().map(|server| server.addr().to_string());
    for url in [cluster.url(), format!("redis+shards://{}", addrs.join(","))] {
        let ours = OnRedis::at(&url);
        // Each has an id of its own, and so a place.
        for _ in 0..8 {
            let text = ours.check(3);
            assert_eq!(ours.refund(&text).unwrap(), 3);
            assert!(matches!(ours.refund(&text), Err(Unrefunded::Before)));
        }
        assert_eq!(ours.remaining(), 10);
    }
}
