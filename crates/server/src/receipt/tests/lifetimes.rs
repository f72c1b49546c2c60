//! Receipts are void when their store has lost its state.

use std::sync::Barrier;
use std::thread;
use std::time::SystemTime;

use tollgate::Redis;
use tollgate_launcher::Proxy;

use super::on_redis::{PATIENCE, RedisFixture, admin, runtime, start};
use super::*;

const DAY_US: u64 = 86_400_000_000;

/// Returns the time of the machine's clock plus a number of days.
fn days_from_now(days: i64) -> u64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64;
    now.saturating_add_signed(days * DAY_US as i64)
}

fn builder(url: &str) -> Redis {
    Redis::at(url).unwrap().deadline(PATIENCE)
}

#[test]
fn a_receipt_of_the_memory_store_is_void_in_another_process() {
    let owned = [("it".to_owned(), b"a".to_vec(), 1, ChargePlace::Entry { at_us: 1 }, 1)];
    let text = Receipts::in_memory(1 << 20).sign(parts(&owned)).unwrap();
    assert!(Receipts::in_memory(1 << 20).read(&text).is_none());
}

#[test]
fn a_receipt_is_void_once_the_store_has_lost_its_state() {
    let server = start();
    let ours = RedisFixture::at(&server.url());
    let (unused, used) = (ours.check(3), ours.check(3));
    assert_eq!(ours.refund(&used).unwrap(), 3);
    redis::cmd("FLUSHALL").exec(&mut admin(&server)).unwrap();
    // The server has not noticed the loss yet.
    let early = ours.check(5);
    for text in [unused, used, early] {
        assert!(matches!(ours.refund(&text), Err(RefundError::OtherLifetime)));
        assert_eq!(ours.remaining(), 5);
    }
    let text = ours.check(5);
    assert_eq!(ours.refund(&text).unwrap(), 5);
    assert!(matches!(ours.refund(&text), Err(RefundError::AlreadyRefunded)));
}

/// docs/operate/redis.md tells operators to do this after a backup was restored.
#[test]
fn deleting_the_key_of_the_lifetime_voids_all_receipts() {
    let server = start();
    let ours = RedisFixture::at(&server.url());
    let text = ours.check(3);
    let key = "tollgate:{this%20life}:receipts%20of";
    let deleted: u64 = redis::cmd("DEL").arg(key).query(&mut admin(&server)).unwrap();
    assert_eq!(deleted, 1);
    assert!(matches!(ours.refund(&text), Err(RefundError::OtherLifetime)));
    assert_eq!(ours.remaining(), 7);
}

#[test]
fn stores_that_share_a_secret_refuse_each_others_receipts() {
    let servers = [start(), start()];
    let url = servers[0].url();
    let other_prefix = builder(&url).prefix("staging:").unwrap();
    let staging = RedisFixture::new(runtime(), other_prefix);
    staging.refresh_lifetime().unwrap();
    let (ours, other) = (RedisFixture::at(&url), RedisFixture::at(&servers[1].url()));
    for theirs in [&staging, &other] {
        let text = ours.check(3);
        theirs.check(3);
        assert!(matches!(theirs.refund(&text), Err(RefundError::OtherLifetime)));
        assert_eq!(theirs.remaining(), 7);
        assert_eq!(ours.refund(&text).unwrap(), 3);
    }
}

#[test]
fn no_receipt_is_given_before_the_lifetime_is_known() {
    let server = start();
    let proxy = Proxy::start(server.addr()).unwrap();
    let ours = RedisFixture::new(runtime(), builder(&proxy.url()));
    let direct = RedisFixture::at(&server.url());
    let text = direct.check(1);
    proxy.refuse_connections();
    assert!(ours.refresh_lifetime().is_err());
    let failed = ours.refund(&text);
    assert!(matches!(failed, Err(RefundError::Failed(_))), "{failed:?}");
    proxy.accept_connections();
    assert!(direct.refresh_lifetime().is_ok());
    while ours.refresh_lifetime().is_err() {
        thread::yield_now();
    }
    assert_eq!(ours.refund(&text).unwrap(), 1);
    assert!(ours.receipt(1).is_some());

    let late = RedisFixture::new(runtime(), builder(&server.url()));
    assert!(late.receipt(1).is_none());
    late.refresh_lifetime().unwrap();
    assert!(late.receipt(1).is_some());
}

#[test]
fn servers_that_start_together_accept_each_others_receipts() {
    let server = start();
    let url = server.url();
    let together = Barrier::new(8);
    let start = || {
        let ours = RedisFixture::new(runtime(), builder(&url));
        together.wait();
        ours.refresh_lifetime().unwrap();
        ours
    };
    let all: Vec<_> = thread::scope(|scope| {
        let starting: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
        starting.into_iter().map(|starting| starting.join().unwrap()).collect()
    });
    for ours in &all {
        let text = ours.check(1);
        let taken = all.iter().map(|each| each.refund(&text)).collect::<Vec<_>>();
        assert!(matches!(taken[0], Ok(1)), "{taken:?}");
        let before = |each: &Result<u64, _>| matches!(each, Err(RefundError::AlreadyRefunded));
        assert!(taken[1..].iter().all(before), "{taken:?}");
    }
}

#[test]
fn a_lifetime_gets_another_id_before_the_first_expires() {
    let server = start();
    let clock = ManualClock::at_us(days_from_now(-200));
    let builder = builder(&server.url()).clock(&clock);
    let ours = RedisFixture::new(runtime(), builder);
    ours.refresh_lifetime().unwrap();
    let first = ours.receipts.lifetime.current_id().unwrap();
    // Now the first id is older than half a year.
    clock.set_us(days_from_now(0));
    let old = ours.check(1);
    ours.refresh_lifetime().unwrap();
    let second = ours.receipts.lifetime.current_id().unwrap();
    assert!(second > first);
    assert_eq!(ours.refund(&old).unwrap(), 1);
    ours.refresh_lifetime().unwrap();
    assert_eq!(ours.receipts.lifetime.current_id(), Some(second));

    clock.set_us(days_from_now(170));
    let has = |id| ours.runtime.block_on(ours.receipts.lifetime.has(id)).unwrap();
    assert_eq!((has(first), has(second)), (false, true));
    let new = ours.check(1);
    assert_eq!(ours.refund(&new).unwrap(), 1);
}
