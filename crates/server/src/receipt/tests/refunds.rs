//! Giving back, in memory, at any time.

use std::time::Duration;

use super::*;

impl Fixture {
    /// What comes back, or why nothing does.
    fn refund(&self, text: &str) -> Result<u64, Unrefunded> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(self.receipts.refund(&self.rules, text))
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
fn a_refund_gives_back_exactly_and_once() {
    for limit in LIMITS {
        let fixture = Fixture::of_limit(limit);
        fixture.check("a", 2);
        let text = fixture.check("a", 3).unwrap();
        assert_eq!(fixture.remaining("it", "a"), 5, "{limit}");
        assert_eq!(fixture.refund(&text).unwrap(), 3, "{limit}");
        assert_eq!(fixture.remaining("it", "a"), 8, "{limit}");
        assert!(matches!(fixture.refund(&text), Err(Unrefunded::Before)), "{limit}");
        assert_eq!(fixture.remaining("it", "a"), 8, "{limit}");
    }
}

#[test]
fn units_that_have_left_do_not_come_back() {
    for limit in LIMITS {
        let fixture = Fixture::of_limit(limit);
        let text = fixture.check("a", 3).unwrap();
        fixture.clock.advance(Duration::from_secs(120));
        fixture.check("a", 4).unwrap();
        assert_eq!(fixture.refund(&text).unwrap(), 0, "{limit}");
        assert_eq!(fixture.remaining("it", "a"), 6, "{limit}");
        assert!(matches!(fixture.refund(&text), Err(Unrefunded::Before)), "{limit}");
    }
}

proptest! {
    /// Beside a charge that is like it in everything, at the same microsecond.
    #[test]
    fn whenever_it_is_tried_again_nothing_comes_back(
        limit in prop::sample::select(LIMITS.to_vec()),
        first_us in 0..70_000_000_u64,
        tries_us in prop::collection::vec(0..200_000_000_u64, 1..5),
    ) {
        let fixture = Fixture::of_limit(limit);
        let (other, text) = (fixture.check("a", 3), fixture.check("a", 3).unwrap());
        prop_assert!(other.is_some());
        fixture.clock.advance(Duration::from_micros(first_us));
        let before = fixture.remaining("it", "a");
        let back = fixture.refund(&text).unwrap();
        prop_assert!(back <= 3 && fixture.remaining("it", "a") == before + back);
        for try_us in tries_us {
            fixture.clock.advance(Duration::from_micros(try_us));
            let before = fixture.remaining("it", "a");
            prop_assert!(matches!(fixture.refund(&text), Ok(0) | Err(Unrefunded::Before)));
            prop_assert_eq!(fixture.remaining("it", "a"), before);
        }
    }
}

#[test]
fn a_log_that_looks_further_back_since_gives_nothing_back_twice() {
    let fixture = Fixture::of_limit("sliding-window-log limit=10 window=60s");
    fixture.check("a", 3).unwrap();
    let (text, late) = (fixture.check("a", 3).unwrap(), fixture.check("a", 1).unwrap());
    let longer = "limits: { it: sliding-window-log limit=10 window=1h }";
    fixture.rules.replace(&config(longer)).unwrap();
    fixture.check("a", 1).unwrap();
    assert_eq!(fixture.refund(&text).unwrap(), 3);
    // The mark is gone, and the other charge of that microsecond is still there.
    fixture.clock.advance(Duration::from_secs(300));
    assert_eq!(fixture.remaining("it", "a"), 5);
    assert_eq!(fixture.refund(&text).unwrap(), 0);
    assert_eq!(fixture.refund(&late).unwrap(), 0, "good for as long as its own limit said");
    assert_eq!(fixture.remaining("it", "a"), 5);
}

#[test]
fn a_receipt_is_good_to_the_last_microsecond() {
    let fixture = Fixture::of_limit("sliding-window-log limit=10 window=60s");
    let [early, late] = [0; 2].map(|_| fixture.check("a", 3).unwrap());
    fixture.clock.advance(Duration::from_micros(59_999_999));
    assert_eq!(fixture.refund(&early).unwrap(), 3);
    fixture.clock.advance(Duration::from_micros(1));
    assert_eq!(fixture.refund(&late).unwrap(), 0);
}

#[test]
fn all_that_rules_charged_comes_back() {
    let fixture = Fixture::new(TWO_RULES);
    let ask = || fixture.ask(&[("ip", "a")]).unwrap();
    let remaining = || {
        let of = |(rule, key)| fixture.remaining(rule, key);
        [("api/per-client", "ip=a"), ("api/all", ""), ("api/watched", "ip=a")].map(of)
    };
    ask();
    assert_eq!(remaining(), [4, 96, 4]);
    let text = ask();
    assert_eq!(fixture.refund(&text).unwrap(), 6);
    assert_eq!(remaining(), [4, 96, 4]);
    assert!(matches!(fixture.refund(&text), Err(Unrefunded::Before)));
}

#[test]
fn what_is_no_longer_there_is_said_and_costs_nothing() {
    let fixture = Fixture::new(TWO_RULES);
    let [one, other] = [0; 2].map(|_| fixture.ask(&[("ip", "a")]).unwrap());
    let without = |rules: &str| {
        config(&format!("limits: {{ free: fixed-window limit=5 window=60s }}\n{rules}"))
    };
    fixture.rules.replace(&without("retired_domains: [api]\n")).unwrap();
    assert!(matches!(fixture.refund(&one), Err(Unrefunded::NoLimit)));
    let lets_go = "rules: [{ name: all, domain: api, key: [], limit: allow }]\n";
    fixture.rules.replace(&without(lets_go)).unwrap();
    assert!(matches!(fixture.refund(&one), Err(Unrefunded::NoLimit)));

    // One of three is back, and spends another limit.
    let another = "rules: [{ name: per-client, domain: api, key: [ip], limit: free }]\n";
    fixture.rules.replace(&without(another)).unwrap();
    assert_eq!(fixture.refund(&one).unwrap(), 1);
    fixture.rules.replace(&config(TWO_RULES)).unwrap();
    assert!(matches!(fixture.refund(&one), Err(Unrefunded::Before)));
    assert_eq!(fixture.refund(&other).unwrap(), 6);
}

#[test]
fn a_limit_that_was_changed_gives_back_no_more_than_was_charged() {
    for old in LIMITS {
        for new in LIMITS.map(|limit| limit.replace("=10 ", "=7 ")) {
            let fixture = Fixture::of_limit(old);
            fixture.check("a", 2);
            let text = fixture.check("a", 3).unwrap();
            fixture.rules.replace(&config(&format!("limits: {{ it: {new} }}"))).unwrap();
            let before = fixture.remaining("it", "a");
            let back = fixture.refund(&text).unwrap();
            assert!(back <= 3, "{old}, {new}");
            let remaining = fixture.remaining("it", "a");
            assert!(before <= remaining && remaining <= 5, "{old}, {new}: {before}, {remaining}");
            assert!(matches!(fixture.refund(&text), Err(Unrefunded::Before)), "{old}, {new}");
        }
    }
}

#[test]
fn without_memory_for_a_mark_nothing_comes_back() {
    let text = "limits: { it: fixed-window limit=10 window=60s }";
    let fixture = Fixture::within(text, 0);
    let text = fixture.check("a", 3).unwrap();
    for _ in 0..2 {
        assert!(matches!(fixture.refund(&text), Err(Unrefunded::NoRoom)));
        assert_eq!(fixture.remaining("it", "a"), 7);
    }
}

#[test]
fn a_charge_of_a_clock_that_was_far_ahead_does_not_come_back() {
    for limit in LIMITS {
        let fixture = Fixture::of_limit(limit);
        let text = fixture.check("a", 3).unwrap();
        fixture.clock.set_us(NOON_US - 3_600_000_000);
        assert_eq!(fixture.refund(&text).unwrap(), 0, "{limit}");
    }
}

#[test]
fn a_clock_that_was_a_little_ahead_makes_no_difference() {
    // As long as the shortest mark stays: the next one is taken.
    let fixture = Fixture::of_limit("token-bucket capacity=33 refill=1/s");
    let text = fixture.check("a", 33).unwrap();
    fixture.clock.set_us(NOON_US - 9_000_000);
    assert_eq!(fixture.refund(&text).unwrap(), 33);
}

#[test]
fn a_mark_stays_as_long_as_the_slowest_limit_takes() {
    for limit in
        ["token-bucket capacity=1 refill=1/36524d", "sliding-window-counter limit=1 window=366d"]
    {
        let fixture = Fixture::of_limit(limit);
        let text = fixture.check("a", 1).unwrap();
        assert_eq!(fixture.refund(&text).unwrap(), 1, "{limit}");
        fixture.clock.advance(Duration::from_secs(366 * 86_400));
        assert!(matches!(fixture.refund(&text), Err(Unrefunded::Before)), "{limit}");
    }
}

#[test]
fn refunds_take_few_of_the_limits_there_can_be() {
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
    let made = receipts.marks.made();
    assert!((1..64).contains(&made), "{made}");
}

#[test]
fn refunds_in_memory_take_nothing_from_keys() {
    let limiter = Limiter::builder().max_bytes(256 << 10).build();
    let rules = Rules::new(&limiter, &config("limits: { it: fixed-window limit=10 window=366d }"));
    let (rules, receipts) = (rules.unwrap(), Receipts::in_memory(64 << 10));
    let scope = rules.limit("it").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    // So that it has a state of its own.
    let _ = scope.check("a").cost(2).now().unwrap();
    let cycle = |receipts: &Receipts| {
        let decision = scope.check("a").now().unwrap();
        let text = receipts.of_limit(&scope, b"a", &decision).unwrap();
        runtime.block_on(receipts.refund(&rules, &text))
    };
    let mut marks = 0;
    let no_room = loop {
        match cycle(&receipts) {
            Ok(1) => marks += 1,
            other => break other,
        }
    };
    assert!(matches!(no_room, Err(Unrefunded::NoRoom)), "{no_room:?}");
    assert!((400..1_400).contains(&marks), "{marks}");
    // There is memory for every key of these, and then for no more.
    let whole = |key: u32| scope.check(&key.to_le_bytes()).cost(10).now().unwrap().is_allowed();
    assert!((0..2_000).all(whole));
    assert!(!(2_000..20_000).all(whole));
    assert_eq!(cycle(&Receipts::in_memory(64 << 10)).unwrap(), 1);
}

#[test]
fn a_receipt_of_a_fixed_window_is_good_until_that_ends_and_of_a_counter_until_the_next_does() {
    for (limit, ends_s) in [(LIMITS[0], 60), (LIMITS[2], 120)] {
        let fixture = Fixture::of_limit(limit);
        let [early, late] = [0; 2].map(|_| fixture.check("a", 5).unwrap());
        fixture.clock.set_us(NOON_US + ends_s * 500_000);
        assert_eq!(fixture.refund(&early).unwrap(), 5, "{limit}");
        fixture.clock.set_us(NOON_US + ends_s * 1_000_000);
        assert_eq!(fixture.refund(&late).unwrap(), 0, "{limit}");
    }
}

/// A reset forgives what was spent, not that a receipt was given: it is good once, for what was spent since.
#[test]
fn after_a_reset_receipts_from_before_give_back_one_burst_at_most() {
    for limit in LIMITS {
        let fixture = Fixture::of_limit(limit);
        // Some of them refunded already.
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
            assert_eq!(admitted, 10, "its entries are gone");
        }
    }
}
