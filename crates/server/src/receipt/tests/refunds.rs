//! Refunds in memory, at different times.

use std::time::Duration;

use super::*;

impl Fixture {
    /// Refunds a receipt. Returns the units that were given back.
    fn refund(&self, text: &str) -> Result<u64, RefundError> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(self.receipts.refund(&self.rules, text)).map(|refunded| refunded.units)
    }
}

const TWO_RULES: &str = "
limits:
  few: fixed-window limit=5 window=60s
  many: token-bucket capacity=100 refill=1/s
rules:
  - { name: per-client, domain: api, key: [ip], limit: few }
  - { name: all, domain: api, key: [], limit: many, cost: 4 }
  - { name: watched, domain: api, key: [ip], limit: few, shadow: true }
";

#[test]
fn a_refund_gives_back_the_charge_once() {
    for limit in LIMITS {
        let fixture = Fixture::with_limit(limit);
        fixture.check("a", 2);
        let text = fixture.check("a", 3).unwrap();
        assert_eq!(fixture.remaining("it", "a"), 5, "{limit}");
        assert_eq!(fixture.refund(&text).unwrap(), 3, "{limit}");
        assert_eq!(fixture.remaining("it", "a"), 8, "{limit}");
        assert!(matches!(fixture.refund(&text), Err(RefundError::AlreadyRefunded)), "{limit}");
        assert_eq!(fixture.remaining("it", "a"), 8, "{limit}");
    }
}

#[test]
fn units_that_no_longer_count_are_not_given_back() {
    for limit in LIMITS {
        let fixture = Fixture::with_limit(limit);
        let text = fixture.check("a", 3).unwrap();
        fixture.clock.advance(Duration::from_secs(120));
        fixture.check("a", 4).unwrap();
        assert_eq!(fixture.refund(&text).unwrap(), 0, "{limit}");
        assert_eq!(fixture.remaining("it", "a"), 6, "{limit}");
        assert!(matches!(fixture.refund(&text), Err(RefundError::AlreadyRefunded)), "{limit}");
    }
}

proptest! {
    /// Another charge of the same cost at the same microsecond must not be refunded by mistake.
    #[test]
    fn a_second_refund_gives_nothing_back(
        limit in prop::sample::select(LIMITS.to_vec()),
        first_us in 0..70_000_000_u64,
        tries_us in prop::collection::vec(0..200_000_000_u64, 1..5),
    ) {
        let fixture = Fixture::with_limit(limit);
        let (other, text) = (fixture.check("a", 3), fixture.check("a", 3).unwrap());
        prop_assert!(other.is_some());
        fixture.clock.advance(Duration::from_micros(first_us));
        let before = fixture.remaining("it", "a");
        let back = fixture.refund(&text).unwrap();
        prop_assert!(back <= 3 && fixture.remaining("it", "a") == before + back);
        for try_us in tries_us {
            fixture.clock.advance(Duration::from_micros(try_us));
            let before = fixture.remaining("it", "a");
            prop_assert!(matches!(fixture.refund(&text), Ok(0) | Err(RefundError::AlreadyRefunded)));
            prop_assert_eq!(fixture.remaining("it", "a"), before);
        }
    }
}

#[test]
fn a_longer_window_does_not_refund_a_receipt_twice() {
    let fixture = Fixture::with_limit("sliding-window-log limit=10 window=60s");
    fixture.check("a", 3).unwrap();
    let (text, late) = (fixture.check("a", 3).unwrap(), fixture.check("a", 1).unwrap());
    let longer = "limits: { it: sliding-window-log limit=10 window=1h }";
    fixture.rules.replace(&config(longer)).unwrap();
    fixture.check("a", 1).unwrap();
    assert_eq!(fixture.refund(&text).unwrap(), 3);
    // The mark has expired, and the other charge of the same microsecond still counts.
    fixture.clock.advance(Duration::from_secs(300));
    assert_eq!(fixture.remaining("it", "a"), 5);
    assert_eq!(fixture.refund(&text).unwrap(), 0);
    assert_eq!(
        fixture.refund(&late).unwrap(),
        0,
        "valid only for the window that it was charged in"
    );
    assert_eq!(fixture.remaining("it", "a"), 5);
}

#[test]
fn a_receipt_is_valid_to_the_last_microsecond() {
    let fixture = Fixture::with_limit("sliding-window-log limit=10 window=60s");
    let [early, late] = [0; 2].map(|_| fixture.check("a", 3).unwrap());
    fixture.clock.advance(Duration::from_micros(59_999_999));
    assert_eq!(fixture.refund(&early).unwrap(), 3);
    fixture.clock.advance(Duration::from_micros(1));
    assert_eq!(fixture.refund(&late).unwrap(), 0);
}

#[test]
fn the_charges_of_all_rules_are_refunded() {
    let fixture = Fixture::new(TWO_RULES);
    let check = || fixture.check_rules(&[("ip", "a")]).unwrap();
    let remaining = || {
        let of = |(rule, key)| fixture.remaining(rule, key);
        [("api/per-client", "ip=a"), ("api/all", ""), ("api/watched", "ip=a")].map(of)
    };
    check();
    assert_eq!(remaining(), [4, 96, 4]);
    let text = check();
    assert_eq!(fixture.refund(&text).unwrap(), 6);
    assert_eq!(remaining(), [4, 96, 4]);
    assert!(matches!(fixture.refund(&text), Err(RefundError::AlreadyRefunded)));
}

#[test]
fn a_receipt_of_removed_limits_stays_valid() {
    let fixture = Fixture::new(TWO_RULES);
    let [one, other] = [0; 2].map(|_| fixture.check_rules(&[("ip", "a")]).unwrap());
    let without = |rules: &str| {
        config(&format!("limits: {{ free: fixed-window limit=5 window=60s }}\n{rules}"))
    };
    fixture.rules.replace(&without("retired_domains: [api]\n")).unwrap();
    assert!(matches!(fixture.refund(&one), Err(RefundError::NoLimit)));
    let allows = "rules: [{ name: all, domain: api, key: [], limit: allow }]\n";
    fixture.rules.replace(&without(allows)).unwrap();
    assert!(matches!(fixture.refund(&one), Err(RefundError::NoLimit)));

    // One of the three rules is back, with another limit.
    let another = "rules: [{ name: per-client, domain: api, key: [ip], limit: free }]\n";
    fixture.rules.replace(&without(another)).unwrap();
    assert_eq!(fixture.refund(&one).unwrap(), 1);
    fixture.rules.replace(&config(TWO_RULES)).unwrap();
    assert!(matches!(fixture.refund(&one), Err(RefundError::AlreadyRefunded)));
    assert_eq!(fixture.refund(&other).unwrap(), 6);
}

#[test]
fn a_changed_limit_gives_back_at_most_the_charge() {
    for old in LIMITS {
        for new in LIMITS.map(|limit| limit.replace("=10 ", "=7 ")) {
            let fixture = Fixture::with_limit(old);
            fixture.check("a", 2);
            let text = fixture.check("a", 3).unwrap();
            fixture.rules.replace(&config(&format!("limits: {{ it: {new} }}"))).unwrap();
            let before = fixture.remaining("it", "a");
            let back = fixture.refund(&text).unwrap();
            assert!(back <= 3, "{old}, {new}");
            let remaining = fixture.remaining("it", "a");
            assert!(before <= remaining && remaining <= 5, "{old}, {new}: {before}, {remaining}");
            assert!(
                matches!(fixture.refund(&text), Err(RefundError::AlreadyRefunded)),
                "{old}, {new}"
            );
        }
    }
}

#[test]
fn nothing_is_refunded_without_memory_for_a_mark() {
    let text = "limits: { it: fixed-window limit=10 window=60s }";
    let fixture = Fixture::within(text, 0);
    let text = fixture.check("a", 3).unwrap();
    for _ in 0..2 {
        assert!(matches!(fixture.refund(&text), Err(RefundError::NoMemory)));
        assert_eq!(fixture.remaining("it", "a"), 7);
    }
}

#[test]
fn nothing_is_refunded_after_a_large_step_back_of_the_clock() {
    for limit in LIMITS {
        let fixture = Fixture::with_limit(limit);
        let text = fixture.check("a", 3).unwrap();
        fixture.clock.set_us(NOON_US - 3_600_000_000);
        assert_eq!(fixture.refund(&text).unwrap(), 0, "{limit}");
    }
}

#[test]
fn a_small_step_back_of_the_clock_does_not_prevent_a_refund() {
    // The charge counts for 33 s. A mark of the shortest length above that, 33.6 s, would expire too early after the
    // step back of 9 s. With the 10 s that are added, the mark stays for 46 s.
    let fixture = Fixture::with_limit("token-bucket capacity=33 refill=1/s");
    let text = fixture.check("a", 33).unwrap();
    fixture.clock.set_us(NOON_US - 9_000_000);
    assert_eq!(fixture.refund(&text).unwrap(), 33);
}

#[test]
fn a_mark_stays_as_long_as_the_slowest_limit_counts() {
    for limit in
        ["token-bucket capacity=1 refill=1/36524d", "sliding-window-counter limit=1 window=366d"]
    {
        let fixture = Fixture::with_limit(limit);
        let text = fixture.check("a", 1).unwrap();
        assert_eq!(fixture.refund(&text).unwrap(), 1, "{limit}");
        fixture.clock.advance(Duration::from_secs(366 * 86_400));
        assert!(matches!(fixture.refund(&text), Err(RefundError::AlreadyRefunded)), "{limit}");
    }
}

#[test]
fn marks_use_few_limits() {
    let limiter = Limiter::memory();
    let rules =
        Rules::new(&limiter, &config("limits: { it: fixed-window limit=9 window=1s }")).unwrap();
    let receipts = Receipts::default();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for window_s in 1..2_000_u64 {
        let text = format!("limits: {{ it: fixed-window limit=9 window={window_s}s }}");
        rules.replace(&config(&text)).unwrap();
        let scope = rules.limit("it").unwrap();
        let decision = scope.check("a").now().unwrap();
        let text = receipts.of_limit(&scope, b"a", &decision).unwrap();
        runtime.block_on(receipts.refund(&rules, &text)).unwrap();
    }
    let count = receipts.marks.limit_count();
    assert!((1..64).contains(&count), "{count}");
}

#[test]
fn refunds_take_no_memory_from_keys() {
    let limiter = Limiter::builder().max_bytes(256 << 10).build();
    let rules = Rules::new(&limiter, &config("limits: { it: fixed-window limit=10 window=366d }"));
    let (rules, receipts) = (rules.unwrap(), Receipts::in_memory(64 << 10));
    let scope = rules.limit("it").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    // The key gets a state of its own before memory is full.
    let _ = scope.check("a").cost(2).now().unwrap();
    let cycle = |receipts: &Receipts| {
        let decision = scope.check("a").now().unwrap();
        let text = receipts.of_limit(&scope, b"a", &decision).unwrap();
        runtime.block_on(receipts.refund(&rules, &text))
    };
    let mut marks = 0;
    let full = loop {
        match cycle(&receipts) {
            Ok(refunded) if refunded.units == 1 => marks += 1,
            other => break other,
        }
    };
    assert!(matches!(full, Err(RefundError::NoMemory)), "{full:?}");
    assert!((400..1_400).contains(&marks), "{marks}");
    // The memory for keys still has its full size: 2,000 keys fit, and 20,000 do not.
    let whole = |key: u32| scope.check(&key.to_le_bytes()).cost(10).now().unwrap().is_allowed();
    assert!((0..2_000).all(whole));
    assert!(!(2_000..20_000).all(whole));
    assert_eq!(cycle(&Receipts::in_memory(64 << 10)).unwrap().units, 1);
}

#[test]
fn receipts_of_windows_are_valid_for_one_window_and_of_counters_for_two() {
    for (limit, ends_s) in [(LIMITS[0], 60), (LIMITS[2], 120)] {
        let fixture = Fixture::with_limit(limit);
        let [early, late] = [0; 2].map(|_| fixture.check("a", 5).unwrap());
        fixture.clock.set_us(NOON_US + ends_s * 500_000);
        assert_eq!(fixture.refund(&early).unwrap(), 5, "{limit}");
        fixture.clock.set_us(NOON_US + ends_s * 1_000_000);
        assert_eq!(fixture.refund(&late).unwrap(), 0, "{limit}");
    }
}

/// A reset forgets what was spent. Receipts from before stay valid once, and refund what was spent after the reset.
#[test]
fn receipts_from_before_a_reset_give_back_at_most_one_burst() {
    for limit in LIMITS {
        let fixture = Fixture::with_limit(limit);
        // Some of the receipts are refunded already.
        let mut old: Vec<_> = (0..5).map(|_| fixture.check("a", 1).unwrap()).collect();
        old.iter().rev().for_each(|text| assert!(fixture.refund(text).is_ok()));
        old.extend((0..10).map(|_| fixture.check("a", 1).unwrap()));
        fixture.rules.limit("it").unwrap().reset_now("a").unwrap();
        fixture.clock.advance(Duration::from_micros(1));
        let mut admitted = 0;
        while fixture.check("a", 1).is_some() {
            admitted += 1;
        }
        assert_eq!(admitted, 10, "{limit}");
        for text in old.iter().chain(&old) {
            let _ = fixture.refund(text);
            admitted += u64::from(fixture.check("a", 1).is_some());
        }
        assert!(admitted <= 20, "{limit}: {admitted}");
        if limit.starts_with("sliding-window-log") {
            assert_eq!(admitted, 10, "a reset log has no entry to refund");
        }
    }
}
