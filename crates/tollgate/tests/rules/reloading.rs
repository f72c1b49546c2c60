//! Rules that are replaced while checks run, in memory and on Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tollgate::rules::{Attributes, Rules};
use tollgate::{Limiter, OnFailure, Redis};
use tollgate_launcher::{Flavour, Launch};

use crate::log::Log;
use crate::setup::{Fixture, config};

/// Pairs of limits that replace each other in turn. The second is the larger. No unit comes back while a test runs.
const TURNS: [[&str; 2]; 8] = [
    ["fixed-window limit=1000 window=366d", "fixed-window limit=1500 window=366d"],
    ["fixed-window limit=1000 window=300d", "fixed-window limit=1500 window=366d"],
    ["sliding-window-log limit=1000 window=300d", "sliding-window-log limit=1500 window=366d"],
    [
        "sliding-window-counter limit=1000 window=366d",
        "sliding-window-counter limit=1500 window=366d",
    ],
    ["token-bucket capacity=1000 refill=1/d", "token-bucket capacity=1500 refill=2/d"],
    [
        "leaky-bucket capacity=1000 leak=1/d mode=policing",
        "leaky-bucket capacity=1500 leak=2/d mode=policing",
    ],
    ["token-bucket capacity=1000 refill=1/d", "sliding-window-log limit=1500 window=366d"],
    ["sliding-window-counter limit=1000 window=366d", "token-bucket capacity=1500 refill=1/d"],
];

fn text(limit: &str) -> String {
    format!(
        "limits: {{ it: {limit} }}\nrules:\n\
         \x20 - {{ name: it, domain: api, key: [ip], limit: it, on_store_failure: closed, deadline: 30s }}\n"
    )
}

#[test]
fn warnings_are_logged_whenever_rules_are_loaded() {
    let unlimited = "limits: { it: fixed-window limit=1 window=1s }
rules: [{ name: it, domain: api, key: [api_key], limit: it }]
";
    let (log, config) = (Log::default(), config(unlimited));
    let lines = Arc::clone(&log.lines);
    tracing::subscriber::with_default(log, || {
        let rules = Rules::new(&Limiter::memory(), &config).unwrap();
        rules.replace(&config).unwrap();
    });
    let lines = lines.lock().unwrap();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines.iter().all(|line| line.starts_with("WARN the rules have warnings")), "{lines:?}");
}

/// Replaces the rules again and again while 8 tasks check. Asserts that no check fails, and that exactly the larger limit
/// is admitted.
async fn assert_replacing_rules_loses_no_charge(limiter: &Limiter, prefix: &str) {
    for (round, limits) in TURNS.iter().enumerate() {
        let configs = limits.map(|limit| config(&text(limit)));
        let rules = Rules::new(limiter, &configs[0]).unwrap();
        let (admitted, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let checking: Vec<_> = (0..8)
            .map(|_| {
                let (rules, admitted) = (rules.clone(), Arc::clone(&admitted));
                let (is_over, key) = (Arc::clone(&is_over), format!("{prefix}{round}"));
                tokio::spawn(async move {
                    loop {
                        let is_last = is_over.load(Ordering::Acquire);
                        let request = Attributes::new().with("ip", key.as_str());
                        let ruling = rules.check("api", &request).await.unwrap();
                        assert!(!ruling.is_degraded());
                        match ruling.is_allowed() {
                            true => _ = admitted.fetch_add(1, Ordering::Relaxed),
                            false if is_last => return,
                            false => tokio::task::yield_now().await,
                        }
                    }
                })
            })
            .collect();
        let mut turns = 0;
        while admitted.load(Ordering::Relaxed) < 900 || turns < 50 {
            turns += 1;
            rules.replace(&configs[turns % 2]).unwrap();
            tokio::task::yield_now().await;
        }
        rules.replace(&configs[1]).unwrap();
        is_over.store(true, Ordering::Release);
        for task in checking {
            task.await.unwrap();
        }
        let counts = rules.counts()[0].1;
        assert_eq!(admitted.load(Ordering::Relaxed), 1_500, "{limits:?}, {turns} turns");
        assert_eq!((counts.allowed, counts.failed), (1_500, 0), "{limits:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replacing_rules_loses_no_charge_in_memory() {
    assert_replacing_rules_loses_no_charge(&Limiter::memory(), "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replacing_rules_loses_no_charge_on_redis_and_valkey() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let server = Launch::new(flavour).start().unwrap();
        let limiter = Redis::at(&server.url())
            .unwrap()
            .on_failure(OnFailure::Closed)
            .deadline(Duration::from_secs(30))
            .build()
            .unwrap();
        assert_replacing_rules_loses_no_charge(&limiter, "").await;
    }
}

#[test]
fn reload_keeps_spent_units() {
    let fixture = Fixture::new(&text("token-bucket capacity=10 refill=1/s"));
    let request = [("ip", "i")];
    assert_eq!(fixture.admitted(10, &request), 10);
    fixture.rules.replace(&config(&text("token-bucket capacity=10 refill=10/s"))).unwrap();
    let refused = fixture.check(&request);
    assert_eq!(refused.retry_after(), Some(Duration::from_millis(100)));
    fixture.clock.advance(Duration::from_micros(99_999));
    assert!(!fixture.check(&request).is_allowed());
    fixture.clock.advance(Duration::from_micros(1));
    assert!(fixture.check(&request).is_allowed());
    fixture.rules.replace(&config(&text("sliding-window-log limit=12 window=1h"))).unwrap();
    assert_eq!(fixture.admitted(9, &request), 2);
}

#[test]
fn ruling_keeps_the_rules_that_decided_it() {
    let fixture = Fixture::new(&text("fixed-window limit=10 window=1d"));
    let before = fixture.check(&[("ip", "i")]);
    let other = "limits: { it: fixed-window limit=1 window=1d }\n\
                 rules: [{ name: other, domain: api, key: [], limit: it }]\n";
    assert_eq!(fixture.rules.replace(&config(other)).unwrap(), 2);
    assert_eq!((before.generation(), before.refused_by().is_none()), (1, true));
    assert_eq!(before.rules().next().unwrap().name().name(), "it");
    assert_eq!(fixture.applied(&[("ip", "i")]), ["other"]);
}

#[test]
fn counts_continue_after_a_reload() {
    let fixture = Fixture::new(&text("fixed-window limit=1 window=1d"));
    assert_eq!(fixture.admitted(3, &[("ip", "i")]), 1);
    fixture.rules.replace(&config(&text("fixed-window limit=2 window=1d"))).unwrap();
    assert_eq!(fixture.admitted(3, &[("ip", "i")]), 1);
    let (name, counts) = &fixture.rules.counts()[0];
    assert_eq!(name.to_string(), "api/it");
    assert_eq!((counts.allowed, counts.denied), (2, 4));
}

/// A ruling may be kept, for example until a stream ends and is refunded. It keeps the limit of its own rule, not the
/// limits of the whole file.
#[test]
fn kept_rulings_leave_room_for_new_rules() {
    let text = |limit: u64| {
        let mut text = format!("limits: {{ it: fixed-window limit={limit} window=1d }}\nrules:\n");
        for rule in 0..7_000 {
            text += &format!("  - {{ name: r{rule}, domain: d{rule}, key: [], limit: it }}\n");
        }
        text
    };
    let limiter = Limiter::memory();
    let rules = Rules::new(&limiter, &config(&text(100))).unwrap();
    let request = Attributes::new();
    let kept: Vec<_> = (101..107)
        .map(|limit| {
            let ruling = rules.check("d7", &request).now().unwrap();
            rules.replace(&config(&text(limit))).unwrap();
            ruling
        })
        .collect();
    let generations: Vec<u64> = kept.iter().map(|ruling| ruling.generation()).collect();
    assert_eq!(generations, [1, 2, 3, 4, 5, 6]);
    assert_eq!(rules.check("d7", &request).now().unwrap().remaining(), Some(106 - 7));
}

#[test]
fn limits_and_domains_can_be_listed() {
    let fixture = Fixture::new(
        "limits: { b: fixed-window limit=2 window=1d, a: fixed-window limit=1 window=1d }
rules:
  - { name: it, domain: web, key: [], limit: a }
  - { name: it, domain: api, key: [], limit: b }
",
    );
    let limits = fixture.rules.limits();
    let limits: Vec<_> = limits.iter().map(|(name, limit)| (name.as_str(), limit.size())).collect();
    assert_eq!(limits, [("a", 1), ("b", 2)]);
    assert_eq!(fixture.rules.domains(), ["api", "web"]);
    assert!(fixture.rules.has_domain("web") && !fixture.rules.has_domain("wbe"));
}
