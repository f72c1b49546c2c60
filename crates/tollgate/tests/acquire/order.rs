use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate::{Clock, Error, Limit, Limiter};

use crate::setup::{Polled, ms, scope, waited};

#[tokio::test(start_paused = true)]
async fn waiters_are_admitted_in_arrival_order_at_any_cost() {
    let scope = scope("token-bucket capacity=5 refill=1/10ms");
    scope.check("key").cost(5).now().unwrap();
    let went = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    let costs = [5, 1, 3, 1, 1, 4, 2];
    for (index, cost) in costs.into_iter().enumerate() {
        let (scope, went) = (scope.clone(), Arc::clone(&went));
        tasks.spawn(async move {
            let acquired = scope.acquire("key").cost(cost).await.unwrap();
            went.lock().unwrap().push((index, waited(&acquired).as_millis() as u64));
        });
        tokio::task::yield_now().await;
    }
    tasks.join_all().await;
    let mut spent = 0;
    let want: Vec<_> = costs
        .into_iter()
        .enumerate()
        .map(|(index, cost)| {
            spent += cost * 10;
            (index, spent)
        })
        .collect();
    assert_eq!(*went.lock().unwrap(), want);
    assert_eq!(scope.limiter().waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn acquire_that_fits_is_admitted_at_the_first_poll() {
    let scope = scope("token-bucket capacity=2 refill=1/s");
    let before = Instant::now();
    for left in [1, 0] {
        let acquired = Polled::new(scope.acquire("key")).poll().unwrap().unwrap();
        assert_eq!(waited(&acquired), ms(0));
        assert_eq!(acquired.decision().remaining(), left);
    }
    assert_eq!(before.elapsed(), ms(0));
}

/// Without a runtime a timer would panic.
#[test]
fn acquire_that_need_not_wait_needs_no_runtime() {
    let limiter = Limiter::memory();
    let limit: Limit = "fixed-window limit=1 window=1h".parse().unwrap();
    let scope = limiter.scope("test", limit).unwrap();
    assert!(Polled::new(scope.acquire("key")).poll().unwrap().unwrap().is_admitted());
    let refused = Polled::new(scope.acquire("key").max_wait(ms(0))).poll().unwrap().unwrap();
    assert!(!refused.is_admitted());
}

#[tokio::test(start_paused = true)]
async fn newcomer_that_fits_does_not_overtake_a_waiter() {
    let scope = scope("token-bucket capacity=5 refill=1/10ms");
    scope.check("key").cost(3).now().unwrap();
    let large = Polled::new(scope.acquire("key").cost(4)).must_wait();
    let small = Polled::new(scope.acquire("key").cost(1)).must_wait();
    let (large, small) = tokio::join!(large.finish(), small.finish());
    assert_eq!((waited(&large), waited(&small)), (ms(20), ms(30)));
}

#[tokio::test(start_paused = true)]
async fn plain_check_may_overtake_the_front() {
    let scope = scope("token-bucket capacity=1 refill=1/10ms");
    scope.check("key").now().unwrap();
    let front = Polled::new(scope.acquire("key")).must_wait();
    let overtaking = async {
        tokio::time::sleep(ms(5)).await;
        assert!(!scope.check("key").now().unwrap().is_allowed());
        tokio::time::advance(ms(5)).await;
        assert!(scope.check("key").now().unwrap().is_allowed());
    };
    // Polled first, so that the plain check takes the unit that comes back at 10 ms.
    let ((), front) = tokio::join!(biased; overtaking, front.finish());
    assert_eq!(waited(&front), ms(20));
}

#[tokio::test(start_paused = true)]
async fn keys_and_scopes_have_separate_queues() {
    let one = scope("token-bucket capacity=1 refill=1/s");
    let limit: Limit = "token-bucket capacity=1 refill=1/s".parse().unwrap();
    let two = one.limiter().scope("other", limit).unwrap();
    one.check("key").now().unwrap();
    let _front = Polled::new(one.acquire("key")).must_wait();
    assert!(Polled::new(one.acquire("other key")).poll().is_some());
    assert!(Polled::new(two.acquire("key")).poll().is_some());
    assert_eq!(one.limiter().waiting(), 1);
}

#[tokio::test(start_paused = true)]
async fn queue_is_bounded_in_total_and_per_key() {
    let limit: Limit = "token-bucket capacity=1 refill=1/s".parse().unwrap();
    let builder = Limiter::builder().clock(Clock::tokio(0)).max_waiting(3);
    let scope = builder.build().scope("test", limit).unwrap();
    for key in ["a", "b", "c"] {
        scope.check(key).now().unwrap();
    }
    for _ in 0..2 {
        let _a1 = Polled::new(scope.acquire("a")).must_wait();
        let _a2 = Polled::new(scope.acquire("a")).must_wait();
        let _b1 = Polled::new(scope.acquire("b")).must_wait();
        let full = Some(Err(Error::TooManyWaiting { waiting: 3 }));
        assert_eq!(Polled::new(scope.acquire("a")).poll(), full);
        assert_eq!(Polled::new(scope.acquire("c")).poll(), full);
        // An acquire that need not wait takes no room in the queue.
        assert!(Polled::new(scope.acquire("d")).poll().unwrap().is_ok());
        scope.reset_now("d").unwrap();
        assert_eq!(scope.limiter().waiting(), 3);
    }
    assert_eq!(scope.limiter().waiting(), 0);

    let limiter = Limiter::builder().clock(Clock::tokio(0)).build();
    let scope = limiter.scope("test", limit).unwrap();
    scope.check("a").now().unwrap();
    let line: Vec<_> = (0..4_097).map(|_| Polled::new(scope.acquire("a")).must_wait()).collect();
    assert!(Polled::new(scope.acquire("a")).poll().unwrap().is_err());
    // Dropped waiters leave the queue.
    drop(line);
    assert_eq!(limiter.waiting(), 0);
}
