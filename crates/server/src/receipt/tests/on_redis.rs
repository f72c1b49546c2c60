//! Giving back on a real Redis, whole or failing.

use std::time::Duration;

use redis::Connection;
use tokio::runtime::Runtime;
use tollgate::{Error, StoreError};
use tollgate_launcher::{Cluster, Flavour, Launch, Proxy, Server};

use super::*;

const LIMIT: &str = "limits: { it: token-bucket capacity=10 refill=10/1h }";

/// Long enough for any machine.
const PATIENCE: Duration = Duration::from_secs(30);

struct OnRedis {
    rules: Rules,
    receipts: Receipts,
    runtime: Runtime,
}

impl OnRedis {
    fn at(url: &str) -> OnRedis {
        OnRedis::within(url, PATIENCE)
    }

    /// Open when the store fails, as limiters are unless said.
    fn within(url: &str, deadline: Duration) -> OnRedis {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let rules = runtime.block_on(async {
            let builder = Limiter::builder().redis(url).unwrap();
            let limiter = builder.deadline(deadline).build().unwrap();
            Rules::new(&limiter, &config(LIMIT)).unwrap()
        });
        OnRedis { rules, receipts: Receipts::signed_with(&secret("known to all of them")), runtime }
    }

    fn check(&self, cost: u64) -> String {
        let scope = self.rules.limit("it").unwrap();
        let decision = self.runtime.block_on(async { scope.check("a").cost(cost).await }).unwrap();
        self.receipts.of_limit(&scope, b"a", &decision).unwrap()
    }

    fn refund(&self, text: &str) -> Result<u64, Unrefunded> {
        self.runtime.block_on(self.receipts.refund(&self.rules, text))
    }

    fn remaining(&self) -> u64 {
        let scope = self.rules.limit("it").unwrap();
        self.runtime.block_on(async { scope.peek("a").await }).unwrap().remaining()
    }
}

fn start() -> Server {
    Launch::new(Flavour::Redis).start().unwrap_or_else(|error| panic!("{error}"))
}

fn admin(server: &Server) -> Connection {
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
    // For what takes 18 minutes to come back: the next power of two is 2^31 us.
    assert!((1_000_000..2_300_000).contains(&ttl_ms), "{ttl_ms}");
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
    proxy.cut_after_request(1);
    let unsure = ours.refund(&text);
    assert!(matches!(unsure, Err(Unrefunded::Unsure(_))), "{unsure:?}");
    assert!(matches!(direct.refund(&text), Err(Unrefunded::Before)));
    assert_eq!(direct.remaining(), 7);
}

#[test]
fn units_that_may_have_come_back_do_not_come_back_again() {
    let server = start();
    let proxy = Proxy::start(server.addr()).unwrap();
    let (ours, direct) = (OnRedis::at(&proxy.url()), OnRedis::at(&server.url()));
    let text = ours.check(3);
    // The reply to the mark is in time, the one to the refund is not.
    let mut replies = 0;
    proxy.delay(move || {
        replies += 1;
        if replies > 1 { PATIENCE } else { Duration::ZERO }
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
