//! A check on a known key allocates nothing.

// Many tests only charge and do not read the decision.
#![allow(clippy::panic, clippy::unwrap_used, unsafe_code, unused_must_use)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::{Check, Limit, Limiter, ManualClock, Scope};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator with a count of each thread's allocations.
struct Counting;

fn count() {
    // The counter of a thread that is ending may be gone.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations_of(act: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    act();
    ALLOCATIONS.get() - before
}

const LIMITS: [&str; 6] = [
    "fixed-window limit=100 window=1m",
    "sliding-window-log limit=100 window=1m",
    "sliding-window-counter limit=100 window=1m",
    "token-bucket capacity=100 refill=1/s",
    "leaky-bucket capacity=100 leak=1/s mode=policing",
    "leaky-bucket capacity=100 leak=1/s mode=shaping",
];

/// Keys of lengths that a store may keep in different ways.
const KEYS: [&str; 4] =
    ["", "user:42", "a key of 16 byte", "a key that is longer than any slot has room for"];

/// Makes a scope whose keys were spent, and have all units back. Logs have the capacity that they need.
fn warmed_up(text: &str) -> (ManualClock, Scope) {
    let clock = ManualClock::at_us(1_000_000_000_000_000);
    let limiter = Limiter::builder().clock(&clock).build();
    let scope = limiter.scope("warm", text.parse::<Limit>().unwrap()).unwrap();
    for key in KEYS {
        while scope.check(key).now().unwrap().is_allowed() {
            clock.advance(Duration::from_micros(1));
        }
    }
    clock.advance(Duration::from_secs(200));
    (clock, scope)
}

fn awaited(check: Check<'_>) -> bool {
    match pin!(check.into_future()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => decision.unwrap().is_allowed(),
        Poll::Pending => panic!("not ready at the first poll"),
    }
}

/// Asserts that checks of known keys allocate nothing. Half of the checks are denied, and the clock moves, also into
/// the next window.
fn assert_allocates_nothing(is_allowed: impl Fn(Check<'_>) -> bool) {
    for text in LIMITS {
        let (clock, scope) = warmed_up(text);
        let mut admitted = 0;
        let allocations = allocations_of(|| {
            for _ in 0..3 {
                for _ in 0..200 {
                    clock.advance(Duration::from_micros(1));
                    for key in KEYS {
                        admitted += u64::from(is_allowed(scope.check(key)));
                    }
                }
                clock.advance(Duration::from_secs(200));
            }
        });
        assert_eq!(admitted, 100 * 3 * KEYS.len() as u64, "{text}");
        assert_eq!(allocations, 0, "{text}");
    }
}

#[test]
fn allocation_counter_counts() {
    assert_eq!(allocations_of(|| drop(std::hint::black_box(Box::new(1_u64)))), 1);
    assert_eq!(allocations_of(|| ()), 0);
}

#[test]
fn check_now_of_a_known_key_allocates_nothing() {
    assert_allocates_nothing(|check| check.now().unwrap().is_allowed());
}

#[test]
fn awaited_check_of_a_known_key_allocates_nothing() {
    assert_allocates_nothing(awaited);
}

/// Six limits, each with its own state. The one allocation is for the decisions in the answer.
#[test]
fn joint_check_of_known_keys_allocates_only_the_answer() {
    let clock = ManualClock::at_us(1_000_000_000_000_000);
    let limiter = Limiter::builder().clock(&clock).build();
    let scopes = LIMITS.map(|text| limiter.scope(text, text.parse::<Limit>().unwrap()).unwrap());
    let checks = scopes.each_ref().map(|scope| scope.check("user:42"));
    for round in 0..10 {
        clock.advance(Duration::from_micros(1));
        let allocations = allocations_of(|| {
            assert!(limiter.check_all_now(&checks).unwrap().is_allowed());
        });
        // Round 0 adds the keys. The log leaves its slot in round 3, and takes memory for its fifth and ninth charge.
        let grows = matches!(round, 0 | 3 | 4 | 8);
        assert!(allocations == 1 || grows, "{allocations} in round {round}");
    }
    for scope in &scopes {
        scope.check("user:42").cost(90).now().unwrap();
    }
    assert_eq!(
        allocations_of(|| assert!(!limiter.check_all_now(&checks).unwrap().is_allowed())),
        1
    );
}

#[test]
fn peek_and_refund_allocate_nothing() {
    for text in LIMITS {
        let (_, scope) = warmed_up(text);
        let allocations = allocations_of(|| {
            for key in KEYS {
                assert!(scope.peek(key).now().unwrap().is_allowed(), "{text}");
                let receipt = scope.check(key).cost(7).now().unwrap().into_receipt().unwrap();
                assert_eq!(scope.refund_now(key, receipt), Ok(7), "{text}");
            }
        });
        assert_eq!(allocations, 0, "{text}");
    }
}

#[test]
fn refused_unknown_key_allocates_nothing() {
    for text in LIMITS {
        let (_, scope) = warmed_up(text);
        let allocations = allocations_of(|| {
            for key in 0..1_000_u64 {
                let key = key.to_le_bytes();
                assert!(!scope.check(&key).cost(101).now().unwrap().is_allowed(), "{text}");
                assert!(scope.peek(&key).now().unwrap().is_allowed(), "{text}");
            }
        });
        assert_eq!(allocations, 0, "{text}");
    }
}
