//! Leased rules: which rules are leased, and leased rules on a real Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tollgate::rules::{Attributes, Descriptor, Rules};
use tollgate::{LeaseOptions, Limiter, Redis};
use tollgate_launcher::{Flavour, Launch, Server};

use crate::setup::{Fixture, attributes, config};

fn limiter_on(server: &Server) -> Limiter {
    Redis::at(&server.url()).unwrap().deadline(Duration::from_secs(30)).build().unwrap()
}

#[test]
fn rule_decides_before_limit_and_defaults_how_it_is_leased() {
    let fixture = Fixture::new(
        "
defaults: { domain: api, lease: { for: 2s } }
limits:
  plain: fixed-window limit=1000 window=1m
  leased: { algorithm: fixed-window, limit: 1000, window: 1m, mode: leased, lease: { max_share: 10% } }
  policing: { algorithm: leaky-bucket, capacity: 1000, leak: 1/s, mode: leased }
  shaping: { algorithm: leaky-bucket, capacity: 1000, leak: 1/s, mode: shaping }
rules:
  - { name: plain, key: [], limit: plain }
  - { name: own, key: [], limit: plain, mode: leased }
  - { name: of-limit, key: [], limit: leased }
  - { name: strict, key: [], limit: leased, mode: strict }
  - { name: both, key: [], limit: leased, lease: { pace: 1ms } }
  - { name: policing, key: [], limit: policing }
  - { name: shaping, key: [], limit: shaping, mode: leased }
  - { name: reserving, key: [], limit: leased, cost: { reserve: 10 } }
",
    );
    let two_seconds = LeaseOptions { lease_for: Duration::from_secs(2), ..LeaseOptions::default() };
    let tenth = LeaseOptions { max_share_percent: 10, ..LeaseOptions::default() };
    let one_ms = LeaseOptions { pace: Duration::from_millis(1), ..LeaseOptions::default() };
    for (rule, want) in [
        ("plain", None),
        ("own", Some(two_seconds)),
        ("of-limit", Some(tenth)),
        ("strict", None),
        ("both", Some(one_ms)),
        ("policing", Some(two_seconds)),
        ("shaping", None),
        ("reserving", None),
    ] {
        let limits = fixture.rules.rule(&format!("api/{rule}")).unwrap().limits();
        assert_eq!(limits[0].lease, want, "{rule}");
        let explained = fixture.rules.explain("api", &Attributes::new());
        let explained = explained.iter().find(|one| one.rule.name() == rule).unwrap();
        assert_eq!(explained.outcome.as_ref().unwrap().lease, want, "{rule}");
    }
    for (limit, want) in
        [("plain", None), ("leased", Some(tenth)), ("policing", Some(two_seconds)), ("none", None)]
    {
        assert_eq!(fixture.rules.lease_of(limit), want, "{limit}");
    }
}

#[test]
fn defaults_lease_every_limit_that_can_be_leased() {
    let text = "
defaults: { domain: api, mode: leased }
limits: { a: fixed-window limit=1000 window=1m, b: concurrency limit=1000 for=1m }
rules:
  - { name: a, key: [], limit: a }
  - { name: b, key: [], limit: b }
";
    let file = config(text);
    assert!(file.warnings().is_empty(), "{}", file.warnings());
    let notes: Vec<String> = file.notes().map(ToString::to_string).collect();
    assert!(notes.iter().any(|note| note.contains("limit `b` is never leased")), "{notes:?}");
    let rules = Rules::new(&Limiter::memory(), &file).unwrap();
    assert_eq!(["a", "b"].map(|limit| rules.lease_of(limit).is_some()), [true, false]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leased_rule_admits_exactly_its_limit_and_counts_its_decisions() {
    let text = "
defaults: { domain: api, on_store_failure: closed, deadline: 30s, lease: { for: 1h } }
limits: { it: token-bucket capacity=1000 refill=1/d }
rules:
  - { name: leased, key: [ip], limit: it, mode: leased }
  - { name: strict, key: [], limit: it }
";
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let server = Launch::new(flavour).start().unwrap();
        let limiter = limiter_on(&server);
        let rules = Rules::new(&limiter, &config(text)).unwrap();
        let request = attributes(&[("ip", "i")]);
        let (mut admitted, mut leased) = (0, 0);
        for _ in 0..500 {
            let ruling = rules.check("api", &request).await.unwrap();
            let is_leased: Vec<bool> =
                ruling.rules().map(|part| part.decision().unwrap().is_leased()).collect();
            assert!(!is_leased[1], "the strict rule is decided by the store");
            assert_eq!(ruling.is_leased(), is_leased[0]);
            assert!(!ruling.is_leased_only());
            admitted += u64::from(ruling.is_allowed());
            leased += u64::from(is_leased[0]);
        }
        assert_eq!(admitted, 500);
        assert!(leased > 0, "no decision was leased");
        let counts = rules.counts();
        let of = |name: &str| counts.iter().find(|(rule, _)| rule.name() == name).unwrap().1;
        assert_eq!((of("leased").allowed, of("leased").leased_allowed), (500, leased));
        assert_eq!((of("strict").allowed, of("strict").leased_allowed), (500, 0));
        limiter.end_leases().await.unwrap();
        let left = rules.scope("api/leased").unwrap().peek("ip=i").await.unwrap().remaining();
        assert_eq!(left, 500, "{flavour}");
    }
}

/// Envoy's limit override keeps the mode of the rule.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_with_its_own_numbers_is_leased_as_its_rule() {
    let text = "
defaults: { domain: api, deadline: 30s }
limits: { it: fixed-window limit=1000 window=366d }
rules: [{ name: it, key: [], limit: it, mode: leased, lease: { for: 1h } }]
";
    let server = Launch::new(Flavour::Redis).start().unwrap();
    let rules = Rules::new(&limiter_on(&server), &config(text)).unwrap();
    let day = Duration::from_secs(86_400);
    let mut leased = 0;
    for _ in 0..100 {
        let descriptor = Descriptor::new(Attributes::new()).limited_to(2_000, day);
        let ruling = rules.check_each("api", &[descriptor]).await.unwrap();
        assert_eq!(ruling.limit(), Some(2_000));
        leased += u64::from(ruling.is_leased());
    }
    assert!(leased > 0, "no decision was leased");
}

/// The turns of one rule, which replace each other: modes, terms of leases, and limits. The last limit is the largest.
const TURNS: [&str; 6] = [
    "limit: small, mode: leased, lease: { for: 1h }",
    "limit: small, mode: strict",
    "limit: large, mode: leased, lease: { for: 1h, max_share: 5% }",
    "limit: log, mode: leased, lease: { for: 1h, max_share: 50%, pace: 1ms }",
    "limit: large, mode: leased, lease: { for: 1h }",
    "limit: large, mode: strict",
];

fn turn(rule: &str) -> String {
    format!(
        "
limits:
  small: token-bucket capacity=1500 refill=1/d
  log: sliding-window-log limit=1500 window=366d
  large: token-bucket capacity=3000 refill=1/d
rules: [{{ name: it, domain: api, key: [ip], on_store_failure: closed, deadline: 30s, {rule} }}]
"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replacing_modes_and_leased_limits_loses_and_doubles_no_unit() {
    let server = Launch::new(Flavour::Redis).start().unwrap();
    let limiter = limiter_on(&server);
    let configs = TURNS.map(|rule| config(&turn(rule)));
    let rules = Rules::new(&limiter, &configs[0]).unwrap();
    let (admitted, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let checking: Vec<_> = (0..8)
        .map(|_| {
            let (rules, admitted) = (rules.clone(), Arc::clone(&admitted));
            let is_over = Arc::clone(&is_over);
            tokio::spawn(async move {
                while !is_over.load(Ordering::Acquire) {
                    let request = Attributes::new().with("ip", "i");
                    let ruling = rules.check("api", &request).await.unwrap();
                    admitted.fetch_add(u64::from(ruling.is_allowed()), Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let mut turns = 0;
    while admitted.load(Ordering::Relaxed) < 1_400 {
        turns += 1;
        rules.replace(&configs[turns % TURNS.len()]).unwrap();
        // Some turns are long enough for leases, and some are not.
        let more = admitted.load(Ordering::Relaxed) + 10 * (turns % 8) as u64;
        while admitted.load(Ordering::Relaxed) < more.min(1_400) {
            tokio::task::yield_now().await;
        }
    }
    is_over.store(true, Ordering::Release);
    for task in checking {
        task.await.unwrap();
    }
    rules.replace(&configs[TURNS.len() - 1]).unwrap();
    limiter.end_leases().await.unwrap();
    let request = Attributes::new().with("ip", "i");
    while rules.check("api", &request).await.unwrap().is_allowed() {
        admitted.fetch_add(1, Ordering::Relaxed);
    }
    assert!(limiter.lease_counters().hits > 0, "nothing was leased in {turns} turns");
    assert_eq!(admitted.load(Ordering::Relaxed), 3_000, "{turns} turns");
}
