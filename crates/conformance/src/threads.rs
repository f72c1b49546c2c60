//! P5: any number of threads admit exactly what one caller would.
//!
//! The clock is stopped, so that the number of admitted requests does not depend on their timing; only
//! [`answers_to_threads_are_those_of_one_order`] gives each request its own time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

use tokio::runtime::{Builder, Handle};
use tollgate_core::{Cost, Intent};
use tollgate_limiter::{Check, Limiter, Scope};

use crate::history::{RecordedAnswer, RecordedRequest, explain, now_us};
use crate::store::{Make, named, open};

const THREADS: usize = 8;

/// Every algorithm with a limit of 1,000.
const LIMITS: [&str; 6] = [
    "fixed-window limit=1000 window=1m",
    "sliding-window-log limit=1000 window=1m",
    "sliding-window-counter limit=1000 window=1m",
    "token-bucket capacity=1000 refill=1/s",
    "leaky-bucket capacity=1000 leak=1/s mode=policing",
    "leaky-bucket capacity=1000 leak=1/s mode=shaping",
];

/// Runs `act` on every thread at the same moment, with the thread's number. Returns the sum of the results.
fn on_threads(act: impl Fn(usize, &Handle) -> u64 + Sync) -> u64 {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let start = Barrier::new(THREADS);
    thread::scope(|threads| {
        let run = |number| {
            let (start, act, handle) = (&start, &act, runtime.handle());
            move || {
                start.wait();
                act(number, handle)
            }
        };
        let running: Vec<_> = (0..THREADS).map(|number| threads.spawn(run(number))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

fn allowed(handle: &Handle, check: Check<'_>) -> bool {
    handle.block_on(check.into_future()).unwrap().is_allowed()
}

fn allowed_together(handle: &Handle, limiter: &Limiter, checks: &[Check<'_>]) -> bool {
    handle.block_on(limiter.check_all(checks)).unwrap().is_allowed()
}

fn remaining(scope: &Scope, key: &str) -> u64 {
    crate::store::block_on(scope.peek(key).into_future()).unwrap().remaining()
}

pub fn concurrent_threads_admit_exactly_the_limit(make: Make) {
    for text in LIMITS {
        for cost in [1, 7] {
            let (_, limiter) = open(make);
            let scope = named(&limiter, "one", text);
            let admitted = on_threads(|_, handle| {
                (0..400).filter(|_| allowed(handle, scope.check("a").cost(cost))).count() as u64
            });
            assert_eq!(admitted, 1_000 / cost, "{text}, cost {cost}");
            assert_eq!(remaining(&scope, "a"), 1_000 % cost, "{text}, cost {cost}");
        }
    }
}

/// Each field of each answer. Some units come back meanwhile.
pub fn answers_to_threads_are_those_of_one_order(make: Make) {
    for text in LIMITS {
        let text = text.replace("1000", "100").replace("1m", "20ms").replace("1/s", "1/ms");
        let (_, limiter) = open(make);
        let scope = named(&limiter, "history", &text);
        let history = Mutex::new(Vec::new());
        on_threads(|number, handle| {
            for turn in 0..100 {
                let cost = Cost::new(1 + (number + turn) as u64 % 5).unwrap();
                let is_peek = (number + turn).is_multiple_of(7);
                let intent = if is_peek { Intent::Peek } else { Intent::Charge };
                let at_us = now_us();
                let check = if is_peek { scope.peek("a") } else { scope.check("a") };
                let check = check.cost(cost.units()).at_us(at_us).into_future();
                let decision = *handle.block_on(check).unwrap().decided();
                let answer = Some(RecordedAnswer { ended_us: now_us(), decision });
                let request =
                    RecordedRequest { began_us: at_us, at_us: Some(at_us), cost, intent, answer };
                history.lock().unwrap().push(request);
            }
            0
        });
        if let Err(unexplained) = explain(scope.limit(), &history.into_inner().unwrap(), 0) {
            panic!("{unexplained}");
        }
    }
}

pub fn threads_on_a_few_keys_admit_exactly_the_limit_of_each(make: Make) {
    const KEYS: [&str; 3] = ["a", "b", "a key that is longer than most"];
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = named(&limiter, "few", text);
        let admitted = on_threads(|number, handle| {
            let key = |turn: usize| KEYS[(number + turn) % KEYS.len()];
            (0..1_200).filter(|&turn| allowed(handle, scope.check(key(turn)))).count() as u64
        });
        assert_eq!(admitted, 3_000, "{text}");
        assert_eq!(KEYS.map(|key| remaining(&scope, key)), [0; 3], "{text}");
    }
}

pub fn threads_that_add_a_key_at_once_admit_exactly_one(make: Make) {
    let (_, limiter) = open(make);
    for text in ["fixed-window limit=1 window=1m", "sliding-window-log limit=1 window=1m"] {
        let scope = named(&limiter, text, text);
        let keys: Vec<String> = (0..5_000).map(|key| format!("key {key}")).collect();
        let admitted = on_threads(|_, handle| {
            keys.iter().filter(|key| allowed(handle, scope.check(key))).count() as u64
        });
        assert_eq!(admitted, 5_000, "{text}");
    }
}

pub fn limits_charged_in_opposite_orders_neither_deadlock_nor_over_admit(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let wide = named(&limiter, "wide", text);
        let narrow = named(&limiter, "narrow", &text.replace("1000", "700"));
        let admitted = on_threads(|number, handle| {
            let forth = [wide.check("a"), narrow.check("a")];
            let back = [narrow.check("a"), wide.check("a")];
            let checks = if number % 2 == 0 { forth } else { back };
            let admitted = (0..200).filter(|_| allowed_together(handle, &limiter, &checks));
            admitted.count() as u64
        });
        assert_eq!(admitted, 700, "{text}");
        assert_eq!(
            remaining(&wide, "a"),
            300,
            "{text}: charged together with `narrow`, or not at all"
        );
        assert_eq!(remaining(&narrow, "a"), 0, "{text}");
    }
}

/// Every joint check charges three of twelve keys. Other checks charge one of them.
pub fn joint_checks_are_all_or_none_under_threads(make: Make) {
    compare_with_charges(make, |text, admitted, charged| {
        assert_eq!(admitted, charged, "{text}: exactly the admitted units are charged");
    });
}

/// If keys are in different places, charges of refused checks may stay.
pub fn joint_checks_never_admit_too_much_under_threads(make: Make) {
    compare_with_charges(make, |text, admitted, charged| {
        assert!(admitted <= charged, "{text}: {admitted} admitted, {charged} charged");
    });
}

fn compare_with_charges(make: Make, assert: impl Fn(&str, u64, u64)) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = named(&limiter, "keys", text);
        let keys: Vec<String> = (0..12).map(|key| format!("key {key}")).collect();
        let spent = on_threads(|number, handle| {
            let mut spent = 0;
            for turn in 0..300 {
                let key =
                    |nth: usize| &keys[(number * 5 + turn * (nth + 1) + nth * 4) % keys.len()];
                let checks = [0, 1, 2].map(|nth| scope.check(key(nth)).cost(3));
                spent += if allowed_together(handle, &limiter, &checks) { 9 } else { 0 };
                spent += if allowed(handle, scope.check(key(0))) { 1 } else { 0 };
            }
            spent
        });
        let left: u64 = keys.iter().map(|key| remaining(&scope, key)).sum();
        assert(text, spent, 12_000 - left);
    }
}

pub fn charges_and_refunds_of_many_threads_add_up(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = named(&limiter, "refunds", text);
        let spent = on_threads(|_, handle| {
            let mut spent = 0;
            for turn in 0..200 {
                let checked = handle.block_on(scope.check("a").cost(3).into_future()).unwrap();
                let Some(receipt) = checked.into_receipt() else { continue };
                spent += 3;
                if turn % 3 == 0 {
                    spent -= handle.block_on(scope.refund("a", receipt)).unwrap();
                }
            }
            spent
        });
        assert_eq!(remaining(&scope, "a"), 1_000 - spent, "{text}");
    }
}

/// All limits have one size, so that carrying over loses no units.
pub fn threads_under_every_limit_of_one_name_admit_exactly_one_limit(make: Make) {
    let (_, limiter) = open(make);
    let scopes = LIMITS.map(|text| named(&limiter, "in turn", text));
    let admitted = on_threads(|number, handle| {
        let scope = |turn: usize| &scopes[(number + turn) % scopes.len()];
        (0..400).filter(|&turn| allowed(handle, scope(turn).check("a"))).count() as u64
    });
    assert_eq!(admitted, 1_000);
    for scope in &scopes {
        assert_eq!(remaining(scope, "a"), 0, "{}", scope.limit());
    }
}

pub fn raised_limit_admits_exactly_the_difference_under_threads(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let small = named(&limiter, "raised", text);
        let large = text.replace("=1000 ", "=1500 ");
        let spent = Barrier::new(THREADS);
        let admitted = on_threads(|_, handle| {
            let until_refused = |scope: &Scope| {
                let admitted = (0..).take_while(|_| allowed(handle, scope.check("a")));
                admitted.count() as u64
            };
            let before = until_refused(&small);
            spent.wait();
            // Each thread makes the scope itself, as each of several readers of a configuration would.
            before + until_refused(&named(&limiter, "raised", &large))
        });
        assert_eq!(admitted, 1_500, "{text}");
    }
}

/// Also for buckets, whose spent units stay under the larger limit.
pub fn limits_of_two_sizes_at_once_admit_exactly_the_larger_under_threads(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let small = named(&limiter, "both", text);
        let large = named(&limiter, "both", &text.replace("=1000 ", "=1500 "));
        let admitted = on_threads(|number, handle| {
            let scope =
                |turn: usize| if (number + turn).is_multiple_of(2) { &small } else { &large };
            (0..600).filter(|&turn| allowed(handle, scope(turn).check("a"))).count() as u64
        });
        assert_eq!(admitted, 1_500, "{text}");
    }
}

/// Each thread settles less than it held, or releases, while others wait for what comes back.
pub fn threads_that_reserve_and_settle_admit_exactly_what_one_would(make: Make) {
    for text in LIMITS.iter().filter(|text| !text.contains("shaping")) {
        let (_, limiter) = open(make);
        let scope = named(&limiter, "held", text);
        let used = on_threads(|number, handle| {
            let mut used = 0;
            for turn in 0..300 {
                let units = 1 + (number + turn) as u64 % 7;
                let reserved = scope.reserve("a").cost(units).into_future();
                let reserved = handle.block_on(reserved).unwrap();
                used += u64::from(allowed(handle, scope.check("a")));
                let Some(hold) = reserved.into_hold() else { continue };
                let settled = handle.block_on(hold.settle(units / 2)).unwrap();
                assert_eq!((settled.charged_units(), settled.excess_units()), (units / 2, 0));
                used += units / 2;
            }
            used
        });
        assert!(used <= 1_000, "{text}: {used} used");
        assert_eq!(remaining(&scope, "a"), 1_000 - used, "{text}");
    }
}

/// The keys of a reservation are locked in different orders.
pub fn threads_that_reserve_several_limits_admit_exactly_what_one_would(make: Make) {
    compare_reserved(make, |text, used, charged| assert_eq!(used, charged, "{text}"));
}

/// If keys are in different places, units of refused reservations may be charged.
pub fn threads_that_reserve_several_limits_never_admit_too_much(make: Make) {
    compare_reserved(make, |text, used, charged| {
        assert!(used <= charged, "{text}: {used} used, {charged} charged");
    });
}

fn compare_reserved(make: Make, assert: impl Fn(&str, u64, u64)) {
    for text in LIMITS.iter().filter(|text| !text.contains("shaping")) {
        let (_, limiter) = open(make);
        let scope = named(&limiter, "held together", text);
        let keys: Vec<String> = (0..12).map(|key| format!("key {key}")).collect();
        let used = on_threads(|number, handle| {
            let mut used = 0;
            for turn in 0..200 {
                let key =
                    |nth: usize| &keys[(number * 5 + turn * (nth + 1) + nth * 4) % keys.len()];
                let parts = [
                    scope.reserve(key(0)).cost(6).into(),
                    scope.check(key(1)).cost(2).into(),
                    scope.reserve(key(2)).cost(4).into(),
                ];
                let reserved = handle.block_on(limiter.reserve_all(&parts)).unwrap();
                let Some(hold) = reserved.into_hold() else { continue };
                let settled = handle.block_on(hold.settle(|_| 3)).unwrap();
                // A check of a key that is also reserved is charged by the settlement.
                let charged: u64 = settled.iter().map(|one| one.charged_units()).sum();
                let checked = if [key(0), key(2)].contains(&key(1)) { 0 } else { 2 };
                used += charged + checked;
            }
            used
        });
        let left: u64 = keys.iter().map(|key| remaining(&scope, key)).sum();
        assert(text, used, 12_000 - left);
    }
}

pub fn threads_hold_no_more_than_a_concurrency_limit_at_a_time(make: Make) {
    let (_, limiter) = open(make);
    let scope = named(&limiter, "jobs", "concurrency limit=20 for=1h");
    let (running, most) = (AtomicU64::new(0), AtomicU64::new(0));
    let admitted = on_threads(|number, handle| {
        let mut admitted = 0;
        for turn in 0..300 {
            let units = 1 + (number + turn) as u64 % 7;
            let reserved = handle.block_on(scope.reserve("a").cost(units).into_future()).unwrap();
            let Some(hold) = reserved.into_hold() else { continue };
            // Counted while it is held: never more than what the store counts.
            most.fetch_max(running.fetch_add(units, Ordering::Relaxed) + units, Ordering::Relaxed);
            admitted += units;
            running.fetch_sub(units, Ordering::Relaxed);
            assert_eq!(handle.block_on(hold.release()).unwrap().ended(), None);
        }
        admitted
    });
    let most = most.into_inner();
    assert!(most <= 20, "{most} at once");
    assert!(admitted > 20, "{admitted}: units are used again");
    assert_eq!(remaining(&scope, "a"), 20);
}
