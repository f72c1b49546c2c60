//! A limit that changes while callers wait: they stay in one line for each name and key, and each waiter is
//! decided under its own limit.

use tollgate::{Limit, Scope};

use crate::setup::{Polled, ms, scope, waited, would_wait};

/// The same name with another limit.
fn changed(scope: &Scope, limit: &str) -> Scope {
    scope.limiter().scope(scope.name(), limit.parse::<Limit>().unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn waiters_stay_ahead_of_newcomers_with_a_changed_limit() {
    let slow = scope("token-bucket capacity=2 refill=1/100ms");
    let fast = changed(&slow, "token-bucket capacity=2 refill=1/10ms");
    slow.check("key").cost(2).now().unwrap();
    let first = Polled::new(slow.acquire("key")).must_wait();
    let second = Polled::new(fast.acquire("key")).must_wait();
    let third = Polled::new(slow.acquire("key")).must_wait();
    assert_eq!(slow.limiter().waiting(), 3);
    let (first, second, third) = tokio::join!(first.finish(), second.finish(), third.finish());
    // Each waits at the rate of its own limit when it is at the front.
    assert_eq!([&first, &second, &third].map(waited), [ms(100), ms(110), ms(210)]);
    assert_eq!(slow.limiter().waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn wait_is_forecast_under_each_waiters_own_limit() {
    let slow = scope("token-bucket capacity=2 refill=1/100ms");
    let fast = changed(&slow, "token-bucket capacity=2 refill=1/10ms");
    slow.check("key").cost(2).now().unwrap();
    let first = Polled::new(slow.acquire("key")).must_wait();
    tokio::time::advance(ms(50)).await;
    // Half of the first waiter's unit is back; the rest comes back at the first waiter's rate.
    let refused = fast.acquire("key").max_wait(ms(59)).await.unwrap();
    assert_eq!(would_wait(&refused), Some(ms(60)));
    let second = Polled::new(fast.acquire("key").max_wait(ms(60))).must_wait();
    let (first, second) = tokio::join!(first.finish(), second.finish());
    assert_eq!([&first, &second].map(waited), [ms(100), ms(60)]);
}

/// The waiter's cost fits its own limit, so the waiters behind it do not wait for ever.
#[tokio::test(start_paused = true)]
async fn waiter_ahead_may_cost_more_than_the_new_limit() {
    let large = scope("token-bucket capacity=10 refill=1/10ms");
    let small = changed(&large, "token-bucket capacity=3 refill=1/10ms");
    large.check("key").cost(10).now().unwrap();
    let first = Polled::new(large.acquire("key").cost(8)).must_wait();
    // Then 10 units are spent, and the small limit of 3 has room for 1 when 8 of them are back.
    let second = Polled::new(small.acquire("key").max_wait(ms(160))).must_wait();
    let (first, second) = tokio::join!(first.finish(), second.finish());
    assert_eq!([&first, &second].map(waited), [ms(80), ms(160)]);
    let never = small.acquire("key").cost(4).max_wait(ms(1_000)).await.unwrap();
    assert_eq!(would_wait(&never), None);
}

#[tokio::test(start_paused = true)]
async fn refund_under_the_new_limit_wakes_a_waiter_under_the_old() {
    let slow = scope("token-bucket capacity=2 refill=1/s");
    let fast = changed(&slow, "token-bucket capacity=2 refill=2/s");
    let receipt = slow.check("key").cost(2).now().unwrap().into_receipt().unwrap();
    let waiting = Polled::new(slow.acquire("key")).must_wait();
    assert_eq!(fast.refund_now("key", receipt), Ok(2));
    assert_eq!(waited(&waiting.finish().await), ms(0));
    let waiting = Polled::new(slow.acquire("key").cost(2)).must_wait();
    fast.reset_now("key").unwrap();
    assert_eq!(waited(&waiting.finish().await), ms(0));
}
