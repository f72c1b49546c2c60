//! When a limit changes, spent units stay spent, and processes with the old and the new limit share them.
//!
//! Each limiter stands for a process, with its own limit under the same name.

use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::{Limit, Limiter, ManualClock, Scope};
use tollgate_launcher::{Flavour, Server};

use crate::setup::{
    LIMITS, PATIENCE, admin, builder, kept, key_with, named, open, remaining, scripts_run, start,
};

/// Every algorithm, with limits that refill soon.
const SHORT: [&str; 8] = [
    "fixed-window limit=10 window=7s",
    "sliding-window-log limit=10 window=10s",
    "sliding-window-counter limit=10 window=10s",
    "sliding-window-counter limit=8 window=3s",
    "token-bucket capacity=10 refill=1/s",
    "token-bucket capacity=12 refill=3/7s",
    "leaky-bucket capacity=10 leak=2/s mode=policing",
    "leaky-bucket capacity=9 leak=1/m mode=shaping",
];

const NOW_US: u64 = 1_000_000_023_000_000;

/// The same limit with another size.
fn sized(text: &str, size: u64) -> String {
    let text = text.replace("=100 ", &format!("={size} "));
    assert_eq!(text.parse::<Limit>().unwrap().size(), size);
    text
}

/// A scope on a new limiter, as in another process.
fn api(server: &Server, text: &str) -> Scope {
    named(&open(server), "api", text)
}

/// A scope on a new limiter with this clock.
fn timed(server: &Server, clock: &ManualClock, text: &str) -> Scope {
    let limiter = builder(&server.url()).clock(clock).deadline(PATIENCE).build().unwrap();
    named(&limiter, "api", text)
}

async fn spend(scope: &Scope, key: &str, units: u64) {
    assert!(scope.check(key).cost(units).await.unwrap().is_allowed(), "{}", scope.limit());
}

#[tokio::test]
async fn lowering_and_raising_a_limit_keeps_spent_units() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        for text in LIMITS {
            let with_size = |size: u64| named(&open(&server), text, &sized(text, size));
            let (old, lower, higher) = (with_size(100), with_size(40), with_size(150));
            old.check("a").cost(30).await.unwrap();
            assert_eq!(remaining(&lower, "a").await, 10, "{flavour}, {text}");
            assert!(lower.check("a").cost(10).await.unwrap().is_allowed(), "{flavour}, {text}");
            assert!(!lower.check("a").await.unwrap().is_allowed(), "{flavour}, {text}");
            assert_eq!(remaining(&old, "a").await, 60, "{flavour}, {text}");
            assert_eq!(remaining(&higher, "a").await, 110, "{flavour}, {text}");
        }
    }
}

#[tokio::test]
async fn lowered_limit_has_nothing_remaining_when_more_is_spent() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        for text in LIMITS {
            let old = named(&open(&server), text, text);
            let lower = named(&open(&server), text, &sized(text, 40));
            for _ in 0..20 {
                old.check("a").cost(4).await.unwrap();
            }
            let seen = lower.peek("a").await.unwrap();
            assert_eq!((seen.is_allowed(), seen.remaining()), (false, 0), "{flavour}, {text}");
            // A peek changes nothing.
            assert_eq!(remaining(&old, "a").await, 20, "{flavour}, {text}");
            assert!(!lower.check("a").await.unwrap().is_allowed(), "{flavour}, {text}");
            // The lower limit gives no units back.
            assert_eq!(remaining(&old, "a").await, 20, "{flavour}, {text}");
        }
    }
}

#[tokio::test]
async fn changing_the_algorithm_keeps_spent_units() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let clock = ManualClock::at_us(NOW_US);
        for (number, old) in LIMITS.into_iter().enumerate() {
            for (other, new) in LIMITS.into_iter().enumerate() {
                let (old, new) =
                    (timed(&server, &clock, old), timed(&server, &clock, &sized(new, 150)));
                let key = format!("{number} {other}");
                let what = format!("{flavour}: {} to {}", old.limit(), new.limit());
                spend(&old, &key, 30).await;
                assert_eq!(remaining(&new, &key).await, 120, "{what}");
                assert_eq!(new.check(&key).cost(20).await.unwrap().remaining(), 100, "{what}");
                assert_eq!(remaining(&old, &key).await, 50, "{what}");
                assert_eq!(old.check(&key).cost(50).await.unwrap().remaining(), 0, "{what}");
                assert!(!old.check(&key).await.unwrap().is_allowed(), "{what}");
                assert_eq!(remaining(&new, &key).await, 50, "{what}");
            }
        }
    }
}

/// A refused check must store the carried state, or the old rate would count until the next check.
#[tokio::test]
async fn wait_under_a_changed_limit_is_exact() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let clock = ManualClock::at_us(NOW_US);
        for (number, old) in SHORT.into_iter().enumerate() {
            for (other, new) in SHORT.into_iter().enumerate().filter(|(other, _)| *other != number)
            {
                clock.set_us(NOW_US);
                let key = format!("{number} {other}");
                let (old, new) = (timed(&server, &clock, old), timed(&server, &clock, new));
                spend(&old, &key, old.limit().size() - 1).await;
                clock.advance(Duration::from_micros(900_001));
                let cost = new.limit().size() - 1;
                let what = format!("{flavour}: {} to {}", old.limit(), new.limit());
                let refused = new.check(&key).cost(cost).await.unwrap();
                let Some(wait) = refused.retry_after() else { panic!("{what}: {refused:?}") };
                clock.advance(wait - Duration::from_micros(1));
                let early = new.peek(&key).cost(cost).await.unwrap();
                assert!(!early.is_allowed(), "{what}: {early:?}");
                clock.advance(Duration::from_micros(1));
                assert!(new.check(&key).cost(cost).await.unwrap().is_allowed(), "{what}");
            }
        }
    }
}

#[tokio::test]
async fn bucket_refills_at_the_old_rate_until_the_change_and_then_at_the_new_one() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let clock = ManualClock::at_us(NOW_US);
        let old = timed(&server, &clock, "token-bucket capacity=10 refill=1/s");
        let new = timed(&server, &clock, "token-bucket capacity=10 refill=1/m");
        spend(&old, "a", 10).await;
        clock.advance(Duration::from_millis(3_500));
        // 6.5 units are spent, and 5 fit when 1.5 have come back at one a minute.
        let refused = new.check("a").cost(5).await.unwrap();
        assert_eq!(refused.retry_after(), Some(Duration::from_secs(90)), "{flavour}");
        clock.advance(Duration::from_secs(60));
        assert_eq!(remaining(&new, "a").await, 4, "{flavour}");
    }
}

#[tokio::test]
async fn peek_and_listing_under_another_limit_change_nothing() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let (clock, mut admin) = (ManualClock::at_us(NOW_US), admin(&server));
        for old in SHORT {
            let old = timed(&server, &clock, old);
            spend(&old, "a", 7).await;
            let key = key_with(&mut admin, "{a}");
            let before = kept(&mut admin, key.as_bytes());
            for new in SHORT {
                let new = timed(&server, &clock, new);
                let what = format!("{flavour}: {} to {}", old.limit(), new.limit());
                assert_eq!(remaining(&new, "a").await, new.limit().size() - 7, "{what}");
                let entries = new.entries("a").await.unwrap();
                let units: u64 = entries.iter().map(|entry| entry.cost.units()).sum();
                let is_log = matches!(new.limit(), Limit::SlidingWindowLog(_));
                assert_eq!(units, if is_log { 7 } else { 0 }, "{what}");
                assert_eq!(kept(&mut admin, key.as_bytes()), before, "{what}");
            }
            old.reset("a").await.unwrap();
        }
    }
}

#[tokio::test]
async fn refused_check_stores_the_state_that_it_carried_over() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let (clock, mut admin) = (ManualClock::at_us(NOW_US), admin(&server));
        let old = timed(&server, &clock, "token-bucket capacity=10 refill=1/s");
        let new = timed(&server, &clock, "token-bucket capacity=10 refill=2/s");
        spend(&old, "a", 7).await;
        let key = key_with(&mut admin, "{a}");
        let before = kept(&mut admin, key.as_bytes());
        assert!(!new.check("a").cost(4).await.unwrap().is_allowed(), "{flavour}");
        let carried = kept(&mut admin, key.as_bytes());
        assert_ne!(carried, before, "{flavour}");
        // When the limit has not changed, a refusal changes nothing.
        assert!(!new.check("a").cost(4).await.unwrap().is_allowed(), "{flavour}");
        assert_eq!(kept(&mut admin, key.as_bytes()), carried, "{flavour}");
    }
}

#[tokio::test]
async fn receipt_refunds_its_whole_cost_after_the_limit_changed() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let clock = ManualClock::at_us(NOW_US);
        for (old, new, want) in [
            ("fixed-window limit=10 window=7s", "fixed-window limit=20 window=7s", 6),
            ("fixed-window limit=10 window=7s", "fixed-window limit=10 window=8s", 6),
            (
                "sliding-window-counter limit=10 window=7s",
                "sliding-window-counter limit=9 window=7s",
                6,
            ),
            ("sliding-window-log limit=10 window=7s", "sliding-window-log limit=10 window=1h", 6),
            ("token-bucket capacity=10 refill=1/s", "token-bucket capacity=20 refill=9/s", 6),
            (
                "token-bucket capacity=10 refill=1/s",
                "leaky-bucket capacity=20 leak=1/h mode=shaping",
                6,
            ),
            // Between algorithms, the refund is applied under the limit that the key is under.
            ("fixed-window limit=10 window=7s", "token-bucket capacity=10 refill=1/s", 6),
            ("token-bucket capacity=10 refill=1/s", "fixed-window limit=10 window=7s", 6),
            ("token-bucket capacity=10 refill=1/s", "sliding-window-log limit=10 window=7s", 6),
            ("sliding-window-log limit=10 window=7s", "token-bucket capacity=10 refill=1/s", 6),
        ] {
            let (old, new) = (timed(&server, &clock, old), timed(&server, &clock, new));
            let what = format!("{flavour}: {} to {}", old.limit(), new.limit());
            let receipt = old.check("a").cost(6).await.unwrap().into_receipt().unwrap();
            assert_eq!(new.refund("a", receipt).await.unwrap(), want, "{what}");
            assert_eq!(remaining(&new, "a").await, new.limit().size() - 6 + want, "{what}");
            new.reset("a").await.unwrap();
        }
    }
}

#[tokio::test]
async fn reset_forgets_units_spent_under_any_limit() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        for old in LIMITS {
            for new in LIMITS {
                let (old, new) = (api(&server, old), api(&server, new));
                spend(&old, "a", 60).await;
                new.reset("a").await.unwrap();
                assert_eq!(crate::setup::keys(&mut admin).len(), 0, "{flavour}");
                spend(&new, "a", 100).await;
                new.reset("a").await.unwrap();
            }
        }
    }
}

/// Charges 30 units to two scopes, then changes the limit of the first. Returns both.
async fn one_changed(server: &Server, clock: &ManualClock, old: &str) -> (Limiter, [Scope; 2]) {
    let with = |text: &str| {
        let limiter = builder(&server.url()).clock(clock).deadline(PATIENCE).build().unwrap();
        let scopes = [named(&limiter, "changed", text), named(&limiter, "same", LIMITS[0])];
        (limiter, scopes)
    };
    let (limiter, [changed, same]) = with(old);
    let both = limiter.check_all(&[changed.check("a").cost(30), same.check("a").cost(30)]).await;
    assert!(both.unwrap().is_allowed());
    with("token-bucket capacity=50 refill=1/s")
}

#[tokio::test]
async fn joint_check_carries_over_the_limit_that_changed() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let clock = ManualClock::at_us(NOW_US);
        for old in LIMITS {
            let what = format!("{flavour}, {old}");
            clock.set_us(NOW_US);
            let (limiter, [changed, same]) = one_changed(&server, &clock, old).await;
            let refused = limiter.check_all(&[same.check("a"), changed.check("a").cost(25)]).await;
            let refused = refused.unwrap();
            assert_eq!(refused.refused_by(), Some(1), "{what}");
            let allowed = limiter.check_all(&[same.check("a"), changed.check("a").cost(15)]).await;
            let left: Vec<u64> =
                allowed.unwrap().each().iter().map(|each| each.remaining()).collect();
            assert_eq!(left, [69, 5], "{what}");
            // The key is under the new limit now, and refills at its rate.
            clock.advance(Duration::from_secs(5));
            assert_eq!(remaining(&changed, "a").await, 10, "{what}");
            changed.reset("a").await.unwrap();
            same.reset("a").await.unwrap();
        }
    }
}

#[tokio::test]
async fn changed_shadow_limit_is_carried_over_when_the_check_is_refused() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let clock = ManualClock::at_us(NOW_US);
        let (limiter, [changed, same]) = one_changed(&server, &clock, LIMITS[3]).await;
        let shadow = changed.check("a").cost(1).shadow();
        let refused = limiter.check_all(&[same.check("a").cost(71), shadow]).await.unwrap();
        assert_eq!(refused.refused_by(), Some(0), "{flavour}");
        // It refilled at a token a second since then, not at one in 88 hours.
        clock.advance(Duration::from_secs(10));
        let seen = remaining(&changed, "a").await;
        assert_eq!(seen, 30, "{flavour}");
    }
}

#[tokio::test]
async fn requests_of_a_batch_keep_their_order_when_some_are_sent_again() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        for old in LIMITS {
            let old = api(&server, old);
            spend(&old, "a", 30).await;
            let limiter = open(&server);
            let new = named(&limiter, "api", "fixed-window limit=150 window=366d");
            let other = named(&limiter, "other", "fixed-window limit=100 window=366d");
            let requests = [
                &[new.check("a").cost(3)][..],
                &[other.check("a").cost(9)],
                &[new.check("a").cost(4), other.check("b").cost(5)],
                &[other.check("b").cost(6)],
                &[new.check("a").cost(200)],
                &[new.check("a").cost(8)],
            ];
            let answers = limiter.batch(&requests).await.unwrap();
            let left: Vec<Vec<u64>> = answers
                .into_iter()
                .map(|answer| answer.unwrap().each().iter().map(|it| it.remaining()).collect())
                .collect();
            let want: [&[u64]; 6] = [&[117], &[91], &[113, 95], &[89], &[113], &[105]];
            assert_eq!(left, want, "{flavour}, {}", old.limit());
            for scope in [&new, &other] {
                scope.reset("a").await.unwrap();
                scope.reset("b").await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn limit_change_takes_one_more_round_trip_once() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        for text in LIMITS {
            let old = named(&open(&server), text, text);
            let new = named(&open(&server), text, &sized(text, 90));
            spend(&old, "a", 3).await;
            let before = scripts_run(&mut admin);
            spend(&new, "a", 3).await;
            assert_eq!(scripts_run(&mut admin), before + 2, "{flavour}, {text}");
            spend(&new, "a", 3).await;
            assert_eq!(scripts_run(&mut admin), before + 3, "{flavour}, {text}");
            // After a flush the script is sent again.
            redis::cmd("SCRIPT").arg("FLUSH").exec(&mut admin).unwrap();
            spend(&old, "a", 3).await;
            assert_eq!(remaining(&old, "a").await, 88, "{flavour}, {text}");
        }
    }
}

/// Processes with the old limit and with the new one, as in a rolling restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_with_different_limits_admit_exactly_the_larger() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        for text in LIMITS {
            let mut tasks = JoinSet::new();
            for size in [100, 150, 150] {
                let limiter = open(&server);
                for _ in 0..8 {
                    let scope = named(&limiter, text, &sized(text, size));
                    tasks.spawn(async move {
                        let mut admitted = 0;
                        for _ in 0..15 {
                            admitted += u64::from(scope.check("a").await.unwrap().is_allowed());
                        }
                        admitted
                    });
                }
            }
            let admitted: u64 = tasks.join_all().await.into_iter().sum();
            assert_eq!(admitted, 150, "{flavour}, {text}");
        }
    }
}
