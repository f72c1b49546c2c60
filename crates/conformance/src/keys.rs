//! Each key of each scope has its own state.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use tollgate_core::{Cost, Entry, Limit};
use tollgate_limiter::{ClientAddress, Error, Ipv6Prefix};

use crate::store::{LIMITS, Make, S, START_US, named, open, scope};

/// Keys that a store could confuse: lengths around every boundary, prefixes of each other, NULs at the ends,
/// separators of key parts, and bytes that are not UTF-8.
pub fn awkward() -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    for length in [0, 1, 2, 7, 8, 14, 15, 16, 17, 31, 32, 33, 100_000] {
        for byte in [0, b'a', 0xff, 15] {
            keys.push(vec![byte; length]);
            let mut other_end = vec![byte; length];
            if let Some(last) = other_end.last_mut() {
                *last ^= 1;
                keys.push(other_end);
            }
        }
    }
    for text in
        ["{a}", "{a}b", "a{b}", "{}", "}{", "a:b", "a:", ":a", "a\0b", "a\0", "\0a", "a\nb", "%00"]
    {
        keys.push(text.into());
    }
    keys.extend([b"\xc3".to_vec(), b"\xc3\x28".to_vec(), b"\xed\xa0\x80".to_vec(), "é".into()]);
    let mut seen = HashSet::new();
    keys.retain(|key| seen.insert(key.clone()));
    keys
}

pub async fn unknown_key_has_the_whole_limit(make: Make) {
    let (_, limiter) = open(make);
    for text in LIMITS {
        let scope = scope(&limiter, text);
        let fresh = scope.peek("unknown").await.unwrap();
        assert!(fresh.is_allowed(), "{text}");
        assert_eq!((fresh.limit(), fresh.remaining()), (10, 10), "{text}");
        assert_eq!(
            (fresh.reset_after(), fresh.delay()),
            (Duration::ZERO, Duration::ZERO),
            "{text}"
        );
        assert_eq!(scope.entries("unknown").await.unwrap(), [], "{text}");
        assert!(scope.check("unknown").cost(10).await.unwrap().is_allowed(), "{text}");
    }
}

pub async fn similar_keys_have_separate_states(make: Make) {
    let (_, limiter) = open(make);
    let limit: Limit = "fixed-window limit=1000000 window=1h".parse().unwrap();
    let scope = limiter.scope("many", limit).unwrap();
    let keys = awkward();
    for (index, key) in keys.iter().enumerate() {
        let decision = scope.check(key).cost(index as u64 + 1).await.unwrap();
        assert_eq!(decision.remaining(), 999_999 - index as u64, "a new key is fresh");
    }
    for (index, key) in keys.iter().enumerate() {
        let decision = scope.peek(key).await.unwrap();
        assert_eq!(decision.remaining(), 999_999 - index as u64, "other keys did not charge it");
    }
}

pub async fn keys_that_differ_in_one_byte_have_separate_states(make: Make) {
    let (_, limiter) = open(make);
    let scope = scope(&limiter, "fixed-window limit=1 window=1h");
    for length in 0..=40 {
        let alike = vec![0; length];
        assert!(scope.check(&alike).await.unwrap().is_allowed(), "{length} bytes");
        for place in 0..length {
            let mut key = alike.clone();
            key[place] = 1;
            assert!(scope.check(&key).await.unwrap().is_allowed(), "byte {place} of {length}");
            assert!(!scope.check(&key).await.unwrap().is_allowed(), "byte {place} of {length}");
        }
    }
}

pub async fn scopes_with_equal_limits_share_no_state(make: Make) {
    let (_, limiter) = open(make);
    for text in LIMITS {
        let names = ["a", "b", "a:b", "", "a\0"].map(|name| format!("{name} {text}"));
        let scopes = names.each_ref().map(|name| named(&limiter, name, text));
        for (index, scope) in scopes.iter().enumerate() {
            let cost = index as u64 + 1;
            assert_eq!(scope.check("k").cost(cost).await.unwrap().remaining(), 10 - cost, "{text}");
        }
        scopes[0].reset("k").await.unwrap();
        let together =
            limiter.check_all(&[scopes[0].check("k"), scopes[1].check("k")]).await.unwrap();
        let remaining: Vec<u64> = together.each().iter().map(|each| each.remaining()).collect();
        assert_eq!(remaining, [9, 7], "{text}");
        assert_eq!(scopes[2].peek("k").await.unwrap().remaining(), 7, "{text}");
    }
    // A key cannot be confused with a part of a scope's name and another key.
    let (one, two) = (named(&limiter, "a", LIMITS[0]), named(&limiter, "a:k", LIMITS[0]));
    one.check("k:x").cost(10).await.unwrap();
    assert_eq!(two.peek("x").await.unwrap().remaining(), 10);
}

pub async fn scopes_of_one_name_share_state(make: Make) {
    let (_, limiter) = open(make);
    let (first, second) = (scope(&limiter, LIMITS[0]), scope(&limiter, LIMITS[0]));
    first.check("a").cost(4).await.unwrap();
    assert_eq!(second.check("a").await.unwrap().remaining(), 5);
    assert_eq!((second.name(), second.limit()), (LIMITS[0], &LIMITS[0].parse().unwrap()));
}

pub async fn clones_share_state(make: Make) {
    let (_, limiter) = open(make);
    let clone = limiter.clone();
    let (first, second) = (scope(&limiter, LIMITS[3]), scope(&clone, LIMITS[3]));
    first.check("a").cost(4).await.unwrap();
    assert_eq!(second.clone().check("a").await.unwrap().remaining(), 5);
    assert!(limiter.check_all(&[first.check("a"), second.check("b")]).await.unwrap().is_allowed());
}

pub async fn reset_forgets_its_key_and_no_other(make: Make) {
    let (_, limiter) = open(make);
    for text in LIMITS {
        let scope = scope(&limiter, text);
        for key in ["a", "b"] {
            assert!(scope.check(key).cost(10).await.unwrap().is_allowed(), "{text}");
        }
        scope.reset("a").await.unwrap();
        let fresh = scope.peek("a").await.unwrap();
        assert_eq!((fresh.remaining(), fresh.reset_after()), (10, Duration::ZERO), "{text}");
        assert_eq!(scope.entries("a").await.unwrap(), [], "{text}");
        assert!(!scope.check("b").await.unwrap().is_allowed(), "{text}");
        assert_eq!(scope.check("a").await.unwrap().remaining(), 9, "{text}");
    }
}

pub async fn reset_of_an_unknown_key_does_nothing(make: Make) {
    let (_, limiter) = open(make);
    for text in LIMITS {
        let scope = scope(&limiter, text);
        scope.reset("unknown").await.unwrap();
        scope.check("a").cost(3).await.unwrap();
        scope.reset("b").await.unwrap();
        assert_eq!(scope.peek("a").await.unwrap().remaining(), 7, "{text}");
    }
}

pub async fn log_lists_the_charges_that_count_oldest_first(make: Make) {
    let (clock, limiter) = open(make);
    let scope = scope(&limiter, LIMITS[1]);
    let entry =
        |after_us, cost| Entry { at_us: START_US + after_us, cost: Cost::new(cost).unwrap() };
    for (after_us, cost) in [(0, 3), (0, 3), (10 * S, 1), (20 * S, 9), (20 * S, 2)] {
        clock.set_us(START_US + after_us);
        scope.check("a").cost(cost).await.unwrap();
    }
    scope.check("b").await.unwrap();
    let all = [entry(0, 3), entry(0, 3), entry(10 * S, 1), entry(20 * S, 2)];
    assert_eq!(scope.entries("a").await.unwrap(), all);
    clock.set_us(START_US + 60 * S - 1);
    assert_eq!(scope.entries("a").await.unwrap(), all);
    clock.set_us(START_US + 60 * S);
    assert_eq!(scope.entries("a").await.unwrap(), all[2..]);
    clock.set_us(START_US + 80 * S);
    assert_eq!(scope.entries("a").await.unwrap(), []);
}

pub async fn only_logs_list_charges(make: Make) {
    let (_, limiter) = open(make);
    for text in LIMITS {
        let scope = scope(&limiter, text);
        scope.check("a").await.unwrap();
        let listed = usize::from(text.starts_with("sliding-window-log"));
        assert_eq!(scope.entries("a").await.unwrap().len(), listed, "{text}");
    }
}

pub async fn key_above_one_mebibyte_is_an_error_in_every_operation(make: Make) {
    let (_, limiter) = open(make);
    let scope = scope(&limiter, LIMITS[0]);
    let longest = vec![b'k'; 1 << 20];
    let charged = scope.check(&longest).await.unwrap();
    let receipt = charged.into_receipt().unwrap();
    assert_eq!(scope.refund(&longest, receipt).await, Ok(1));

    // 100 MiB of zeroed pages, which no operation reads.
    let long = vec![0; 100 << 20];
    let too_long = || Error::KeyTooLong { bytes: 100 << 20, most: 1 << 20 };
    assert_eq!(scope.check(&long).await.unwrap_err(), too_long());
    assert_eq!(scope.check(&long).cost(2).await.unwrap_err(), too_long());
    assert_eq!(scope.peek(&long).await.unwrap_err(), too_long());
    let both = [scope.check("a"), scope.check(&long)];
    assert_eq!(limiter.check_all(&both).await.unwrap_err(), too_long());
    assert_eq!(scope.acquire(&long).await.unwrap_err(), too_long());
    assert_eq!(
        scope.acquire(&long).max_wait(Duration::from_secs(1)).await.unwrap_err(),
        too_long()
    );
    let receipt = scope.check("a").await.unwrap().into_receipt().unwrap();
    assert_eq!(scope.refund(&long, receipt).await, Err(too_long()));
    assert_eq!(scope.reset(&long).await, Err(too_long()));
    assert_eq!(scope.entries(&long).await, Err(too_long()));
    assert_eq!(scope.state(&long).await.unwrap_err(), too_long());
    let message = "the key has 104857600 bytes; use at most 1048576, for example a hash of it";
    assert_eq!(too_long().to_string(), message);
}

pub async fn name_above_four_kibibytes_is_an_error(make: Make) {
    let (_, limiter) = open(make);
    let limit: Limit = LIMITS[0].parse().unwrap();
    assert!(
        limiter.scope(&"n".repeat(4_096), limit).unwrap().check("a").await.unwrap().is_allowed()
    );
    let error = limiter.scope(&"n".repeat(4_097), limit).unwrap_err();
    assert_eq!(error, Error::NameTooLong { bytes: 4_097, most: 4_096 });
}

/// In every operation. IPv4 addresses are whole and unmapped; IPv6 addresses count by their first 56 bits.
pub async fn ip_address_is_the_key_of_its_client(make: Make) {
    let (_, limiter) = open(make);
    let scope = scope(&limiter, LIMITS[1]);
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    for (first, same, other, key) in [
        ("203.0.113.9", "::ffff:203.0.113.9", "203.0.113.10", "ip=203.0.113.9"),
        (
            "2001:db8:12:34ff::1",
            "2001:db8:12:3400::7",
            "2001:db8:12:35ff::1",
            "ip=2001:db8:12:3400::/56",
        ),
    ] {
        let [first, same, other] = [first, same, other].map(ip);
        let receipt = scope.check(first).cost(4).await.unwrap().into_receipt().unwrap();
        assert_eq!(scope.check(same).await.unwrap().remaining(), 5);
        assert_eq!(scope.peek(key).await.unwrap().remaining(), 5);
        assert_eq!(scope.peek(other).await.unwrap().remaining(), 10);
        assert_eq!(scope.entries(same).await.unwrap().len(), 2);
        assert_eq!(scope.refund(same, receipt).await, Ok(4));
        scope.reset(first).await.unwrap();
        assert_eq!(scope.peek(key).await.unwrap().remaining(), 10);
    }
    let whole = ClientAddress::of(ip("2001:db8::1"), Ipv6Prefix::new(128).unwrap());
    assert_eq!(scope.check(&whole).await.unwrap().remaining(), 9);
    assert_eq!(scope.peek("ip=2001:db8::1").await.unwrap().remaining(), 9);
}

pub async fn limit_may_be_text_and_invalid_text_is_an_error(make: Make) {
    let (_, limiter) = open(make);
    let text = LIMITS[3].to_owned();
    let limit: Limit = text.parse().unwrap();
    let same = [
        limiter.scope("api", &*text).unwrap(),
        limiter.scope("api", &text).unwrap(),
        limiter.scope("api", text.clone()).unwrap(),
        limiter.scope("api", limit).unwrap(),
    ];
    for (spent, scope) in same.iter().enumerate() {
        assert_eq!(scope.check("a").await.unwrap().remaining(), 9 - spent as u64);
    }
    let error = limiter.scope("api", "token-bucket capacity=60").unwrap_err();
    assert!(matches!(error, Error::Limit(_)), "{error:?}");
    assert_eq!(
        error.to_string(),
        "token-bucket capacity=60".parse::<Limit>().unwrap_err().to_string()
    );
}
