//! Receipts end with the state of their store.

use std::sync::Barrier;
use std::thread;
use std::time::SystemTime;

use tollgate::Redis;
use tollgate_launcher::Proxy;

use super::on_redis::{OnRedis, PATIENCE, admin, runtime, start};
use super::*;

const DAY_US: u64 = 86_400_000_000;

/// As far into a year as the machine's own clock, or so many days off.
fn days_from_now(days: i64) -> u64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64;
    now.saturating_add_signed(days * DAY_US as i64)
}

fn builder(url: &str) -> Redis {
    Redis::at(url).unwrap().deadline(PATIENCE)
}

#[test]
fn what_memory_signed_ends_with_its_process_whoever_knows_the_secret() {
    let owned = [("it".to_owned(), b"a".to_vec(), 1, ChargePlace::Entry { at_us: 1 }, 1)];
    let text = Receipts::in_memory(1 << 20).sign(parts(&owned)).unwrap();
    assert!(Receipts::in_memory(1 << 20).read(&text).is_none());
}

#[test]
fn a_receipt_is_void_once_the_store_has_lost_its_state() {
    let server = start();
    let ours = OnRedis::at(&server.url());
    let (unused, used) = (ours.check(3), ours.check(3));
    assert_eq!(ours.refund(&used).unwrap(), 3);
    redis::cmd("FLUSHALL").exec(&mut admin(&server)).unwrap();
    // Nobody knows yet.
    let early = ours.check(5);
    for text in [unused, used, early] {
        assert!(matches!(ours.refund(&text), Err(Unrefunded::AnotherLife)));
        assert_eq!(ours.remaining(), 5);
    }
    let text = ours.check(5);
    assert_eq!(ours.refund(&text).unwrap(), 5);
    assert!(matches!(ours.refund(&text), Err(Unrefunded::Before)));
}

/// Which docs/operate/redis.md says to do after a copy was restored.
#[test]
fn to_delete_one_key_voids_all_receipts() {
    let server = start();
    let ours = OnRedis::at(&server.url());
    let text = ours.check(3);
    let key = "tollgate:{this%20life}:receipts%20of";
    let deleted: u64 = redis::cmd("DEL").arg(key).query(&mut admin(&server)).unwrap();
    assert_eq!(deleted, 1);
    assert!(matches!(ours.refund(&text), Err(Unrefunded::AnotherLife)));
    assert_eq!(ours.remaining(), 7);
}

#[test]
fn stores_that_share_a_secret_do_not_take_each_others_receipts() {
    let servers = [start(), start()];
    let url = servers[0].url();
    let elsewhere = builder(&url).prefix("staging:").unwrap();
    let staging = OnRedis::new(runtime(), elsewhere);
    staging.learn().unwrap();
    let (ours, other) = (OnRedis::at(&url), OnRedis::at(&servers[1].url()));
    for theirs in [&staging, &other] {
        let text = ours.check(3);
        theirs.check(3);
        assert!(matches!(theirs.refund(&text), Err(Unrefunded::AnotherLife)));
        assert_eq!(theirs.remaining(), 7);
        assert_eq!(ours.refund(&text).unwrap(), 3);
    }
}

#[test]
fn before_the_life_of_the_store_is_known_no_receipt_is_given() {
    let server = start();
    let proxy = Proxy::start(server.addr()).unwrap();
    let ours = OnRedis::new(runtime(), builder(&proxy.url()));
    let direct = OnRedis::at(&server.url());
    let text = direct.check(1);
    proxy.refuse_connections();
    assert!(ours.learn().is_err());
    let failed = ours.refund(&text);
    assert!(matches!(failed, Err(Unrefunded::Failed(_))), "{failed:?}");
    proxy.accept_connections();
    assert!(direct.learn().is_ok());
    while ours.learn().is_err() {
        thread::yield_now();
    }
    assert_eq!(ours.refund(&text).unwrap(), 1);
    assert!(ours.receipt(1).is_some());

    let late = OnRedis::new(runtime(), builder(&server.url()));
    assert!(late.receipt(1).is_none());
    late.learn().unwrap();
    assert!(late.receipt(1).is_some());
}

#[test]
fn servers_that_start_together_take_each_others_receipts() {
    let server = start();
    let url = server.url();
    let together = Barrier::new(8);
    let start = || {
        let ours = OnRedis::new(runtime(), builder(&url));
        together.wait();
        ours.learn().unwrap();
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
        let before = |each: &Result<u64, _>| matches!(each, Err(Unrefunded::Before));
        assert!(taken[1..].iter().all(before), "{taken:?}");
    }
}

#[test]
fn a_life_has_a_new_name_long_before_the_old_one_ends() {
    let server = start();
    let clock = ManualClock::at_us(days_from_now(-200));
    let builder = builder(&server.url()).clock(&clock);
    let ours = OnRedis::new(runtime(), builder);
    ours.learn().unwrap();
    let first = ours.receipts.life.name().unwrap();
    // By then the first is older than half a year.
    clock.set_us(days_from_now(0));
    let old = ours.check(1);
    ours.learn().unwrap();
    let second = ours.receipts.life.name().unwrap();
    assert!(second > first);
    assert_eq!(ours.refund(&old).unwrap(), 1);
    ours.learn().unwrap();
    assert_eq!(ours.receipts.life.name(), Some(second));

    clock.set_us(days_from_now(170));
    let has = |name| ours.runtime.block_on(ours.receipts.life.has(name)).unwrap();
    assert_eq!((has(first), has(second)), (false, true));
    let new = ours.check(1);
    assert_eq!(ours.refund(&new).unwrap(), 1);
}
