//! P9: memory has a ceiling in bytes that a client inventing keys cannot lift, and at the ceiling no
//! live state is forgotten.
//!
//! The attacker invents `SOAK_KEYS` keys, or 200,000.

// Many tests only charge and do not read the decision.
#![allow(clippy::unwrap_used, unused_must_use)]

use std::thread;
use std::time::Duration;

use tollgate::{Limit, Limiter, ManualClock, Scope};

const MAX_BYTES: usize = 2 << 20;
const START_US: u64 = 1_000_000_800_000_000;
const HOUR: Duration = Duration::from_secs(3_600);

/// Every algorithm except the log, with a limit of 10. After an hour all units are back.
const LIMITS: [&str; 5] = [
    "fixed-window limit=10 window=1h",
    "sliding-window-counter limit=10 window=30m",
    "token-bucket capacity=10 refill=10/h",
    "leaky-bucket capacity=10 leak=10/h mode=policing",
    "leaky-bucket capacity=10 leak=10/h mode=shaping",
];

/// A log. Its keys take more memory as they spend.
const LOG: &str = "sliding-window-log limit=10 window=1h";

fn attack_keys() -> u64 {
    std::env::var("SOAK_KEYS").map_or(200_000, |keys| keys.parse().unwrap())
}

fn open(max_bytes: usize) -> (ManualClock, Limiter) {
    let clock = ManualClock::at_us(START_US);
    let limiter = Limiter::builder().clock(&clock).max_bytes(max_bytes).build();
    (clock, limiter)
}

fn scope(limiter: &Limiter, name: &str, text: &str) -> Scope {
    limiter.scope(name, text.parse::<Limit>().unwrap()).unwrap()
}

fn assert_within(limiter: &Limiter, max_bytes: usize, text: &str) {
    let usage = limiter.usage();
    assert!(usage.bytes <= max_bytes, "{text}: {} of {max_bytes} bytes", usage.bytes);
}

/// Makes one check of each of `keys`. Returns how many were allowed.
fn attack(limiter: &Limiter, scope: &Scope, keys: impl Iterator<Item = u64>) -> u64 {
    let mut allowed = 0;
    for key in keys {
        let key = key.to_le_bytes();
        allowed += u64::from(scope.check(&key).now().unwrap().is_allowed());
        if u64::from_le_bytes(key).is_multiple_of(5_000) {
            assert_within(limiter, MAX_BYTES, "during the attack");
        }
    }
    assert_within(limiter, MAX_BYTES, "after the attack");
    allowed
}

/// Makes clients known before the attack, with different numbers of units spent. Returns each and what remains.
fn known_clients(scope: &Scope) -> Vec<(String, u64)> {
    let clients: Vec<(String, u64)> =
        (0..200).map(|client| (format!("client {client}"), client % 10)).collect();
    for (client, remaining) in &clients {
        for _ in *remaining..10 {
            assert!(scope.check(client).now().unwrap().is_allowed());
        }
    }
    clients
}

#[test]
fn invented_keys_stay_below_the_ceiling_and_spare_known_clients() {
    LIMITS.into_iter().for_each(assert_attack_is_bounded);
}

#[test]
fn invented_logs_stay_below_the_ceiling_and_spare_known_clients() {
    assert_attack_is_bounded(LOG);
}

fn assert_attack_is_bounded(text: &str) {
    let (_, limiter) = open(MAX_BYTES);
    let (limit, other) = (scope(&limiter, "limit", text), scope(&limiter, "other", text));
    let clients = known_clients(&limit);
    let known = limiter.usage().keys;
    assert_eq!(limiter.usage().overflowed, 0, "{text}");

    let keys = attack_keys();
    let allowed = attack(&limiter, &limit, 0..keys);
    let usage = limiter.usage();
    let own = (usage.keys - known) as u64;
    assert!(own < keys, "{text}: the ceiling was reached");
    assert!(own > 3_000, "{text}: {own} keys in {MAX_BYTES} bytes");
    assert_eq!(usage.overflowed, keys - own, "{text}: all others share a state");
    assert_eq!(allowed, own + 10, "{text}: which admits one limit's worth");

    // New keys of another scope share another overflow state.
    let others = attack(&limiter, &other, 0..1_000);
    assert_eq!(others, 10, "{text}");

    for (client, remaining) in &clients {
        let peeked = limit.peek(client).now().unwrap();
        assert_eq!(peeked.remaining(), *remaining, "{text}: {client} is as before");
        let is_allowed = *remaining > 0;
        assert_eq!(limit.check(client).now().unwrap().is_allowed(), is_allowed, "{text}: {client}");
        let left = remaining - u64::from(is_allowed);
        assert_eq!(limit.peek(client).now().unwrap().remaining(), left, "{text}: {client}");
    }
    assert_within(&limiter, MAX_BYTES, text);
}

#[test]
fn new_keys_get_their_own_state_after_an_attack() {
    LIMITS.into_iter().for_each(assert_recovers_from_an_attack);
}

#[test]
fn new_keys_get_their_own_log_after_an_attack() {
    assert_recovers_from_an_attack(LOG);
}

fn assert_recovers_from_an_attack(text: &str) {
    let (clock, limiter) = open(MAX_BYTES);
    let scope = scope(&limiter, "limit", text);
    attack(&limiter, &scope, 0..50_000);
    clock.advance(HOUR + Duration::from_secs(11));
    let overflowed = limiter.usage().overflowed;
    assert!(overflowed > 0, "{text}: the ceiling was reached");
    for newcomer in 0..800 {
        let key = format!("newcomer {newcomer}");
        for left in [9, 8] {
            assert_eq!(scope.check(&key).now().unwrap().remaining(), left, "{text}: {key}");
        }
    }
    assert_eq!(limiter.usage().overflowed, overflowed, "{text}");
    assert_within(&limiter, MAX_BYTES, text);
}

/// Waves of keys that are each used once. Together they do not fit below the ceiling.
#[test]
fn unused_keys_are_removed() {
    LIMITS.into_iter().for_each(assert_unused_keys_are_removed);
}

#[test]
fn unused_logs_are_removed() {
    assert_unused_keys_are_removed(LOG);
}

fn assert_unused_keys_are_removed(text: &str) {
    let (clock, limiter) = open(MAX_BYTES);
    let scope = scope(&limiter, "limit", text);
    for wave in 0..100 {
        let allowed = attack(&limiter, &scope, wave * 800..(wave + 1) * 800);
        assert_eq!(allowed, 800, "{text}, wave {wave}");
        clock.advance(HOUR + Duration::from_secs(11));
    }
    assert_eq!(limiter.usage().overflowed, 0, "{text}");
    assert!(limiter.usage().keys < 40_000, "{text}: {} keys", limiter.usage().keys);
}

/// Keys with units spent are not removed, at any age.
#[test]
fn live_keys_are_kept_while_other_keys_come_and_go() {
    let (clock, limiter) = open(MAX_BYTES);
    let slow = scope(&limiter, "slow", "token-bucket capacity=10 refill=1/d");
    let fast = scope(&limiter, "fast", "token-bucket capacity=10 refill=10/s");
    for client in 0..500_u64 {
        assert!(slow.check(&client.to_le_bytes()).cost(10).now().unwrap().is_allowed());
    }
    for wave in 0..60 {
        clock.advance(Duration::from_secs(20 * 60));
        attack(&limiter, &fast, wave * 2_000..(wave + 1) * 2_000);
    }
    for client in 0..500_u64 {
        assert!(!slow.check(&client.to_le_bytes()).now().unwrap().is_allowed(), "{client}");
    }
}

#[test]
fn refused_and_peeked_keys_take_no_memory() {
    LIMITS.into_iter().for_each(assert_refused_keys_take_no_memory);
}

#[test]
fn refused_and_peeked_logs_take_no_memory() {
    assert_refused_keys_take_no_memory(LOG);
}

fn assert_refused_keys_take_no_memory(text: &str) {
    let (_, limiter) = open(MAX_BYTES);
    let scope = scope(&limiter, "limit", text);
    scope.check("known").now().unwrap();
    let before = limiter.usage();
    for key in 0..20_000_u64 {
        let key = key.to_le_bytes();
        assert!(!scope.check(&key).cost(11).now().unwrap().is_allowed(), "{text}");
        assert_eq!(scope.peek(&key).now().unwrap().remaining(), 10, "{text}");
        scope.reset_now(&key).unwrap();
        assert_eq!(scope.entries_now(&key).unwrap(), [], "{text}");
        let checks = [scope.check(&key), scope.check("known").cost(11)];
        assert!(!limiter.check_all_now(&checks).unwrap().is_allowed(), "{text}");
    }
    assert_eq!(limiter.usage().keys, before.keys, "{text}");
    assert_eq!(limiter.usage(), before, "{text}");
}

#[test]
fn reset_keys_make_room_for_others() {
    LIMITS.into_iter().for_each(assert_reset_keys_make_room);
}

#[test]
fn reset_logs_make_room_for_others() {
    assert_reset_keys_make_room(LOG);
}

fn assert_reset_keys_make_room(text: &str) {
    let (_, limiter) = open(MAX_BYTES);
    let scope = scope(&limiter, "limit", text);
    for wave in 0..20_u64 {
        let keys = (0..800).map(|key| (wave * 800 + key).to_le_bytes());
        for key in keys.clone() {
            assert_eq!(scope.check(&key).now().unwrap().remaining(), 9, "{text}");
        }
        assert_eq!(limiter.usage().keys, 800, "{text}");
        keys.for_each(|key| scope.reset_now(&key).unwrap());
        assert_eq!(limiter.usage().keys, 0, "{text}");
    }
    assert_eq!(limiter.usage().overflowed, 0, "{text}");
    assert_within(&limiter, MAX_BYTES, text);
}

/// 400 keys with large logs.
#[test]
fn large_logs_stay_below_the_ceiling_and_within_their_limit() {
    let (clock, limiter) = open(MAX_BYTES);
    let scope = scope(&limiter, "log", "sliding-window-log limit=1000 window=1h");
    let keys: Vec<String> = (0..400).map(|key| format!("key {key}")).collect();
    let mut admitted = vec![0_u64; keys.len()];
    for _ in 0..1_100 {
        clock.advance(Duration::from_micros(1));
        for (key, admitted) in keys.iter().zip(&mut admitted) {
            *admitted += u64::from(scope.check(key).now().unwrap().is_allowed());
        }
        assert_within(&limiter, MAX_BYTES, "large logs");
    }
    // 6.4 MB of entries do not fit in 2 MiB, so the logs merge entries. They forget times, never units.
    for (key, admitted) in keys.iter().zip(&admitted) {
        assert_eq!(*admitted, 1_000, "{key}");
    }
    assert_eq!(limiter.usage().overflowed, 0);
}

/// A log of up to three charges fits in its slot. Longer logs take more memory, and give it back.
#[test]
fn log_takes_extra_memory_from_its_fourth_charge() {
    let (clock, limiter) = open(MAX_BYTES);
    let log = scope(&limiter, "log", LOG);
    let keys: Vec<String> = (0..1_000).map(|key| format!("key {key}")).collect();
    let charge = |times: usize| {
        for _ in 0..times {
            clock.advance(Duration::from_micros(1));
            keys.iter().for_each(|key| assert!(log.check(key).now().unwrap().is_allowed()));
        }
        limiter.usage().bytes
    };
    let empty = limiter.usage().bytes;
    let small = charge(1);
    // Includes the lists of chunks that a shard allocates with its first key.
    assert!(small - empty < 150_000, "{} bytes for 1,000 keys", small - empty);
    assert_eq!(charge(2), small);
    // An hour later new charges replace the old ones.
    clock.advance(HOUR);
    assert_eq!(charge(3), small);
    let numbered = charge(1);
    assert!(numbered >= small + 100_000, "{small}, then {numbered}");
    let longer = charge(1);
    assert!(longer >= numbered + 128_000, "{numbered}, then {longer}");
    let mut emptied = Vec::new();
    for _ in 0..2 {
        keys.iter().for_each(|key| log.reset_now(key).unwrap());
        emptied.push(limiter.usage().bytes);
        charge(10);
    }
    // The table of log numbers stays allocated for the next logs.
    assert!(emptied[0] < longer, "{longer}, then {emptied:?}");
    assert_eq!(emptied[1], emptied[0], "{emptied:?}");
}

/// All charges of the log have the largest possible time.
#[test]
fn logs_charged_at_the_largest_time_are_counted() {
    let (_, limiter) = open(MAX_BYTES);
    let log = scope(&limiter, "log", "sliding-window-log limit=2000 window=1h");
    let before = limiter.usage().bytes;
    for _ in 0..1_000 {
        assert!(log.check("a").cost(2).at_us(u64::MAX).now().unwrap().is_allowed());
    }
    assert!(limiter.usage().bytes > before + 16_000);
    log.reset_now("a").unwrap();
    let after = limiter.usage().bytes;
    assert!((before..before + 5_000).contains(&after), "{before}, then {after}");
}

/// P4 at the ceiling, where a charge would merge two entries of the log.
#[test]
fn refused_joint_check_does_not_change_a_log_at_the_ceiling() {
    let (clock, limiter) = open(1 << 20);
    let log = scope(&limiter, "log", LOG);
    let full = scope(&limiter, "full", "fixed-window limit=1 window=1d");
    full.check("f").now().unwrap();
    for _ in 0..8 {
        clock.advance(Duration::from_micros(1));
        assert!(log.check("a").now().unwrap().is_allowed());
    }
    let filler = scope(&limiter, "filler", LOG);
    (0..30_000_u64).for_each(|key| drop(filler.check(&key.to_le_bytes()).now()));
    let entries = log.entries_now("a").unwrap();
    let refused = limiter.check_all_now(&[log.check("a"), full.check("f")]).unwrap();
    assert!(!refused.is_allowed());
    assert_eq!(log.entries_now("a").unwrap(), entries);
}

#[test]
fn ceiling_of_any_size_is_accepted() {
    for max_bytes in [0, 1, 1 << 20, 1 << 40, usize::MAX] {
        let (_, limiter) = open(max_bytes);
        let scope = scope(&limiter, "limit", LIMITS[0]);
        assert!(scope.check("a").now().unwrap().is_allowed(), "{max_bytes}");
        assert_eq!(limiter.usage().overflowed, u64::from(max_bytes < 1 << 20), "{max_bytes}");
    }
}

/// Logs at the ceiling grow, are refunded and merged. After a reset all their memory is given back.
#[test]
fn removed_logs_give_back_their_memory() {
    let (clock, limiter) = open(1 << 20);
    let (log, other) = (scope(&limiter, "log", LOG), scope(&limiter, "other", LOG));
    let keys: Vec<String> = (0..2_000).map(|key| format!("key {key}")).collect();
    let mut emptied = Vec::new();
    for _ in 0..3 {
        for round in 0..12_usize {
            for (nth, key) in keys.iter().enumerate().filter(|(nth, _)| nth % 12 >= round) {
                let checked = log.check(key).now().unwrap();
                if let (Some(receipt), 0) = (checked.into_receipt(), (nth + round) % 5) {
                    log.refund_now(key, receipt).unwrap();
                }
                limiter.check_all_now(&[log.check(key), other.check(key)]).unwrap();
                clock.advance(Duration::from_millis(1));
            }
            assert_within(&limiter, 1 << 20, "while logs grow");
        }
        for key in &keys {
            log.reset_now(key).unwrap();
            other.reset_now(key).unwrap();
        }
        emptied.push(limiter.usage());
    }
    assert!(emptied[0].overflowed > 0 || emptied[0].bytes > 300_000, "{:?}", emptied[0]);
    assert_eq!(emptied[2].keys, 0);
    // Only the overflow states keep their memory.
    assert!(emptied[2].bytes <= emptied[0].bytes + 1_000, "{emptied:?}");
}

/// Logs at the ceiling that are spent, partly spent, or have just filled their allocation.
#[test]
fn known_log_at_the_ceiling_admits_exactly_what_remains() {
    for limit in [1, 3, 4, 5, 8, 9] {
        for spent in 1..=limit {
            let (clock, limiter) = open(1 << 20);
            let text = format!("sliding-window-log limit={limit} window=1h");
            let filler = scope(&limiter, "filler", "sliding-window-log limit=10 window=1h");
            let scope = scope(&limiter, "log", &text);
            let check = || {
                clock.advance(Duration::from_micros(1));
                scope.check("client").now().unwrap()
            };
            let receipts: Vec<_> = (0..spent).map(|_| check().into_receipt().unwrap()).collect();
            assert_eq!(limiter.usage().keys, 1, "{text}: the client has its own state");
            for key in 0..30_000_u64 {
                filler.check(&key.to_le_bytes()).now().unwrap();
            }
            assert!(limiter.usage().overflowed > 0, "{text}: the ceiling was reached");
            let left = limit - spent;
            let context = format!("{text}, {spent} spent");
            assert_eq!(scope.peek("client").now().unwrap().remaining(), left, "{context}");
            assert_eq!(scope.entries_now("client").unwrap().len() as u64, spent, "{context}");
            let admitted = (0..2 * limit).filter(|_| check().is_allowed()).count() as u64;
            assert_eq!(admitted, left, "{context}");
            // A charge that was merged with a later one cannot be refunded exactly.
            let refunds = receipts.into_iter().map(|receipt| scope.refund_now("client", receipt));
            let given_back: u64 = refunds.map(Result::unwrap).sum();
            assert!(given_back <= spent, "{context}, then {given_back} given back");
        }
    }
}

/// Spent logs of every size up to 20, so that some have just filled their allocation.
#[test]
fn spent_log_stays_refused_at_the_ceiling() {
    let (clock, limiter) = open(MAX_BYTES);
    let scopes: Vec<(u64, Scope)> = (1..=20)
        .map(|limit| {
            let text = format!("sliding-window-log limit={limit} window=1h");
            (limit, scope(&limiter, &text, &text))
        })
        .collect();
    for (limit, scope) in &scopes {
        for _ in 0..*limit {
            clock.advance(Duration::from_micros(1));
            assert!(scope.check("victim").now().unwrap().is_allowed());
        }
    }
    let filler = scope(&limiter, "filler", LOG);
    for key in 0..50_000_u64 {
        filler.check(&key.to_le_bytes()).now().unwrap();
    }
    for (limit, scope) in &scopes {
        let peeked = scope.peek("victim").now().unwrap();
        assert_eq!((peeked.is_allowed(), peeked.remaining()), (false, 0), "limit={limit}");
        assert!(!scope.check("victim").now().unwrap().is_allowed(), "limit={limit}");
    }
}

#[test]
fn joint_checks_of_invented_keys_stay_below_the_ceiling() {
    for text in LIMITS {
        let (_, limiter) = open(MAX_BYTES);
        let (limit, other) = (scope(&limiter, "limit", text), scope(&limiter, "other", text));
        let everyone = scope(&limiter, "everyone", "fixed-window limit=1000000 window=1h");
        let clients = known_clients(&limit);
        let mut allowed = 0;
        for key in 0..50_000_u64 {
            let bytes = key.to_le_bytes();
            let checks = [limit.check(&bytes), everyone.check("all"), other.check(&bytes)];
            allowed += u64::from(limiter.check_all_now(&checks).unwrap().is_allowed());
            if key.is_multiple_of(1_000) {
                assert_within(&limiter, MAX_BYTES, text);
            }
        }
        assert!(limiter.usage().overflowed > 0, "{text}: the ceiling was reached");
        let left = everyone.peek("all").now().unwrap().remaining();
        assert_eq!(left, 1_000_000 - allowed, "{text}: all or none");
        for (client, remaining) in &clients {
            let peeked = limit.peek(client).now().unwrap();
            assert_eq!(peeked.remaining(), *remaining, "{text}: {client} is as before");
        }
    }
}

#[test]
fn attack_by_many_threads_admits_no_more_than_by_one() {
    for text in LIMITS {
        let (_, limiter) = open(MAX_BYTES);
        let limit = scope(&limiter, "limit", text);
        let allowed: u64 = thread::scope(|threads| {
            let (limiter, limit) = (&limiter, &limit);
            let attacker =
                |from: u64| move || attack(limiter, limit, from * 15_000..(from + 1) * 15_000);
            let running: Vec<_> = (0..4).map(|from| threads.spawn(attacker(from))).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        let usage = limiter.usage();
        assert!(usage.overflowed > 0, "{text}: the ceiling was reached");
        assert_eq!(allowed, usage.keys as u64 + 10, "{text}");
        assert_eq!(usage.overflowed, 60_000 - usage.keys as u64, "{text}");
    }
}
